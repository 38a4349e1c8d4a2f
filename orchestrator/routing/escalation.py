"""Accept a draft, look at it once more, or escalate: what was learned from traces, and the choice by expected utility.

Let the gain be P(far agent right) - P(draft right), given what was seen. Accepting is worth nothing more, escalating is worth the gain less
the far agent's price, and a look is worth what can be had after it, on average over what it may show, less its own price. This is backward
induction over the sets of looks, as an option is priced that may be exercised early (Longstaff and Schwartz 2001, by simulated paths; here
by the moves of the gain that were recorded, so that it holds at any price).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from pydantic import Field, ValidationError

from ...protocols import ConfigError
from ...protocols.steps import Value
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
FARTHEST: Final = 4.0
"""Deviations from the mean of the traces beyond which a measure counts no more."""
_LARGEST_ODDS: Final = 30.0
_BUDGET: Final = "; the budget asks the far agent to be ahead by {:.2g}"
_FORCING: Final = 2.0
"""Price of the far agent, over the worth of a right answer, beyond which no look can change the choice, so that one plan serves."""
_GRID: Final = 81
"""Gains between -1 and 1 at which the value of deciding well is computed; between them it is interpolated."""


class LearnedLook(Look):
    """A look that was recorded in the traces."""

    measures: tuple[str, ...]
    """Names of the measures that the look found in the traces."""
    gives_answer: bool
    """Another agent answers the task."""


class Fit(Value):
    """Two logistic regressions on what was seen: numbers in the order of `measures_of`, standardised."""

    seen: tuple[str, ...]
    """The paid looks; the free ones are always seen."""
    centre: tuple[float, ...]
    scale: tuple[float, ...]
    draft: tuple[float, ...]
    """Weights for the log odds that the draft is right; the last one stands alone."""
    far: tuple[float, ...]
    """Weights for the log odds that the far agent is right; the last one stands alone."""


class Outlook(Value):
    """By how much a look moves the gain: equally likely moves, that cancel out, by the gain before it."""

    seen: tuple[str, ...]
    """The paid looks before it."""
    look: str
    gains: tuple[float, ...] = Field(min_length=1)
    """Rising."""
    moves: tuple[tuple[float, ...], ...]
    """One row for each of the gains."""


class EscalationCard(Value):
    """A learned escalation, as stored in its file."""

    version: str = VERSION
    draft: str
    """The agent whose drafts are judged."""
    far: str
    """The agent to which is escalated."""
    looks: tuple[LearnedLook, ...]
    fits: tuple[Fit, ...] = Field(min_length=1)
    outlooks: tuple[Outlook, ...]
    traces: int = Field(gt=0)
    """It was learned from."""
    left_out: int = Field(default=0, ge=0)
    """Traces in which one of the two outcomes was unknown."""


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
        """Raises `ConfigError` for a card of another version."""
        if card.version != VERSION:
            raise ConfigError(f"the escalation is of version {card.version!r}, not {VERSION!r}", hint="train it again")
        self.card = card
        self.looks = tuple(look.name for look in card.looks)
        """Names of those that it was trained with; findings of others cannot be used."""
        self._paid = tuple(look.name for look in card.looks if not look.is_free)
        self._fits = {fit.seen: fit for fit in card.fits}
        self._outlooks = {(outlook.seen, outlook.look): outlook for outlook in card.outlooks}
        self._plan = lru_cache(maxsize=64)(self._planned)
        self._transition = cache(self._transition_of)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a card. Raises `ConfigError` where the file is none, or one of another version."""
        try:
            return cls(EscalationCard.model_validate_json(path.read_bytes()))
        except (OSError, ValidationError) as error:
            raise ConfigError(f"{path} holds no escalation", hint="train it on traces") from error

    def save(self, path: Path) -> None:
        """Write the card."""
        path.write_text(self.card.model_dump_json() + "\n", encoding="utf-8")

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
        fit = self._fits[self._seen(findings)]
        values = measures_of(self.card.looks, fit.seen, findings)
        numbers = zip(values, fit.centre, fit.scale, strict=True)
        standard = [0.0 if math.isnan(value) else _clipped((value - centre) / scale, FARTHEST) for value, centre, scale in numbers]
        return _logistic(standard, fit.draft), _logistic(standard, fit.far)

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
        reason = _reason(action, best, draft, far_right, worth) + (_BUDGET.format(threshold) if threshold else "")
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


def price(cost: Cost, objective: ObjectiveConfig) -> float:
    """Return the utility that a cost takes away."""
    return objective.dollars * cost.dollars + objective.seconds * cost.seconds + objective.joules * cost.joules


def sets_of(paid: Sequence[str]) -> list[tuple[str, ...]]:
    """Return all sets of the paid looks, smaller ones first, each in the order given."""
    return [seen for size in range(len(paid) + 1) for seen in combinations(paid, size)]


def measures_of(looks: Sequence[LearnedLook], seen: Sequence[str], findings: Mapping[str, Signal]) -> list[float]:
    """Return the numbers that a fit reads: for each free or seen look, 1 if it found nothing, and its measures (NaN: unknown).

    Where two or more answers besides the draft were seen, how they lie to each other follows.
    """
    values: list[float] = []
    taken = [look for look in looks if look.is_free or look.name in seen]
    for look in taken:
        found = findings.get(look.name, Signal()).measures
        values += [float(not found), *(found.get(measure, math.nan) for measure in look.measures)]
    answering = [look.name for look in taken if look.gives_answer and look.name != DRAFT]
    if len(answering) > 1:
        draft = findings.get(DRAFT, Signal()).answer or Answer(())
        answers = [findings[name].answer for name in answering if name in findings]
        found = crowd(draft, [answer for answer in answers if answer is not None])
        values += [found[measure] for measure in CROWD]
    return values


def _grid() -> "Floats":
    try:
        import numpy
    except ImportError as error:
        raise ConfigError("weighing a look needs numpy", hint="pip install 'nearfar[router]'") from error
    return numpy.linspace(-1, 1, _GRID)


def _logistic(values: Sequence[float], weights: Sequence[float]) -> float:
    odds = sum(value * weight for value, weight in zip(values, weights, strict=False)) + weights[-1]
    return 1 / (1 + math.exp(-_clipped(odds, _LARGEST_ODDS)))


def _clipped(value: float, largest: float) -> float:
    return min(max(value, -largest), largest)


def _reason(action: Action, best: str, draft: float, far: float, worth: Mapping[str, float]) -> str:
    chances = f"the draft is right with {draft:.0%}, the far agent with {far:.0%}"
    if action is Action.ACCEPT:
        return f"{chances}: neither it nor a further look is worth its price"
    if action is Action.ESCALATE:
        return f"{chances}: that is worth its price, and a further look is not"
    now = max(worth[Action.ACCEPT], worth[Action.ESCALATE])
    return f"{chances}: a look at {best} is worth {worth[best] - now:.2g} more than deciding now"
