"""Two choices whether a supervisor is asked: by a budget, once a task, and by a navigator, after each step of the executor.

A budget lets a supervisor far away be asked in those tasks in which that is worth the multiplier that it has at the moment.

A navigator is a small net that also chooses what the supervisor is asked for. After RL of Thoughts (arXiv 2505.14140), with evidence
that exists without a further call in place of a model's opinion of its own step.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Self

from pydantic import Field, FiniteFloat, ValidationError, model_validator

from ...protocols import ConfigError, Prices, Side, Usage
from ...protocols.steps import Value
from ..budgets import Commitment
from ..task import Task, tokens_of
from ..task.decisions import Estimate, EstimateSource, RouteDecision
from ..task.events import EVIDENCE, Move, Navigated
from ..task.results import Call
from ..task.routing_policy import RouterConfig
from .costs import TaskKind, TaskTaken
from .steering import OUT_OF_REACH, FarOption, Steering

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]

MOST_WEIGHTS: Final = 3000
FARTHEST: Final = 4.0
"""Deviations from the mean of the recorded evidence beyond which a figure counts no more."""
LEAST_SCALE: Final = 1e-5
"""Least deviation: figures that differ less are taken for equal."""
_MOST_LAYERS: Final = 8
"""More could make numbers without bound of weights that are bounded."""
NAVIGATOR: Final = "navigator.json"
"""File in a sweep's folder."""
_LARGEST_FILE: Final = 1_000_000
_ASKING: Final = 0.15
"""Share of the choices left to chance that falls on each move which asks the far side."""
_ASKING_AGAIN: Final = 0.04
"""Its share once the far side was asked."""
_PLANNED, _ASKED, _CHANGED = (EVIDENCE.index(name) for name in ("has a plan", "far calls", "has changed something"))
_UNTRAINED: Final = "`nearfar sweep --run pevr:explore=1` trains one"

Weight = Annotated[FiniteFloat, Field(ge=-1e4, le=1e4)]
Layer = Annotated[tuple[tuple[Weight, ...], ...], Field(min_length=1)]
"""A row of weights for each output; the last weight of a row stands alone."""


class NavigatorCard(Value):
    """A navigator as stored in its file."""

    version: str = Field(default="navigator/1", pattern="^navigator/1$")
    evidence: tuple[str, ...] = EVIDENCE
    moves: tuple[Move, ...] = tuple(Move)
    centre: tuple[Weight, ...]
    """Mean of each figure in the recorded runs."""
    scale: tuple[Annotated[Weight, Field(ge=LEAST_SCALE)], ...]
    """Its deviation."""
    layers: tuple[Layer, ...] = Field(min_length=1, max_length=_MOST_LAYERS)
    call_price: float = Field(ge=0, le=1)
    """Share of a perfect score that a far call had to bring in training."""
    runs: int = Field(gt=0)
    """Recorded runs that it was trained on."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.evidence, self.moves) != (EVIDENCE, tuple(Move)):
            raise ValueError("this Nearfar has other evidence or moves")
        widths = [len(EVIDENCE), *map(len, self.layers)]
        rows = [(before, row) for before, layer in zip(widths, self.layers, strict=False) for row in layer]
        if widths[-1] != len(Move) or any(len(row) != before + 1 for before, row in rows):
            raise ValueError("its layers do not fit together")
        if {len(self.centre), len(self.scale)} != {len(EVIDENCE)}:
            raise ValueError("it scales other figures than it sees")
        if sum(len(row) for _, row in rows) >= MOST_WEIGHTS:
            raise ValueError(f"it has {MOST_WEIGHTS:,} weights or more")
        return self


class Navigator:
    """Tells what each move is worth by a card. Raises `ConfigError` where numpy is not installed."""

    def __init__(self, card: NavigatorCard) -> None:
        try:
            import numpy
        except ImportError as error:
            raise ConfigError("a navigator needs numpy", hint="pip install 'nearfar[router]'") from error
        self._centre, self._scale = numpy.array(card.centre), numpy.array(card.scale)
        self._layers = [(table[:, :-1], table[:, -1]) for table in map(numpy.array, card.layers)]

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a card. Raises `ConfigError` where the file holds none."""
        try:
            with path.open("rb") as file:
                data = file.read(_LARGEST_FILE + 1)
            return cls(NavigatorCard.model_validate_json(data))
        except OSError as error:
            raise ConfigError(f"{path} holds no navigator: {error.strerror}", hint=_UNTRAINED) from error
        except ValidationError as error:
            raise ConfigError(f"{path} holds no navigator: {error.errors()[0]['msg']}", hint=_UNTRAINED) from error

    def worth(self, seen: Sequence[float]) -> Mapping[Move, float]:
        """Return for each move the score that is to be expected at the end, 1 at best, less the price of the far calls until then."""
        values: Floats = ((seen - self._centre) / self._scale).clip(-FARTHEST, FARTHEST)
        *hidden, (weights, alone) = self._layers
        for inner, offset in hidden:
            values = (inner @ values + offset).clip(0)
        return dict(zip(Move, (weights @ values + alone).tolist(), strict=True))


def allowed_moves(seen: Sequence[float]) -> tuple[Move, ...]:
    """Return the moves that are possible: a task is planned once, before anything was changed; later, a check may plan what remains."""
    may_plan = not seen[_PLANNED] and not seen[_CHANGED]
    return tuple(move for move in Move if move is not Move.PLAN or may_plan)


def navigated(navigator: Navigator | None, seen: Sequence[float], *, explore: float, asked: float = 0.0) -> Navigated:
    """Choose a move, and tell how likely it was.

    Args:
        navigator: None: every move is left to chance.
        seen: the evidence.
        explore: share of the choices that are left to chance, 0 to 1.
        asked: share of a perfect score by which a move that asks the far side has to be ahead.
    """
    allowed = allowed_moves(seen)
    shares = _chances(allowed, has_asked=seen[_ASKED] > 0)
    if navigator is not None:
        worth = navigator.worth(seen)
        best = max(allowed, key=lambda move: worth[move] - asked * (move is not Move.STEP))
        shares = {move: explore * share + (1 - explore) * (move is best) for move, share in shares.items()}
    (chosen,) = random.choices(list(shares), list(shares.values()))
    return Navigated(seen=tuple(seen), move=chosen, probability=shares[chosen])


def _chances(allowed: Sequence[Move], *, has_asked: bool) -> dict[Move, float]:
    """Return the probabilities of the moves where they are left to chance."""
    each = _ASKING_AGAIN if has_asked else _ASKING
    return {move: each if move is not Move.STEP else 1 - each * (len(allowed) - 1) for move in allowed}


PLAN_TOKENS: Final = 300
"""Tokens of a plan."""
MENDED: Final = 0.69
"""Probability that a far agent does right what a near one does wrong: mean over three recorded sets, function calls, predicted output of
code, and competition maths."""
UNDOUBTED: Final = 0.54
"""Gain of asking a far agent about an answer that nothing speaks against, over that where a check or another agent does: by means over the
same sets."""


def gain_of_supervision(decision: RouteDecision) -> float:
    """Return how much more probable a right outcome is with the supervisor, as far as the prompt tells.

    Outcomes of both agents, or a head, tell it; else it is the part that the far side mends of what the near agent is expected to do wrong.
    """
    near, far = _chance(decision, decision.candidates[0]), _chance(decision, decision.supervisor or "")
    known = EstimateSource.PRIOR not in (near.source, far.source)
    return far.value - near.value if known else MENDED * (1 - near.value)


class SupervisionChoice:
    """Chooses whether the supervisor of one task is asked, and lets the budget count that.

    A share of tasks counts a task as far where anything of it goes there. Dollars are those of a plan; under a rate of
    dollars, those that plans and checks of such tasks were billed together.

    Args:
        steering: of the router.
        task: under supervision.
        decision: that placed the task.
        prices: of the supervisor; None: unknown.
        tools: names of those that the task may call.
        commitments: takes what a dollar rate sets aside, until the bill comes; None: no bill will come.
    """

    def __init__(
        self,
        steering: Steering,
        task: Task,
        decision: RouteDecision,
        *,
        prices: Prices | None,
        tools: Collection[str] = (),
        commitments: list[Commitment] | None = None,
    ) -> None:
        self._steering = steering
        self._settings: RouterConfig = task.policy.router
        self._objective = task.policy.objective
        self._near = _chance(decision, decision.candidates[0]).value
        self._gain = gain_of_supervision(decision)
        self._supervisor = decision.supervisor or ""
        self._tokens = tokens_of(task)
        self._kind = TaskKind(task.task_class, bool(tools))
        self._plan_dollars = _plan_dollars(task, decision, prices)
        billed = self._steering.supervision.costs(self._supervisor, Side.FAR, tokens=self._tokens, prices=prices, kind=self._kind).dollars
        is_known = billed is not None and billed.source is EstimateSource.MEASURED
        self._dollars = billed if is_known and not self.counts_tasks else self._plan_dollars
        self._commitments = commitments

    @property
    def counts_tasks(self) -> bool:
        """The budget is over all tasks, so that each of them is weighed, and not only one in which the supervisor would be asked anyway."""
        return self._settings.dollar_rate is None

    @property
    def price(self) -> float:
        """The worth, in right outcomes, that a rate of dollars asks one call of the supervisor to bring."""
        if not self._objective.quality or self.counts_tasks or self._plan_dollars is None:
            return 0.0
        multiplier = max(self._steering.dollar_multiplier(self._settings), -self._objective.dollars)
        return multiplier * self._plan_dollars.value / self._objective.quality

    def buys(self, gain: float | None = None, *, is_doubted: bool = True) -> bool:
        """Choose, and count the task.

        Args:
            gain: by how much a right outcome becomes more probable if the supervisor is asked; None: the prompt tells it.
            is_doubted: False for an answer that nothing speaks against.
        """
        dollars = 0.0 if self._dollars is None else self._dollars.value
        expected = (self._gain if gain is None else gain) * (1 if is_doubted else UNDOUBTED)
        advantage = self._objective.quality * expected - self._objective.dollars * dollars
        is_bought = advantage > self._steering.threshold(self._settings, self._dollars)
        self._count(advantage, went_far=is_bought)
        return is_bought

    def pass_by(self, *, went_far: bool) -> None:
        """Count a task that has ended without the choice. `went_far`: the far side was asked all the same, as about an act in doubt."""
        self._count(-OUT_OF_REACH, went_far=went_far)

    def correct(self, *, is_bought: bool, went_far: bool | None) -> None:
        """Count the task again by what came of the choice: a far agent was asked all the same, or was not asked after all. None: leave the
        task out, since its near agent has failed."""
        self._steering.correct(self._settings, counted_far=is_bought, went_far=went_far)

    def learn(self, calls: Sequence[Call]) -> None:
        """Learn what the task took of its supervisor. Answers of a cache say nothing of that."""
        if calls and all(call.saved is None for call in calls):
            taken = TaskTaken.of(calls, prompt_tokens=self._tokens)
            self._steering.supervision.add_task(self._supervisor, taken, kind=self._kind)

    def _count(self, advantage: float, *, went_far: bool) -> None:
        far = min(max(self._near + self._gain, 0.0), 1.0)
        option = FarOption(advantage, near=self._near, far=far, dollars=self._dollars)
        self._steering.observe(self._settings, option, went_far=went_far, commitments=self._commitments)


def _chance(decision: RouteDecision, agent: str) -> Estimate:
    """Return the estimate that an agent does the task right by itself."""
    estimate = decision.estimate_of(agent)
    return Estimate(0.5, 0.5, EstimateSource.PRIOR) if estimate is None else estimate.success


def _plan_dollars(task: Task, decision: RouteDecision, prices: Prices | None) -> Estimate | None:
    """Return the dollars of one plan by the price list, else those that a task takes of the supervisor; None: unknown."""
    if prices is None:
        expected = decision.estimate_of(decision.supervisor or "")
        return None if expected is None else expected.dollars
    usage = Usage(input_tokens=tokens_of(task), output_tokens=PLAN_TOKENS)
    return Estimate(float(prices.dollars(usage)), 0.0, EstimateSource.PRIOR)
