"""The figures that a sweep is summed up in: what the best hybrids reach against either side alone, and at what price."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from ....protocols import ConfigError
from ....protocols.steps import Value
from ...routing.run_records import RunRecord
from ...task.modes import Strategy
from ...task.policy import AutoConfig
from ..auto_replay import Replay, replay
from ..statistics import IntervalEstimate, difference
from .outcomes import Outcomes, find_scheduled, find_triggered

NEAR_SHARE: Final = 0.5
"""Share of far's dollars that a hybrid which is to beat near alone may cost."""
FAR_SHARE: Final = 0.4
"""Share of far's dollars that a hybrid which is to approach far alone may cost."""
SAME_POINTS: Final = 1.0
"""A loss of so many points of score counts as the same score."""
AUTO_WEIGHTS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.01)
"""Dollars per point of score at which `auto` is replayed."""


class Reached(Value):
    """The score and price of one configuration."""

    configuration: str
    score: IntervalEstimate
    success: IntervalEstimate
    dollars: IntervalEstimate | None
    """Per task."""


class Comparison(Value):
    """A configuration against another on the same tasks."""

    configuration: str
    against: str
    points: IntervalEstimate | None
    """Difference of the scores, in points."""
    success_points: IntervalEstimate | None
    """Difference of the shares of tasks that succeed, in points."""
    score_share: IntervalEstimate | None
    success_share: IntervalEstimate | None
    dollar_share: IntervalEstimate | None
    """Share of the far side's dollars when it works alone."""
    far_call_share: IntervalEstimate | None
    kv_share: IntervalEstimate | None
    """Share of the other configuration's peak KV bytes."""


class WorldHeadline(Value):
    """One world; what it takes runs of that were not made is None."""

    world: str
    tasks: int
    seeds: int
    near: Reached | None
    far: Reached | None
    best_hybrid: Reached | None
    oracle: Reached | None
    """The best configuration that the world's own solver supervises: a ceiling, not a model."""
    beats_near: Comparison | None
    """The best hybrid at no more than half of far's dollars, against near alone."""
    approaches_far: Comparison | None
    """The best hybrid at no more than 40 % of far's dollars, against far alone."""
    events: Comparison | None
    """Supervision by event against the best fixed interval: of the configurations that score the same, the one with the fewest far calls,
    and where none does, the best."""
    memory: tuple[Comparison, ...]
    """The best pevr and the best eva against near alone."""


class AutoPoint(Value):
    """`auto` with one weight of dollars against score."""

    dollars_per_point: float
    score: float
    """Mean over the tasks."""
    points: IntervalEstimate
    """How far it is above the best single configuration, in points."""
    dollars: float | None
    """Per task."""


class AutoHeadline(Value):
    """`auto` on the recorded tasks of all worlds, mixed; what it knew of a seed's tasks was learned from the other seeds."""

    tasks: int
    score: float
    """Mean over the tasks."""
    dollars: float | None
    """Per task."""
    best_fixed: str
    """The single configuration with the highest mean score, known only in hindsight; the cheaper one of equals."""
    best_fixed_score: float
    best_fixed_dollars: float | None
    points: IntervalEstimate
    """How far `auto` is above it, in points."""
    most_useful_fixed: str
    """The single configuration with the highest score less its dollars by their weight, which is what `auto` aims at."""
    front: tuple[AutoPoint, ...]
    """Results of `auto` had dollars weighed more or less; the weights that spend most come last."""
    regret: tuple[float, ...]
    """After each task, how much of that the most useful single configuration is ahead; 1 is a perfect answer."""


def auto_headline(records: Iterable[RunRecord]) -> AutoHeadline | None:
    """Replay `auto` on the runs; None where they cannot tell: with a single seed, or no task run under all configurations."""
    known = list(records)
    try:
        replayed = replay(known)
    except ConfigError:
        return None
    count = replayed.auto.tasks
    best = _best_fixed(replayed)
    return AutoHeadline(
        tasks=count,
        score=replayed.auto.mean_score,
        dollars=_per_task(replayed.auto.dollars, count),
        best_fixed=best,
        best_fixed_score=replayed.fixed[best].mean_score,
        best_fixed_dollars=_per_task(replayed.fixed[best].dollars, count),
        points=_lead(replayed, known, best),
        most_useful_fixed=replayed.best_fixed,
        front=tuple(_auto_point(known, weight, best) for weight in AUTO_WEIGHTS),
        regret=replayed.regret,
    )


def _auto_point(records: Sequence[RunRecord], weight: float, best: str) -> AutoPoint:
    replayed = replay(records, AutoConfig(dollars_per_point=weight))
    return AutoPoint(
        dollars_per_point=weight,
        score=replayed.auto.mean_score,
        points=_lead(replayed, records, best),
        dollars=_per_task(replayed.auto.dollars, replayed.auto.tasks),
    )


def _best_fixed(replayed: Replay) -> str:
    def worth(label: str) -> tuple[float, float]:
        total = replayed.fixed[label]
        return total.score, float("-inf") if total.dollars is None else -total.dollars

    return max(replayed.fixed, key=worth)


def _lead(replayed: Replay, records: Iterable[RunRecord], fixed: str) -> IntervalEstimate:
    """Return the lead of `auto` over a fixed configuration, in points, over the tasks of the stream."""
    scores = {(record.world, record.task, record.seed): record.score for record in records if record.configuration == fixed}
    auto, other = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for task in replayed.tasks:
        auto[f"{task.world}/{task.task}"].append(task.score)
        other[f"{task.world}/{task.task}"].append(scores[task.world, task.task, task.seed])
    return difference(auto, other).times(100)


def _per_task(dollars: float | None, tasks: int) -> float | None:
    return None if dollars is None else dollars / tasks


def headline(outcomes: Outcomes, world: str) -> WorldHeadline:
    """Return the figures of one world."""
    near, far, hybrids = outcomes.near_alone(world), outcomes.far_alone(world), outcomes.hybrids(world)
    records = [record for record in outcomes.records if record.world == world]
    oracles = [
        label for label in outcomes.configurations(world) if outcomes.first(world, label).oracle and not outcomes.is_shadow(world, label)
    ]
    return WorldHeadline(
        world=world,
        tasks=len({record.task for record in records}),
        seeds=len({record.seed for record in records}),
        near=_reach(outcomes, world, near),
        far=_reach(outcomes, world, far),
        best_hybrid=_reach(outcomes, world, outcomes.best(world, hybrids)),
        oracle=_reach(outcomes, world, outcomes.best(world, oracles)),
        beats_near=_affordable(outcomes, world, hybrids, near, NEAR_SHARE),
        approaches_far=_affordable(outcomes, world, hybrids, far, FAR_SHARE),
        events=_events(outcomes, world),
        memory=tuple(_memory(outcomes, world, near)),
    )


def _reach(outcomes: Outcomes, world: str, label: str | None) -> Reached | None:
    if label is None:
        return None
    score, success = (outcomes.estimate(world, label, measure) for measure in ("score", "success"))
    assert score is not None and success is not None, "every run has a score"  # noqa: PT018 - both or neither
    return Reached(configuration=label, score=score, success=success, dollars=outcomes.estimate(world, label, "dollars"))


def _affordable(outcomes: Outcomes, world: str, hybrids: Sequence[str], against: str | None, share: float) -> Comparison | None:
    """Return the best hybrid that costs at most a share of far alone, against another configuration."""
    far = outcomes.far_alone(world)
    if far is None or against is None:
        return None
    shares = {label: outcomes.ratio(world, label, far, "dollars") for label in hybrids}
    best = outcomes.best(world, [label for label, ratio in shares.items() if ratio is not None and ratio.value <= share])
    return _compare(outcomes, world, best, against, far=far) if best is not None else None


def _events(outcomes: Outcomes, world: str) -> Comparison | None:
    fixed, by_event = outcomes.best(world, find_scheduled(outcomes, world)), find_triggered(outcomes, world)
    if fixed is None or not by_event:
        return None
    events = _fewest_far_calls(outcomes, world, by_event, fixed) or outcomes.best(world, by_event)
    return _compare(outcomes, world, events, fixed, far=outcomes.far_alone(world)) if events is not None else None


def _fewest_far_calls(outcomes: Outcomes, world: str, labels: Iterable[str], fixed: str) -> str | None:
    """Return the label with the fewest far calls among those that score the same as the fixed one; None if none does."""
    leads = {label: outcomes.difference(world, label, fixed) for label in labels}
    same = [label for label, lead in leads.items() if lead is not None and 100 * lead.value >= -SAME_POINTS]
    calls = {label: estimate.value for label in same if (estimate := outcomes.estimate(world, label, "far_calls")) is not None}
    return min(calls, key=lambda label: calls[label], default=None)


def _memory(outcomes: Outcomes, world: str, near: str | None) -> Iterable[Comparison]:
    for strategy in (Strategy.PEVR, Strategy.EVA):
        best = outcomes.best(world, outcomes.family(world, strategy))
        if near is not None and best is not None:
            yield _compare(outcomes, world, best, near, far=None)


def _compare(outcomes: Outcomes, world: str, label: str, against: str, *, far: str | None) -> Comparison:
    return Comparison(
        configuration=label,
        against=against,
        points=_in_points(outcomes.difference(world, label, against)),
        success_points=_in_points(outcomes.difference(world, label, against, "success")),
        score_share=outcomes.ratio(world, label, against, "score"),
        success_share=outcomes.ratio(world, label, against, "success"),
        dollar_share=outcomes.ratio(world, label, far, "dollars") if far is not None else None,
        far_call_share=outcomes.ratio(world, label, against, "far_calls"),
        kv_share=outcomes.ratio(world, label, against, "peak_kv_bytes"),
    )


def _in_points(estimate: IntervalEstimate | None) -> IntervalEstimate | None:
    return None if estimate is None else estimate.times(100)
