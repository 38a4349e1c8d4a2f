"""Accept a draft, look at it once more, or escalate: what was learned from traces, and the choice by expected utility.

Let the gain be P(far agent right) - P(draft right), given what was seen. Accepting is worth nothing more, escalating is worth the gain less
the far agent's price, and a look is worth what can be had after it, on average over what it may show, less its own price. This is backward
induction over the sets of looks, as an option is priced that may be exercised early (Longstaff and Schwartz 2001, by simulated paths; here
by the moves of the gain that were recorded, so that it holds at any price).
"""

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Self

from pydantic import Field, FiniteFloat, ValidationError, field_validator, model_validator

from ...protocols import ConfigError
from ...protocols.steps import Value
from ...protocols.system import replace_text
from ..task.routing_policy import ObjectiveConfig
from .answers import Answer
from .looks import CROWD, DRAFT, Cost, Look, Signal, crowd

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]


VERSION: Final = "escalation/1"
"""Version of the card's format; a card of another version cannot be used."""
MOST_PAID_LOOKS: Final = 5
"""Every set of paid looks has a fit of its own: 32 at most."""
_MOST_LOOKS: Final = 16
FARTHEST: Final = 4.0
"""Deviations from the mean of the traces beyond which a measure counts no more."""
_LARGEST_ODDS: Final = 30.0
BETTER_USES: Final = "but the budget has better uses"
HAS_ROOM: Final = "and the budget has room for a better one"
_FORCING: Final = 2.0
"""Price of the far agent, over the worth of a right answer, beyond which no look can change the choice, so that one plan serves."""
_GRID: Final = 81
"""Gains between -1 and 1 at which the value of deciding well is computed; between them it is interpolated."""


LARGEST_FILE: Final = 1_000_000
"""Bytes of a card's file at most."""
Weight = Annotated[FiniteFloat, Field(ge=-100, le=100)]
Number = Annotated[FiniteFloat, Field(ge=-1e9, le=1e9)]
Gain = Annotated[FiniteFloat, Field(ge=-2, le=2)]
"""A difference of two probabilities, or a move of one."""


class LearnedLook(Look):
    """A look that was recorded in the traces."""

    measures: tuple[str, ...] = Field(max_length=100)
    """Names of the measures that the look found in the traces."""
    gives_answer: bool
    """Another agent answers the task."""


class Fit(Value):
    """Two logistic regressions on what was seen: numbers in the order of `measures_of`, standardised."""

    seen: tuple[str, ...]
    """The paid looks; the free ones are always seen."""
    centre: tuple[Number, ...]
    scale: tuple[Annotated[Number, Field(gt=0)], ...]
    farthest: tuple[Annotated[float, Field(gt=0, le=FARTHEST)], ...]
    """Deviations from the centre beyond which a measure counts no more."""
    draft: tuple[Weight, ...]
    """Weights for the log odds that the draft is right; the last one stands alone."""
    far: tuple[Weight, ...]
    """Weights for the log odds that the far agent is right; the last one stands alone."""


class Outlook(Value):
    """By how much a look moves the gain: equally likely moves, that cancel out, by the gain before it."""

    seen: tuple[str, ...]
    """The paid looks before it."""
    look: str
    gains: tuple[Gain, ...] = Field(min_length=1, max_length=100)
    """Rising."""
    moves: tuple[Annotated[tuple[Gain, ...], Field(min_length=1, max_length=100)], ...]
    """One row for each of the gains."""

    @model_validator(mode="after")
    def _is_even(self) -> Self:
        if len(self.moves) != len(self.gains) or len({len(row) for row in self.moves}) != 1:
            raise ValueError("there is to be one row of equally many moves for each of the gains")
        if list(self.gains) != sorted(self.gains):
            raise ValueError("the gains are to rise")
        return self


class CardOrigin(Value):
    """The origin of a card that is shared."""

    sets: tuple[str, ...] = ()
    """Recorded sets that it was learned from."""
    licences: tuple[str, ...] = ()
    """Names of their licences."""
    date: str = ""
    command: str = ""
    """The command that made it."""
    note: str = ""
    baked_in: int = Field(default=0, ge=0)
    """Reported outcomes that have moved its probabilities since."""


class EscalationCard(Value):
    """A learned escalation, as stored in its file."""

    version: str = VERSION
    draft: str
    """The agent whose drafts are judged."""
    far: str
    """The agent to which is escalated."""
    looks: tuple[LearnedLook, ...] = Field(max_length=_MOST_LOOKS)
    fits: tuple[Fit, ...] = Field(min_length=1)
    outlooks: tuple[Outlook, ...]
    traces: int = Field(gt=0)
    """It was learned from."""
    left_out: int = Field(default=0, ge=0)
    """Traces in which one of the two outcomes was unknown."""
    provenance: CardOrigin | None = None
    """None: it was learned from the user's own traces."""

    @field_validator("version")
    @classmethod
    def _is_known(cls, version: str) -> str:
        if version != VERSION:
            raise ValueError(f"this Nearfar reads {VERSION}, and it is {version!r}"[:100])
        return version

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        """Check that there is a fit for each set of paid looks, an outlook for each further look, and a weight for each measure."""
        names = [look.name for look in self.looks]
        if len(set(names)) < len(names):
            raise ValueError("a look is named twice")
        paid = [look.name for look in self.looks if not look.is_free]
        if len(paid) > MOST_PAID_LOOKS:
            raise ValueError(f"more than {MOST_PAID_LOOKS} looks cost something")
        sets = sets_of(paid)
        if sorted(fit.seen for fit in self.fits) != sorted(sets):
            raise ValueError("there is to be one fit for each set of looks that cost something")
        if {(each.seen, each.look) for each in self.outlooks} != {(seen, look) for seen in sets for look in paid if look not in seen}:
            raise ValueError("there is to be one outlook for each further look")
        for fit in self.fits:
            count = len(measures_of(looks_of(self.looks, fit.seen), {}))
            if {*map(len, (fit.centre, fit.scale, fit.farthest)), len(fit.draft) - 1, len(fit.far) - 1} != {count}:
                raise ValueError(f"a fit is to have {count} measures")
        return self


class Action(StrEnum):
    """The possible actions on a draft."""

    ACCEPT = "accept"
    LOOK = "look"
    ESCALATE = "escalate"


@dataclass(frozen=True, slots=True)
class EscalationDecision:
    """The action to take on a draft, and the reason."""

    action: Action
    look: str | None
    """Which to take; None unless the action is a look."""
    p_draft: float
    """Probability that the draft is right, given the findings."""
    p_far: float
    """Probability that the far agent would be right."""
    worth: float
    """Expected utility over that of accepting at once."""
    reason: str


class Escalation:
    """Decides about drafts with a learned card. Calls may come from any thread."""

    def __init__(self, card: EscalationCard) -> None:
        self.card = card
        self.looks = tuple(look.name for look in card.looks)
        """Names of those that it was trained with; findings of others cannot be used."""
        self._paid = tuple(look.name for look in card.looks if not look.is_free)
        self._offsets = (0.0, 0.0)
        """Added to the log odds that the draft and the far agent are right."""
        self._fits = {fit.seen: (fit, looks_of(card.looks, fit.seen)) for fit in card.fits}
        self._outlooks = {(outlook.seen, outlook.look): outlook for outlook in card.outlooks}
        self._plan = lru_cache(maxsize=64)(self._planned)
        self._transition = cache(self._transition_of)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a card. Raises `ConfigError` where the file is none, or one of another version."""
        return cls(read_card(path))

    def save(self, path: Path) -> None:
        """Write the card. Raises `OSError`."""
        replace_text(path, self.card.model_dump_json() + "\n")

    def require(self, *, draft: str, far: str, looks: Sequence[str]) -> None:
        """Raise `ConfigError` where it was trained for other agents, or for a look that cannot be taken."""
        if (draft, far) != (self.card.draft, self.card.far):
            raise ConfigError(
                f"the escalation was trained for drafts of {self.card.draft} and escalation to {self.card.far}, not {draft} and {far}",
                hint="train one on traces of these agents",
            )
        missing = sorted(set(self.looks) - set(looks))
        if missing:
            raise ConfigError(f"the escalation needs looks that cannot be taken: {', '.join(missing)}", hint="train one without them")

    def probabilities(self, findings: Mapping[str, Signal]) -> tuple[float, float]:
        """Return the probabilities that the draft is right and that the far agent would be, given findings by the name of their look.

        A look that could not be taken has a finding without measures. Raises `ConfigError` for a look that it does not know.
        """
        unknown = sorted(set(findings) - set(self.looks))
        if unknown:
            raise ConfigError(f"the escalation was trained without the looks {', '.join(unknown)}", hint="train one with them")
        fit, looks = self._fits[self._seen(findings)]
        numbers = zip(measures_of(looks, findings), fit.centre, fit.scale, fit.farthest, strict=True)
        standard = [0.0 if math.isnan(value) else _clipped((value - centre) / scale, most) for value, centre, scale, most in numbers]
        draft, far = self._offsets
        return _logistic(standard, fit.draft, draft), _logistic(standard, fit.far, far)

    def moved(self, *, draft: float, far: float) -> Self:
        """Return the escalation with both probabilities moved by offsets of their log odds, as outcomes correct them."""
        moved = copy(self)
        moved._offsets = (draft, far)
        return moved

    def decide(
        self,
        findings: Mapping[str, Signal],
        *,
        far: Cost,
        objective: ObjectiveConfig = ObjectiveConfig(),  # noqa: B008 - immutable
        threshold: float = 0.0,
    ) -> EscalationDecision:
        """Choose what is worth most.

        Args:
            findings: of the looks taken so far, by name.
            far: what the far agent takes for this task.
            objective: what a right answer, dollars, seconds and joules are worth.
            threshold: utility by which the far agent has to be ahead besides, as a budget asks for; negative where it may be behind.

        Raises `ConfigError` for findings of a look that it does not know, and where numpy is not installed.
        """
        draft, far_right = self.probabilities(findings)
        free = next((look.name for look in self.card.looks if look.is_free and look.name not in findings), None)
        if free is not None:
            return EscalationDecision(Action.LOOK, free, draft, far_right, 0.0, f"a look at {free} costs nothing")
        worth = self._worth(self._seen(findings), far_right - draft, price(far, objective) + threshold, objective)
        best = max(worth, key=lambda option: worth[option])
        action = Action.LOOK if best in self._paid else Action(best)
        reason = _reason(action, best, draft, far_right, worth, threshold)
        return EscalationDecision(action, best if action is Action.LOOK else None, draft, far_right, worth[best], reason)

    def _seen(self, findings: Mapping[str, Signal]) -> tuple[str, ...]:
        return tuple(look for look in self._paid if look in findings)

    def _worth(self, seen: tuple[str, ...], gain: float, far_price: float, objective: ObjectiveConfig) -> dict[str, float]:
        """Return the worth of each option over accepting at once, in the order of preference where they are equal."""
        found = {Action.ACCEPT.value: 0.0, Action.ESCALATE.value: objective.quality * gain - far_price}
        if len(seen) == len(self._paid):
            return found
        grid = _grid()
        import numpy

        for look, values in self._plan(_clipped(far_price, _FORCING * objective.quality), objective)[seen].items():
            found[look] = float(numpy.interp(gain, grid, values))
        return found

    def _planned(self, far_price: float, objective: ObjectiveConfig) -> "Mapping[tuple[str, ...], Mapping[str, Floats]]":
        """Return the worth of each further look on the grid of gains, by the looks seen before it, computed from everything seen to
        nothing seen."""
        grid = _grid()
        import numpy

        costs = {look.name: price(look.cost, objective) for look in self.card.looks}
        values: dict[tuple[str, ...], Floats] = {}
        after: dict[tuple[str, ...], dict[str, Floats]] = {}
        for seen in reversed(sets_of(self._paid)):
            after[seen] = {}
            for look in (look for look in self._paid if look not in seen):
                then = values[tuple(name for name in self._paid if name in seen or name == look)]
                after[seen][look] = self._transition(seen, look) @ then - costs[look]
            now = numpy.maximum(0.0, objective.quality * grid - far_price)
            values[seen] = numpy.max([now, *after[seen].values()], axis=0)
        return after

    def _transition_of(self, seen: tuple[str, ...], look: str) -> "Floats":
        """Return the matrix that takes values on the grid after a look to their means on the grid before it: linear interpolation."""
        grid = _grid()
        import numpy

        outlook = self._outlooks[seen, look]
        matrix = numpy.zeros((_GRID, _GRID))
        for move in numpy.array(outlook.moves).T:
            reached = numpy.clip(grid + numpy.interp(grid, outlook.gains, move), -1, 1)
            place = (reached + 1) / 2 * (_GRID - 1)
            below = numpy.minimum(place.astype(numpy.int64), _GRID - 2)
            rows = numpy.arange(_GRID)
            numpy.add.at(matrix, (rows, below), 1 - (place - below))
            numpy.add.at(matrix, (rows, below + 1), place - below)
        return matrix / len(outlook.moves[0])


def read_card(path: Path) -> EscalationCard:
    """Read a card from a file that may come from others. Raises `ConfigError` where it is none, or too large, with the first problem."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ConfigError(f"{path} holds no escalation: it is a pipe or a device", hint=_UNTRAINED)
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
        if len(data) > LARGEST_FILE:
            raise ConfigError(f"{path} holds no escalation: it has more than {LARGEST_FILE:,} bytes", hint=_UNTRAINED)
        return EscalationCard.model_validate_json(data)
    except OSError as error:
        raise ConfigError(f"{path} holds no escalation: {error.strerror or error}", hint=_UNTRAINED) from error
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        first = next((each for each in problems if each["loc"] == ("version",)), problems[0])
        where = ".".join(map(str, first["loc"])) or "the card"
        raise ConfigError(f"{path} holds no escalation: {where}: {first['msg']}", hint=_UNTRAINED) from error


_UNTRAINED: Final = "`nearfar policy train` writes one"


def price(cost: Cost, objective: ObjectiveConfig) -> float:
    """Return the utility that a cost takes away."""
    return objective.dollars * cost.dollars + objective.seconds * cost.seconds + objective.joules * cost.joules


def sets_of(paid: Sequence[str]) -> list[tuple[str, ...]]:
    """Return all sets of the paid looks, smaller ones first, each in the order given."""
    return [seen for size in range(len(paid) + 1) for seen in combinations(paid, size)]


def looks_of(looks: Sequence[LearnedLook], seen: Sequence[str]) -> list[LearnedLook]:
    """Return the looks that a fit reads: those that are free or were seen."""
    return [look for look in looks if look.is_free or look.name in seen]


def measures_of(looks: Sequence[LearnedLook], findings: Mapping[str, Signal]) -> list[float]:
    """Return the numbers that a fit on these looks reads: those of each look, and how the answers lie to each other."""
    values: list[float] = []
    for look in looks:
        values += measures_of_look(look, findings)
    return values + measures_of_crowd(looks, findings)


def measures_of_look(look: LearnedLook, findings: Mapping[str, Signal]) -> list[float]:
    """Return 1 if the look found nothing, and its measures (NaN: unknown)."""
    found = findings.get(look.name, _NOTHING).measures
    return [float(not found), *[found.get(measure, math.nan) for measure in look.measures]]


def measures_of_crowd(looks: Sequence[LearnedLook], findings: Mapping[str, Signal]) -> list[float]:
    """Return how the answers of several looks lie to each other and to the draft; nothing where there is one besides the draft."""
    answering = [look.name for look in looks if look.gives_answer and look.name != DRAFT]
    if len(answering) < 2:
        return []
    answers = [findings[name].answer for name in answering if name in findings]
    found = crowd(findings.get(DRAFT, _NOTHING).answer or Answer(()), [answer for answer in answers if answer is not None])
    return [found[measure] for measure in CROWD]


_NOTHING: Final = Signal()


@cache
def _grid() -> "Floats":
    try:
        import numpy
    except ImportError as error:
        raise ConfigError("weighing a look needs numpy", hint="pip install 'nearfar[router]'") from error
    return numpy.linspace(-1, 1, _GRID)


def _logistic(values: Sequence[float], weights: Sequence[float], offset: float) -> float:
    odds = sum(value * weight for value, weight in zip(values, weights, strict=False)) + weights[-1] + offset
    return 1 / (1 + math.exp(-_clipped(odds, _LARGEST_ODDS)))


def _clipped(value: float, largest: float) -> float:
    return min(max(value, -largest), largest)


def _reason(action: Action, best: str, draft: float, far: float, worth: Mapping[str, float], threshold: float) -> str:
    chances = f"the draft is right with {draft:.0%}, the far agent with {far:.0%}"
    is_far_worth_it = worth[Action.ESCALATE] + threshold > 0  # without the budget
    if action is Action.ACCEPT:
        return f"{chances}, {BETTER_USES}" if is_far_worth_it else f"{chances}: neither it nor a further look is worth its price"
    if action is Action.ESCALATE:
        return f"{chances}: that is worth its price, and a further look is not" if is_far_worth_it else f"{chances}, {HAS_ROOM}"
    now = max(worth[Action.ACCEPT], worth[Action.ESCALATE])
    return f"{chances}: a look at {best} is worth {worth[best] - now:.2g} more than deciding now"
