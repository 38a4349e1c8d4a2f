"""How well `auto` would have done: a replay over recorded runs in which each task was run under every configuration.

Nothing is evaluated on what it learned from: the choices on the tasks of one seed are made from the outcomes of the other seeds, and a
task that was drawn under several seeds is kept out of what is learned.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Literal

from ...protocols import ConfigError, Sensitivity
from ...protocols.steps import Value
from ..routing.auto import Chooser
from ..routing.run_records import Outcome, RunRecord, outcomes_of
from ..task.modes import TaskProfile
from ..task.policy import AutoConfig, Policy

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
    best_utility: float
    """Utility of the configuration that was best for this very task."""


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

    @property
    def regret_to_best(self) -> tuple[float, ...]:
        """After each task, the utility by which the best configuration of each task is ahead, which no chooser can reach."""
        return tuple(accumulate(task.best_utility - task.utility for task in self.tasks))


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
        best_utility=max(utilities.values()),
    )


def _utility(outcome: Outcome, settings: AutoConfig) -> float:
    return outcome.score - (outcome.dollars or 0.0) / settings.dollars_per_score


def _total(served: Iterable[tuple[float, float | None]]) -> Total:
    scores, prices = zip(*served, strict=True)
    return Total(score=sum(scores), dollars=None if None in prices else sum(prices), tasks=len(scores))
