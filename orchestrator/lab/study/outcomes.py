"""The runs of a sweep by world and configuration, and the figures that reports and findings are made of."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from statistics import median
from typing import Final

from ....protocols.steps import Value
from ...routing.outcome_records import RunRecord
from ...task.modes import Strategy
from ...task.policy import SupervisionConfig
from ..statistics import IntervalEstimate, Unit, difference, mean, ratio

Measure = Callable[[RunRecord], float | None]

MEASURES: Final[Mapping[str, Measure]] = {
    "score": lambda record: record.score,
    "success": lambda record: float(record.success),
    "dollars": lambda record: record.dollars,
    "seconds": lambda record: record.seconds,
    "joules": lambda record: record.joules,
    "peak_kv_bytes": lambda record: record.peak_kv_bytes,
    "far_calls": lambda record: record.far_calls,
    "near_calls": lambda record: record.near_calls,
    "turns": lambda record: record.turns,
    "interventions": lambda record: record.interventions,
}
"""Figures averaged over runs. None: unknown for a run, which is then left out."""


class VerifierErrors(Value):
    """How often a supervisor whose verdicts change nothing is wrong (arXiv 2605.30102, table 1), over runs with at least one check."""

    runs: int
    false_negatives: IntervalEstimate
    """Share of runs in which every check said CONTINUE and the task failed."""
    false_positives: IntervalEstimate
    """Share of runs in which a check said INTERVENE and the task succeeded."""


class Interventions(Value):
    """Runs by how often the supervisor intervened."""

    interventions: int
    runs: int
    median_score: float


class Solved(Value):
    """Which of three systems solved how many tasks."""

    near_only: int
    far_only: int
    hybrid_only: int
    near_and_far: int
    near_and_hybrid: int
    far_and_hybrid: int
    all_three: int
    none: int

    @property
    def runs(self) -> int:
        return sum(self.model_dump().values())


class Outcomes:
    """Recorded runs, to be asked for figures."""

    def __init__(self, records: Iterable[RunRecord]) -> None:
        self.records = tuple(records)
        self._runs: dict[tuple[str, str], dict[tuple[str, int], RunRecord]] = defaultdict(dict)
        for record in self.records:
            self._runs[record.world, record.configuration][record.task, record.seed] = record
        self.worlds = list(dict.fromkeys(world for world, _ in self._runs))
        self.estimate = cache(self._estimate)
        self.difference = cache(self._difference)
        self.ratio = cache(self._ratio)

    def configurations(self, world: str) -> list[str]:
        """Return labels of the configurations with runs in a world, by strategy and then in natural order."""
        labels = [label for name, label in self._runs if name == world]
        return sorted(labels, key=lambda label: _place(self.first(world, label)))

    def runs(self, world: str, label: str) -> Sequence[RunRecord]:
        """Return the runs of a configuration in a world."""
        return list(self._runs.get((world, label), {}).values())

    def first(self, world: str, label: str) -> RunRecord:
        """Return any run of a configuration, which tells what the configuration is."""
        return next(iter(self._runs[world, label].values()))

    def supervision(self, world: str, label: str) -> SupervisionConfig | None:
        """Return the supervision of a supervised configuration; None for others."""
        record = self.first(world, label)
        if record.strategy not in (Strategy.PEVR, Strategy.EVA):
            return None
        return SupervisionConfig.model_validate(record.knobs.get("supervision", {}))

    def near_alone(self, world: str) -> str | None:
        """Return the configuration in which the near agent works alone."""
        return self._alone(world, Strategy.DEVICE)

    def far_alone(self, world: str) -> str | None:
        """Return the configuration in which the far agent works alone."""
        return self._alone(world, Strategy.CLOUD)

    def hybrids(self, world: str) -> list[str]:
        """Return the configurations in which both sides take part; without oracles, and without shadows, which only measure."""
        return [label for label in self.configurations(world) if self._is_hybrid(world, label)]

    def family(self, world: str, strategy: Strategy) -> list[str]:
        """Return the hybrids of one strategy with the near side as executor."""
        return [
            label for label in self.hybrids(world) if self.first(world, label).strategy == strategy and not self.is_reversed(world, label)
        ]

    def supervised(self, world: str) -> list[str]:
        """Return the hybrids with a supervisor, pevr and eva, with the near side as executor."""
        return [label for strategy in (Strategy.PEVR, Strategy.EVA) for label in self.family(world, strategy)]

    def is_reversed(self, world: str, label: str) -> bool:
        """Return True if the far side works and the near one supervises."""
        supervision = self.supervision(world, label)
        return supervision is not None and supervision.executor == "far"

    def is_shadow(self, world: str, label: str) -> bool:
        """Return True if verdicts are recorded and change nothing."""
        supervision = self.supervision(world, label)
        return supervision is not None and supervision.shadow

    def best(self, world: str, labels: Iterable[str], measure: str = "score") -> str | None:
        """Return the label with the highest mean; the cheaper one of equals."""
        estimates = {label: self.estimate(world, label, measure) for label in labels}
        known = {label: estimate.value for label, estimate in estimates.items() if estimate is not None}
        return max(known, key=lambda label: (known[label], -self._dollars(world, label)), default=None)

    def common(self, world: str, labels: Sequence[str]) -> list[tuple[str, int]]:
        """Return the tasks, with their seeds, that all of these configurations have run."""
        first, *others = (self._runs.get((world, label), {}) for label in labels)
        return [run for run in first if all(run in other for other in others)]

    def solved(self, world: str, *, near: str, far: str, hybrid: str) -> Solved:
        """Count which of the three solved what, over the tasks that all have run."""
        runs = [self._runs[world, label] for label in (near, far, hybrid)]
        counts = Counter(tuple(each[task].success for each in runs) for task in self.common(world, [near, far, hybrid]))
        names = ("none", "hybrid_only", "far_only", "far_and_hybrid", "near_only", "near_and_hybrid", "near_and_far", "all_three")
        return Solved(**{name: counts[bool(region & 4), bool(region & 2), bool(region & 1)] for region, name in enumerate(names)})

    def hindsight(self, world: str, labels: Sequence[str], single: str) -> IntervalEstimate | None:
        """Return the gain of a perfect choice: the share of tasks that any configuration solves, less the share that `single` solves."""
        tasks = self.common(world, [single, *labels])
        if not tasks:
            return None
        union = self._units((task, float(any(self._runs[world, label][task].success for label in labels))) for task in tasks)
        alone = self._units((task, float(self._runs[world, single][task].success)) for task in tasks)
        return difference(union, alone)

    def verifier_errors(self, world: str, label: str) -> VerifierErrors | None:
        """Return the error rates of a shadow configuration's supervisor; None where no run was checked."""
        checked = [record for record in self.runs(world, label) if record.checks]
        if not checked:
            return None
        doubted = {id(record): any(check.verdict == "intervene" for check in record.checks) for record in checked}
        missed = (((record.task, record.seed), float(not doubted[id(record)] and not record.success)) for record in checked)
        alarmed = (((record.task, record.seed), float(doubted[id(record)] and record.success)) for record in checked)
        return VerifierErrors(
            runs=len(checked),
            false_negatives=mean(self._units(missed)),
            false_positives=mean(self._units(alarmed)),
        )

    def interventions(self, world: str, label: str) -> list[Interventions]:
        """Return runs and their median score by the number of interventions."""
        scores: dict[int, list[float]] = defaultdict(list)
        for record in self.runs(world, label):
            scores[record.interventions].append(record.score)
        return [Interventions(interventions=count, runs=len(scores[count]), median_score=median(scores[count])) for count in sorted(scores)]

    def context_growth(self, world: str, label: str) -> list[tuple[float, int]]:
        """Return for each executor turn the mean context in tokens and how many runs got that far."""
        lengths: dict[int, list[int]] = defaultdict(list)
        for record in self.runs(world, label):
            for turn, tokens in enumerate(record.context_tokens):
                lengths[turn].append(tokens)
        return [(sum(lengths[turn]) / len(lengths[turn]), len(lengths[turn])) for turn in sorted(lengths)]

    def _alone(self, world: str, strategy: Strategy) -> str | None:
        labels = [label for label in self.configurations(world) if self.first(world, label).strategy == strategy]
        return strategy.value if strategy.value in labels else next(iter(labels), None)

    def _is_hybrid(self, world: str, label: str) -> bool:
        record = self.first(world, label)
        return record.strategy not in (Strategy.DEVICE, Strategy.CLOUD) and not record.oracle and not self.is_shadow(world, label)

    def _dollars(self, world: str, label: str) -> float:
        estimate = self.estimate(world, label, "dollars")
        return estimate.value if estimate is not None else float("inf")

    def _estimate(self, world: str, label: str, measure: str) -> IntervalEstimate | None:
        values = self._values(world, label, measure)
        units = self._units(values.items())
        return mean(units) if units else None

    def _difference(self, world: str, first: str, second: str, measure: str = "score") -> IntervalEstimate | None:
        """Return the difference of means over the tasks that both have run."""
        one, other = self._pair(world, first, second, measure)
        return difference(one, other) if one else None

    def _ratio(self, world: str, first: str, second: str, measure: str) -> IntervalEstimate | None:
        """Return the ratio of means over the tasks that both have run; None where the second may be 0."""
        one, other = self._pair(world, first, second, measure)
        return ratio(one, other) if one else None

    def _pair(self, world: str, first: str, second: str, measure: str) -> tuple[Unit, Unit]:
        one, other = (self._values(world, label, measure) for label in (first, second))
        both = [run for run in one if run in other]
        return self._units((run, one[run]) for run in both), self._units((run, other[run]) for run in both)

    def _values(self, world: str, label: str, measure: str) -> dict[tuple[str, int], float]:
        values = {run: MEASURES[measure](record) for run, record in self._runs.get((world, label), {}).items()}
        return {run: value for run, value in values.items() if value is not None}

    @staticmethod
    def _units(values: Iterable[tuple[tuple[str, int], float]]) -> Unit:
        """Group values by task."""
        units: dict[str, list[float]] = defaultdict(list)
        for (task, _), value in values:
            units[task].append(value)
        return units


def _place(record: RunRecord) -> tuple[int, list[tuple[int, str]]]:
    """Return the sort key of a configuration in tables: pevr/8 comes before pevr/16."""
    parts = re.findall(r"\d+|\D+", record.configuration)
    return list(Strategy).index(Strategy(record.strategy)), [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def find_intervals(outcomes: Outcomes, world: str, strategy: Strategy) -> dict[int, str]:
    """Return one configuration of a strategy for each interval that it checks at, on schedule alone: the one with the shortest label."""
    found: dict[int, str] = {}
    for label, turns in _on_schedule(outcomes, world, strategy):
        if turns not in found or len(label) < len(found[turns]):
            found[turns] = label
    return found


def find_scheduled(outcomes: Outcomes, world: str) -> list[str]:
    """Return all configurations of pevr and eva that check on schedule alone."""
    return [label for strategy in (Strategy.PEVR, Strategy.EVA) for label, _ in _on_schedule(outcomes, world, strategy)]


def _on_schedule(outcomes: Outcomes, world: str, strategy: Strategy) -> Iterator[tuple[str, int]]:
    """Yield configurations that check on schedule alone, with the turns between two checks."""
    for label in outcomes.family(world, strategy):
        supervision = outcomes.supervision(world, label)
        if supervision is not None and supervision.interval is not None and not _waits_for_events(strategy, supervision):
            yield label, supervision.interval


def find_triggered(outcomes: Outcomes, world: str) -> list[str]:
    """Return the configurations of pevr and eva in which the supervisor speaks by fixed events alone, apart from a plan before the first
    step."""
    kinds = [
        (strategy, label, outcomes.supervision(world, label))
        for strategy in (Strategy.PEVR, Strategy.EVA)
        for label in outcomes.family(world, strategy)
    ]
    by_event = [(strategy, label, kind) for strategy, label, kind in kinds if kind is not None and kind.interval is None]
    return [label for strategy, label, kind in by_event if _waits_for_events(strategy, kind) and not kind.is_navigated]


def plan_only(outcomes: Outcomes, world: str) -> str | None:
    """Return the configuration of pevr that plans and never checks."""
    for label in outcomes.family(world, Strategy.PEVR):
        supervision = outcomes.supervision(world, label)
        if supervision is not None and supervision.interval is None and not _waits_for_events(Strategy.PEVR, supervision):
            return label
    return None


def _waits_for_events(strategy: Strategy, supervision: SupervisionConfig) -> bool:
    return bool(supervision.triggers) or (strategy is Strategy.PEVR and (supervision.plan_below is not None or supervision.is_navigated))
