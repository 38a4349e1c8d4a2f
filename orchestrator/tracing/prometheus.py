"""Metrics in the text format of Prometheus. Labels have few values: no metric names a user, a session, a prompt or a run."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from threading import Lock
from typing import Final

from ...protocols import EnergySource, PrivacyViolation, Side
from ..task.results import Attempt, Result
from .observing import EndedRun, EndedStep, EndedTool

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_STEP: Final = ("side", "agent", "model")


@dataclass(frozen=True)
class Family:
    """The values of one metric, by the values of its labels."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    kind: str = "counter"
    values: dict[tuple[str, ...], float] = field(default_factory=dict)

    def add(self, amount: float, *labels: str) -> None:
        """Add an amount to the value under these labels."""
        self.values[labels] = self.values.get(labels, 0.0) + amount

    def lines(self) -> Iterator[str]:
        """Yield the metric as Prometheus reads it."""
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} {self.kind}"
        for labels, value in self.values.items():
            yield _line(self.name, zip(self.labels, labels, strict=True), value)


@dataclass(frozen=True)
class HistogramFamily:
    """The distributions of one metric of seconds, by the values of its labels."""

    name: str
    help: str
    labels: tuple[str, ...]
    counts: dict[tuple[str, ...], list[int]] = field(default_factory=dict)
    sums: dict[tuple[str, ...], float] = field(default_factory=dict)

    def observe(self, seconds: float, *labels: str) -> None:
        """Count an observation under these labels."""
        counts = self.counts.setdefault(labels, [0] * (len(_BUCKETS) + 1))
        counts[next((place for place, bound in enumerate(_BUCKETS) if seconds <= bound), len(_BUCKETS))] += 1
        self.sums[labels] = self.sums.get(labels, 0.0) + seconds

    def lines(self) -> Iterator[str]:
        """Yield the metric as Prometheus reads it."""
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} histogram"
        for labels, counts in self.counts.items():
            named, total = tuple(zip(self.labels, labels, strict=True)), 0
            for bound, count in zip((*map(str, _BUCKETS), "+Inf"), counts, strict=True):
                total += count
                yield _line(f"{self.name}_bucket", (*named, ("le", bound)), total)
            yield _line(f"{self.name}_sum", named, self.sums[labels])
            yield _line(f"{self.name}_count", named, total)


class PrometheusMeter:
    """Counts what happens in the runs of one `Hybrid`, for `GET /metrics`. Calls may come from any thread."""

    def __init__(self, saved: Callable[[Result], Decimal | None]) -> None:
        """Count nothing yet. `saved` estimates the US dollars that a run saved against far alone."""
        self._estimate = saved
        self._lock = Lock()
        self._runs = Family("nearfar_runs_total", "Runs that ended.", ("strategy", "outcome", "side"))
        self._attempts = Family("nearfar_attempts_total", "Attempts that ended.", ("strategy", "side", "agent", "outcome"))
        self._escalations = Family(
            "nearfar_escalations_total", "Attempts after which another agent took over.", ("strategy", "side", "agent", "reason")
        )
        self._tokens = Family("nearfar_tokens_total", "Tokens of steps.", (*_STEP, "kind"))
        self._dollars = Family("nearfar_dollars_total", "US dollars of steps whose price is known.", _STEP)
        self._unpriced = Family("nearfar_unpriced_steps_total", "Steps of unknown price.", _STEP)
        about = "US dollars saved: by the cache, and by estimate against far alone, below 0 where that would have been cheaper."
        self._saved = Family("nearfar_saved_dollars", about, ("by",), "gauge")
        self._joules = Family("nearfar_joules_total", "Energy of this device.", ("agent", "source"))
        self._hits = Family("nearfar_cache_hits_total", "Steps answered from the cache.", ("side", "agent"))
        self._blocked = Family("nearfar_egress_blocked_total", "Requests held back because they may not leave.", ("agent", "role"))
        self._first_tokens = HistogramFamily("nearfar_first_token_seconds", "Seconds until the first piece of a reply.", _STEP)
        self._run_seconds = HistogramFamily("nearfar_run_seconds", "Seconds of runs.", ("strategy", "outcome"))

    def step_ended(self, step: EndedStep) -> None:
        """Count the tokens, dollars and joules of a step."""
        call, usage = step.call, step.call.usage
        labels = call.side.value, call.agent, step.asked.card.model
        counts = {
            "input": usage.input_tokens,
            "output": usage.output_tokens,
            "cached": usage.cached_tokens,
            "cache_write": usage.cache_write_tokens,
            "reasoning": usage.reasoning_tokens,
        }
        with self._lock:
            for kind, count in counts.items():
                self._tokens.add(count, *labels, kind)
            if call.dollars is None:
                self._unpriced.add(1, *labels)
            else:
                self._dollars.add(float(call.dollars), *labels)
            if call.side is Side.NEAR and call.energy.source is not EnergySource.UNAVAILABLE:
                self._joules.add(call.energy.joules or 0.0, call.agent, call.energy.source.value)
            if call.saved is not None:
                self._hits.add(1, call.side.value, call.agent)
                self._saved.add(float(call.saved_dollars or 0), "cache")
            if call.first_token_seconds is not None:
                self._first_tokens.observe(call.first_token_seconds, *labels)
            if call.error == PrivacyViolation.__name__:
                self._blocked.add(1, call.agent, call.role)

    def attempt_ended(self, attempt: Attempt, strategy: str) -> None:
        """Count an attempt."""
        with self._lock:
            self._attempts.add(1, strategy, attempt.side.value, attempt.agent, attempt.outcome)

    def escalated(self, attempt: Attempt, strategy: str) -> None:
        """Count that another agent has taken over after this `attempt`."""
        with self._lock:
            self._escalations.add(1, strategy, attempt.side.value, attempt.agent, reason_class(attempt))

    def tool_ended(self, tool: EndedTool) -> None:
        """Do nothing: names of tools are no label."""

    def egress_blocked(self, agent: str, role: str) -> None:
        """Count a request that was held back because it may not leave."""
        with self._lock:
            self._blocked.add(1, agent, role)

    def run_ended(self, run: EndedRun) -> None:
        """Count a run."""
        strategy, side = run.task.policy.strategy.value, "" if run.result is None else run.result.side.value
        saved = None if run.result is None else self._estimate(run.result)
        with self._lock:
            self._runs.add(1, strategy, run.outcome, side)
            self._run_seconds.observe(run.seconds, strategy, run.outcome)
            if saved is not None:
                self._saved.add(float(saved), "far_alone")

    def text(self, gauges: Sequence[Family] = ()) -> str:
        """Return all metrics, and the `gauges` that were read just now, in the text format."""
        families = [value for value in vars(self).values() if isinstance(value, Family | HistogramFamily)]
        with self._lock:
            return "".join(f"{line}\n" for family in (*families, *gauges) for line in family.lines())


def reason_class(attempt: Attempt) -> str:
    """Return the class of reasons for which an attempt was given up: an error's class, or the kind of evidence."""
    if attempt.error is not None:
        return attempt.error
    return "ungrounded" if attempt.is_grounded is False else "evidence"


def gauge(name: str, help: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]) -> Family:
    """Return a metric that was read just now."""
    return Family(name, help, labels, "gauge", dict(values))


def _line(name: str, labels: Iterable[tuple[str, str]], value: float) -> str:
    named = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return f"{name}{{{named}}} {value!r}" if named else f"{name} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
