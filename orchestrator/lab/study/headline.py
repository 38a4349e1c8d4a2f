"""The figures that a sweep is summed up in: what the best hybrids reach against either side alone, and at what price."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Final, Literal

from ....protocols import ConfigError, Sensitivity
from ....protocols.steps import Value
from ...routing.auto import Chooser
from ...routing.outcome_records import Outcome, RunRecord, outcomes_of
from ...task.modes import Strategy, TaskProfile
from ...task.policy import AutoConfig, Policy
from ..statistics import IntervalEstimate, difference
from .outcomes import Outcomes, find_scheduled, find_triggered

Learning = Literal["frozen", "online"]
"""`frozen`: from the other seeds, before the first task. `online`: from nothing, while the tasks go by, each under the one configuration
that was chosen for it."""


class Total(Value):
    """Totals of one way to serve the whole stream."""

    score: float
    """Sum over the tasks."""
    dollars: float | None
    """Sum; None where a price is unknown."""
    tasks: int

    @property
    def mean_score(self) -> float:
        return self.score / self.tasks


class ReplayedTask(Value):
    """One task of the stream."""

    world: str
    task: str
    seed: int
    task_class: str
    """Class that `auto` assigned to the task."""
    chosen: str
    """Label of the configuration."""
    score: float
    dollars: float | None
    utility: float
    """Utility of the chosen configuration."""
    fixed_utility: float
    """Utility of the best fixed configuration."""


class Replay(Value):
    """The stream and its totals."""

    learning: Learning
    tasks: tuple[ReplayedTask, ...]
    """In the order in which they were served, the worlds mixed."""
    auto: Total
    fixed: Mapping[str, Total]
    """Every single configuration on the same tasks, by its label."""
    best_fixed: str
    """The configuration with the highest utility over the whole stream, known only in hindsight."""
    left_out: int
    """Tasks that were not run under every configuration."""

    @property
    def regret(self) -> tuple[float, ...]:
        """After each task, how much utility the best fixed configuration is ahead; negative where `auto` is."""
        return tuple(accumulate(task.fixed_utility - task.utility for task in self.tasks))


@dataclass(frozen=True, slots=True)
class _Case:
    """A task with its outcome under each configuration, by label."""

    world: str
    task: str
    seed: int
    profile: TaskProfile
    outcomes: Mapping[str, Outcome]


def replay(records: Iterable[RunRecord], settings: AutoConfig | None = None, *, learning: Learning = "frozen", order: int = 0) -> Replay:
    """Let `auto` choose for each recorded task and look up what came of it.

    Args:
        records: of a sweep; runs of an oracle, in shadow mode or of `auto` are passed over.
        settings: the knobs; its files are not read.
        learning: what the choices are made from.
        order: seed of the order of the tasks, and of the exploration.

    Raises `ConfigError` where no task was run under every configuration, or `frozen` finds no second seed to learn from.
    """
    settings = settings or AutoConfig()
    cases, left_out = _cases(records)
    Random(order).shuffle(cases)
    if learning == "frozen":
        choosers = _frozen_choosers(cases, settings)
    else:  # one for all seeds, which has yet to try every configuration
        choosers = dict.fromkeys((case.seed for case in cases), _chooser(settings, cases, (), seed=order))
    chosen = [_serve(case, choosers[case.seed], is_online=learning == "online") for case in cases]
    utilities = {label: [_utility(case.outcomes[label], settings) for case in cases] for label in cases[0].outcomes}
    best_fixed = max(utilities, key=lambda label: (sum(utilities[label]), label))
    tasks = tuple(
        _replay_case(case, label, task_class, fixed=best_fixed, utilities={name: values[index] for name, values in utilities.items()})
        for index, (case, (label, task_class)) in enumerate(zip(cases, chosen, strict=True))
    )
    return Replay(
        learning=learning,
        tasks=tasks,
        auto=_total((task.score, task.dollars) for task in tasks),
        fixed={label: _total((case.outcomes[label].score, case.outcomes[label].dollars) for case in cases) for label in utilities},
        best_fixed=best_fixed,
        left_out=left_out,
    )


def _cases(records: Iterable[RunRecord]) -> tuple[list[_Case], int]:
    """Return the tasks that were run under every configuration, and how many were not."""
    runs: defaultdict[tuple[str, str, int], dict[str, Outcome]] = defaultdict(dict)
    for record in records:
        for outcome in outcomes_of([record]):
            runs[record.world, record.task, record.seed][record.configuration] = outcome
    labels = {label for outcomes in runs.values() for label in outcomes}
    cases = [
        _Case(world, task, seed, next(iter(outcomes.values())).profile, dict(sorted(outcomes.items())))
        for (world, task, seed), outcomes in sorted(runs.items())
        if len(outcomes) == len(labels)
    ]
    if not cases:
        raise ConfigError("no task was run under every configuration", hint="let the sweep finish, or leave configurations out")
    return cases, len(runs) - len(cases)


def _frozen_choosers(cases: Sequence[_Case], settings: AutoConfig) -> dict[int, Chooser]:
    """Return for each seed a chooser that knows only the other seeds."""
    frozen = settings.model_copy(update={"explore_share": 0.0})
    seeds = sorted({case.seed for case in cases})
    if len(seeds) < 2:
        hint = 'sweep with --seeds 2 or more, or replay with learning="online"'
        raise ConfigError("all tasks have one seed, and auto may not be judged on what it learned from", hint=hint)
    return {seed: _chooser(frozen, cases, _others(cases, seed)) for seed in seeds}


def _others(cases: Sequence[_Case], seed: int) -> Iterator[Outcome]:
    held_out = {case.profile.prompt for case in cases if case.seed == seed}
    for case in cases:
        if case.seed != seed and case.profile.prompt not in held_out:
            yield from case.outcomes.values()


def _chooser(settings: AutoConfig, cases: Sequence[_Case], outcomes: Iterable[Outcome], *, seed: int = 0) -> Chooser:
    """Return a chooser among the recorded configurations."""
    chooser = Chooser(settings, outcomes, has_defaults=False, seed=seed)
    for outcome in cases[0].outcomes.values():
        chooser.store.offer(outcome.arm, outcome.label)
    return chooser


def _serve(case: _Case, chooser: Chooser, *, is_online: bool) -> tuple[str, str]:
    """Return the label that was chosen, and the class that the task was taken for."""
    decision = chooser.choose(case.profile, Policy(sensitivity=Sensitivity.PUBLIC))
    outcome = next(outcome for outcome in case.outcomes.values() if outcome.arm == decision.chosen)
    if is_online:
        chooser.store.add(outcome)
    return outcome.label, decision.task_class


def _replay_case(case: _Case, label: str, task_class: str, *, fixed: str, utilities: Mapping[str, float]) -> ReplayedTask:
    outcome = case.outcomes[label]
    return ReplayedTask(
        world=case.world,
        task=case.task,
        seed=case.seed,
        task_class=task_class,
        chosen=label,
        score=outcome.score,
        dollars=outcome.dollars,
        utility=utilities[label],
        fixed_utility=utilities[fixed],
    )


def _utility(outcome: Outcome, settings: AutoConfig) -> float:
    return outcome.score - (outcome.dollars or 0.0) / settings.dollars_per_score


def _total(served: Iterable[tuple[float, float | None]]) -> Total:
    scores, prices = zip(*served, strict=True)
    return Total(score=sum(scores), dollars=None if None in prices else sum(prices), tasks=len(scores))


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
