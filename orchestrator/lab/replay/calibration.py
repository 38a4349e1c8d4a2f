"""`calibrate`: the threshold with which a policy keeps to a budget, or to a quality, on recorded tasks.

The threshold is chosen on all tasks. What to expect of it is measured apart: for each part of the tasks with a threshold that was chosen on
the other parts. With a confidence, the quality is guaranteed instead, by a predictor that has not seen the tasks.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self

from pydantic import Field

from ....protocols import ConfigError, Sensitivity
from ....protocols.steps import Value
from ...task.modes import Mode, Strategy
from ...task.policy import Policy
from ...task.routing_policy import BUDGETS
from ..statistics import CurveFigures, Guarantee, IntervalEstimate, Margins, check_confidence, guaranteed_threshold
from .replayed import Replayed
from .simulation import Served, estimate_ways, front, noise, replay_figures

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from ..statistics import Floats

    Rows = NDArray[numpy.intp]

_AMOUNT: Final = re.compile(r"(?P<dollars>\$)?(?P<number>\d+(\.\d*)?([eE][+-]?\d+)?|\.\d+)(?P<percent>\s*%)?")
_DIGITS: Final = 6
"""Significant digits of a threshold in a configuration file."""
_MARGIN: Final = 0.01
"""Distance of a threshold beyond all advantages, over their spread."""
_ROUNDING: Final = 1e-9


class Measure(StrEnum):
    """The figure that a target limits."""

    FAR_SHARE = "far_share"
    """At most this share of the tasks goes far."""
    DOLLARS = "dollars"
    """At most so many dollars per task are spent."""
    SCORE_SHARE = "score_share"
    """At least this share of the far side's mean score is reached."""
    SCORE = "score"
    """At least this mean score is reached."""


class CalibrationTarget(Value):
    """A budget or a quality to keep to."""

    measure: Measure
    amount: float = Field(ge=0, allow_inf_nan=False)

    def __str__(self) -> str:
        return {
            Measure.FAR_SHARE: f"at most {self.amount:.4g} of the tasks far",
            Measure.DOLLARS: f"at most ${self.amount:.4g} per task",
            Measure.SCORE_SHARE: f"at least {self.amount:.1%} of the far side's score",
            Measure.SCORE: f"a score of at least {self.amount:.4g}",
        }[self.measure]


class RouterCalibration(Value):
    """A threshold, and what to expect of it."""

    target: CalibrationTarget
    threshold: float
    toml: str
    """Lines for nearfar.toml."""
    expected: Served
    """On tasks that the threshold was not chosen on."""
    wanted: float
    """The value that `target` asks for, in the unit of `reached`."""
    reached: IntervalEstimate
    """Far share, dollars per task or score, whichever is to be kept to: on tasks that the threshold was not chosen on."""
    misses: tuple[float, ...]
    """By how much each part of the tasks went beyond the target, or fell short of a quality; negative where there was room left."""
    guarantee: Guarantee | None
    """The quality that holds with confidence; the expectation is then one on the tasks of the test. None: no confidence was asked for."""
    figures: CurveFigures | None
    """Figures over all thresholds; None where the sides do equally well."""
    front: tuple[Served, ...]
    """The router under thresholds from the highest to the lowest."""
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    """Figures that are within noise."""

    @property
    def worst_miss(self) -> float | None:
        """The largest miss of all parts; None where the threshold was not chosen by parts."""
        return max(self.misses, default=None)

    def summary(self) -> dict[str, Any]:
        """Return the calibration as JSON can hold it."""
        return self.model_dump(mode="json") | {"worst_miss": self.worst_miss}


def budget_target(text: str) -> CalibrationTarget:
    """Parse a budget: `30%` or `0.3` of the tasks may go far, or `$0.002` may be spent per task. Raises `ConfigError` for anything else."""
    number, is_dollars, _ = _amount(text, "a budget", hint="a share of far tasks such as 30%, or dollars per task such as $0.002")
    if not is_dollars and number > 1:
        raise ConfigError(f"a share of far tasks lies between 0 and 100 %, not at {text}", hint="dollars per task begin with $")
    return CalibrationTarget(measure=Measure.DOLLARS if is_dollars else Measure.FAR_SHARE, amount=number)


def quality_target(text: str) -> CalibrationTarget:
    """Parse a quality: `95%` of the far side's score, or a mean score of `0.82`. Raises `ConfigError` for anything else."""
    hint = "a share of the far side's score such as 95%, or a score such as 0.82"
    number, is_dollars, is_share = _amount(text, "a quality", hint=hint)
    if is_dollars or (not is_share and number > 1):
        raise ConfigError(f"{text} is no quality", hint=hint)
    return CalibrationTarget(measure=Measure.SCORE_SHARE if is_share else Measure.SCORE, amount=number)


def target_of(*, budget: str | None, quality: str | None, confidence: float | None) -> CalibrationTarget:
    """Return the target of a calibration. Raises `ConfigError` as `calibrate` does, as far as that needs no tasks."""
    if (budget is None) == (quality is None):
        raise ConfigError("a threshold is found for a budget or for a quality", hint="give one of --budget and --quality")
    if confidence is not None:
        if budget is not None:
            raise ConfigError("a confidence belongs to a quality", hint="give --quality and not --budget")
        check_confidence(confidence)
    return budget_target(budget) if budget is not None else quality_target(quality or "")


def calibrate(
    replayed: Replayed, *, budget: str | None = None, quality: str | None = None, confidence: float | None = None, seed: int = 0
) -> RouterCalibration:
    """Find the threshold.

    A budget is spent as far as possible, on the tasks with the highest advantage. A quality is kept to with as few far tasks as possible.

    Args:
        replayed: recorded tasks, as the router sees them.
        budget: as `budget_target` reads it.
        quality: as `quality_target` reads it; give one of the two.
        confidence: with which the quality shall be kept on new tasks, such as 0.95; None: without a guarantee.
        seed: of the intervals.

    Raises `ConfigError` for none or both of them, dollars where prices are unknown, and a target that no threshold keeps to; with a
    confidence also for a budget, for predictions learned from these very tasks, and for too few tasks.
    """
    import numpy

    target = target_of(budget=budget, quality=quality, confidence=confidence)
    if target.measure is Measure.DOLLARS and not replayed.knows_dollars:
        raise ConfigError("the traces do not tell what every far outcome cost", hint="record dollars, or give a share such as 30%")
    search = _Search.of(replayed, target)
    if confidence is not None:
        return _guaranteed(replayed, search, confidence, seed)
    everything = numpy.arange(len(replayed.tasks))
    threshold, miss = search.threshold_on(everything)
    if miss > _ROUNDING:
        raise _unreachable(search, miss, search.wanted(everything))
    return _calibration(replayed, search, threshold, seed)


def _amount(text: str, what: str, *, hint: str) -> tuple[float, bool, bool]:
    """Parse an amount. Return the number, True if it is in dollars, and True if it is in per cent."""
    found = _AMOUNT.fullmatch(text.strip())
    if found is None or (found["dollars"] and found["percent"]):
        raise ConfigError(f"{text!r} is not {what}", hint=f"give {hint}")
    is_share = found["percent"] is not None
    return float(found["number"]) / (100 if is_share else 1), found["dollars"] is not None, is_share


@dataclass(frozen=True, slots=True)
class _Search:
    """The search for a threshold, over the target's figure per task for either side."""

    target: CalibrationTarget
    advantages: "Floats"
    near: "Floats"
    far: "Floats"
    """Equal to `near` where the threshold does not decide."""

    @classmethod
    def of(cls, replayed: Replayed, target: CalibrationTarget) -> Self:
        import numpy

        measure = {Measure.FAR_SHARE: replayed.is_far, Measure.DOLLARS: replayed.dollars}.get(target.measure, replayed.scores)
        advantages = numpy.array([task.advantage for task in replayed.tasks])
        return cls(target, advantages, measure(replayed.near), measure(replayed.far))

    @property
    def is_budget(self) -> bool:
        return self.target.measure in (Measure.FAR_SHARE, Measure.DOLLARS)

    def wanted(self, rows: "Rows") -> float:
        """Return the value that the target asks for on some tasks."""
        if self.target.measure is Measure.SCORE_SHARE:
            return self.target.amount * float(self.far[rows].mean())
        return self.target.amount

    def miss(self, rows: "Rows", threshold: float) -> float:
        """Return how far a threshold goes beyond the budget, or falls short of the quality."""
        import numpy

        value = float(numpy.where(self.advantages[rows] > threshold, self.far[rows], self.near[rows]).mean())
        return value - self.wanted(rows) if self.is_budget else self.wanted(rows) - value

    def margins(self, seed: int) -> Margins:
        """Return the tasks in random order, as a guarantee of the quality is tested on them."""
        import numpy

        order = numpy.random.default_rng(seed).permutation(len(self.advantages))
        advantages, near, far = self.advantages[order], self.near[order], self.far[order]
        if self.target.measure is Measure.SCORE_SHARE:
            return Margins.of_share(advantages, near, far, share=self.target.amount)
        return Margins(advantages, near, far, self.target.amount)

    def threshold_on(self, rows: "Rows") -> tuple[float, float]:
        """Return the threshold that keeps to the target on some tasks, else the one that misses it least; and its miss there."""
        import numpy

        candidates = _candidates(self.advantages[rows])
        misses = self._misses(rows)
        kept = numpy.flatnonzero(misses <= _ROUNDING)
        if not len(kept):
            place = int(misses.argmin())
        else:
            place = int(kept[-1] if self.is_budget else kept[0])
        return float(f"{candidates[place]:.{_DIGITS}g}"), float(misses[place])

    def _misses(self, rows: "Rows") -> "Floats":
        """Return the misses of all candidates."""
        import numpy

        order = numpy.argsort(-self.advantages[rows], kind="stable")
        gains = numpy.cumsum([0.0, *(self.far[rows] - self.near[rows])[order]])
        falls = numpy.flatnonzero(numpy.diff(self.advantages[rows][order])) + 1
        values = self.near[rows].mean() + gains[[0, *falls, len(order)]] / len(order)
        over: Floats = values - self.wanted(rows)
        return over if self.is_budget else -over


def _candidates(advantages: "Floats") -> list[float]:
    """Return thresholds between the advantages, from above the highest to below the lowest."""
    import numpy

    known = numpy.unique(advantages)[::-1]
    margin = max(float(known[0] - known[-1]), 1.0) * _MARGIN
    return [float(known[0]) + margin, *map(float, (known[:-1] + known[1:]) / 2), float(known[-1]) - margin]


def _calibration(replayed: Replayed, search: _Search, threshold: float, seed: int) -> RouterCalibration:
    import numpy

    parts = numpy.array([task.part for task in replayed.tasks])
    agents, misses = list(replayed.near), []
    for part in numpy.unique(parts):
        held = parts == part
        learned, _ = search.threshold_on(numpy.flatnonzero(~held))
        for place in numpy.flatnonzero(held):
            agents[place] = replayed.tasks[place].served_by(learned)
        misses.append(search.miss(numpy.flatnonzero(held), learned))
    return _result(replayed, search, threshold, agents, misses=tuple(misses), seed=seed)


def _guaranteed(replayed: Replayed, search: _Search, confidence: float, seed: int) -> RouterCalibration:
    """Find the highest threshold that keeps to a quality with confidence."""
    if not replayed.is_predicted_afresh:
        raise ConfigError(
            "the predictions were learned from the tasks that the guarantee would be tested on",
            hint="pass --test FILE with tasks kept apart, or name in the configuration what was trained on other traces",
        )
    worth = replayed.policy.objective.quality
    guarantee = guaranteed_threshold(search.margins(seed), confidence=confidence, worth=worth)
    agents = replayed.served_by(guarantee.threshold)
    return _result(replayed, search, guarantee.threshold, agents, guarantee=guarantee, seed=seed)


def _result(
    replayed: Replayed,
    search: _Search,
    threshold: float,
    agents: Sequence[str],
    *,
    misses: tuple[float, ...] = (),
    guarantee: Guarantee | None = None,
    seed: int,
) -> RouterCalibration:
    """Sum up a threshold; `agents` serve the tasks under it."""
    import numpy

    (expected,) = estimate_ways(replayed, {"expected": agents}, seed=seed)
    figures = replay_figures(replayed, seed)
    reached = {Measure.FAR_SHARE: expected.far_share, Measure.DOLLARS: expected.dollars}.get(search.target.measure) or expected.score
    return RouterCalibration(
        target=search.target,
        threshold=threshold,
        toml=_toml(replayed.policy, threshold),
        expected=expected,
        wanted=search.wanted(numpy.arange(len(replayed.tasks))),
        reached=reached,
        misses=misses,
        guarantee=guarantee,
        figures=figures,
        front=front(replayed, seed),
        notes=tuple(_notes(replayed.policy)),
        warnings=tuple(noise(replayed, figures, seed)),
    )


def _unreachable(search: _Search, miss: float, wanted: float) -> ConfigError:
    if search.is_budget:
        return ConfigError(f"{search.target}: no threshold keeps to that on these tasks", hint=f"the least is {wanted + miss:.4g}")
    share = f", which is {wanted:.4g}," if search.target.measure is Measure.SCORE_SHARE else ""
    return ConfigError(
        f"{search.target}{share} cannot be reached on these tasks",
        hint=f"the highest score that a threshold reaches is {wanted - miss:.4g}",
    )


def _toml(policy: Policy, threshold: float) -> str:
    """Return the lines of nearfar.toml that set the threshold."""
    is_steered = policy.strategy in (Strategy.ROUTE, Strategy.CASCADE)
    lines = [] if is_steered else [f'strategy = "{Strategy.ROUTE}"']
    lines += [f'mode = "{Mode.AUTO}"'] if policy.mode is not Mode.AUTO else []
    head = ["[policy]", *lines, ""] if lines else []
    return "\n".join([*head, "[policy.router]", f"threshold = {threshold!r}", ""])


def _notes(policy: Policy) -> Iterator[str]:
    router = policy.router
    if router.head is None:
        yield (
            "The policy names no head, so heads were trained for this calibration. The threshold is for a head of the same traces: "
            "make it with nearfar policy train, and name it in [policy.router]."
        )
    cards = [policy.evidence.escalation] if policy.strategy is Strategy.CASCADE else []
    for path in (router.head, *cards):
        if path is not None:
            yield f"If {path} was trained on these tasks, the expectation flatters it, and no guarantee holds."
    for name in BUDGETS:
        if getattr(router, name) is not None:
            yield f"Take {name} out of [policy.router]: it would move the threshold."
    if policy.sensitivity is not Sensitivity.PUBLIC:
        yield "Tasks are private unless they say otherwise, and stay on this device whatever the threshold."
