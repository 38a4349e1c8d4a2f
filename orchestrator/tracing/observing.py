"""Observers of runs: spans and metrics are made from what a run tells them while it happens.

`PrometheusMeter` keeps metrics in the text format of Prometheus. Labels have few values: none names a user, a session, a prompt or a run.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from decimal import Decimal
from threading import Lock
from typing import Final, ParamSpec, Protocol, TypeVar

from ...protocols import AgentCard, EnergySource, FinishReason, Message, PrivacyViolation, Side, StepRequest, ToolCall, ToolResult
from ..task import Task
from ..task.events import AttemptEnded, AttemptStarted, TaskEvent
from ..task.labels import Label
from ..task.results import Attempt, Call, Result
from ..task.tools import Effect

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class AskedStep:
    """A step that an agent is about to take."""

    agent: str
    """Name of the agent."""
    card: AgentCard
    role: str
    """The role in which it is asked; see `Call.role`."""
    request: StepRequest
    """The request as it is sent, with placeholders in the place of private values."""
    server: tuple[str, int] | None = None
    """Host and port of the server that is asked; None where the agent runs in this process."""


@dataclass(frozen=True, kw_only=True)
class EndedStep:
    """A step that has ended, well or not."""

    asked: AskedStep
    call: Call
    reply: Message
    """The reply; what was received of it, where the step failed."""
    label: Label
    """Label of the request's content."""
    gaps: Sequence[float] = ()
    """Seconds between each two pieces of the reply."""

    @property
    def finish(self) -> FinishReason | None:
        """Return the reason why the step ended; None: it failed."""
        return self.call.finish_reason if self.call.error is None else None


@dataclass(frozen=True, kw_only=True)
class EndedTool:
    """A tool call that has run."""

    call: ToolCall
    result: ToolResult
    seconds: float
    label: Label
    """Label of the result."""
    effect: Effect


@dataclass(frozen=True, kw_only=True)
class EndedRun:
    """A process has stopped working on a run."""

    task: Task
    seconds: float
    """Seconds since this process began to work on it."""
    result: Result | None = None
    """None: there is no answer."""
    error: BaseException | None = None
    """The error that ended it; None for an answer."""
    outcome: str = "done"
    """How it ended; see `RunEnded.outcome`."""

    @property
    def error_class(self) -> str | None:
        """Return the name of the error's class; None for an answer, and where the run only waits for approval."""
        return None if self.error is None or self.outcome == "waiting" else type(self.error).__name__


class RunMeter(Protocol):
    """Measures what happens in all runs. It is called in the event loop and has to return at once."""

    def step_ended(self, step: EndedStep) -> None:
        """Count a step."""
        ...

    def attempt_ended(self, attempt: Attempt, strategy: str) -> None:
        """Count an attempt."""
        ...

    def escalated(self, attempt: Attempt, strategy: str) -> None:
        """Count that another agent has taken over after this `attempt`."""
        ...

    def tool_ended(self, tool: EndedTool) -> None:
        """Count a tool call."""
        ...

    def egress_blocked(self, agent: str, role: str) -> None:
        """Count a request that was held back because it may not leave."""
        ...

    def run_ended(self, run: EndedRun) -> None:
        """Count a run."""
        ...


class SpansOfRun(Protocol):
    """The spans of one run. An object that a method begins is given back to the one that ends it."""

    def begin(self, asked: float, recalled: tuple[float, int] | None) -> object:
        """Begin the run's own span. `asked`: when it was asked for, by the clock; `recalled`: when the memory was read by, and how many
        items were found."""
        ...

    def current(self, span: object) -> AbstractContextManager[None]:
        """Make a span the current one within the block, so that the spans of others become its children."""
        ...

    def event(self, event: TaskEvent, scope: str) -> None:
        """Note an event of the part `scope` of the run."""
        ...

    def begin_step(self, step: AskedStep, scope: str) -> object:
        """Begin the span of a step."""
        ...

    def end_step(self, span: object, step: EndedStep) -> None:
        """End the span of a step."""
        ...

    def begin_tool(self, call: ToolCall, scope: str) -> object:
        """Begin the span of a tool call."""
        ...

    def end_tool(self, span: object, tool: EndedTool) -> None:
        """End the span of a tool call."""
        ...

    def end(self, run: EndedRun) -> None:
        """End all spans that are still open, the run's own last."""
        ...


@dataclass
class Observers:
    """The observers of the runs of one `Hybrid`."""

    spans: Callable[[Task], SpansOfRun] | None = None
    """Makes the spans of a run; None: there are none."""
    meters: list[RunMeter] = field(default_factory=list)


class ObservedRun:
    """One run, as its observers see it. No failure of an observer reaches the run: it is logged."""

    def __init__(self, observers: Observers, task: Task) -> None:
        self._task = task
        self._strategy = task.policy.strategy.value
        self._meters = tuple(observers.meters)
        self._spans = None if observers.spans is None else _told(observers.spans, task)
        self._left: dict[str, Attempt] = {}
        """The attempt that was given up last, by the part of the run: the next one takes over."""
        self._asked = time.time()
        self._started = time.monotonic()
        self._recalled: tuple[float, int] | None = None
        self._is_open = False

    def recalled(self, seconds: float, items: int) -> None:
        """Note that the memory was read just now, for so many `seconds`, before the run was prepared."""
        self._recalled = (self._asked, items)
        self._asked -= seconds
        self._started -= seconds

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Begin the run; within the block, its span is the current one."""
        self._is_open = True
        span = None if self._spans is None else _told(self._spans.begin, self._asked, self._recalled)
        with self.current(span):
            yield

    def current(self, span: object) -> AbstractContextManager[None]:
        """Make a span the current one within the block."""
        return nullcontext() if self._spans is None or span is None else self._spans.current(span)

    def event(self, event: TaskEvent, scope: str) -> None:
        """Tell of an event of the part `scope` of the run."""
        if self._spans is not None:
            _told(self._spans.event, event, scope)
        if isinstance(event, AttemptStarted) and (left := self._left.pop(scope, None)) is not None:
            for meter in self._meters:
                _told(meter.escalated, left, self._strategy)
        if isinstance(event, AttemptEnded):
            if event.attempt.outcome != "accepted":
                self._left[scope] = event.attempt
            for meter in self._meters:
                _told(meter.attempt_ended, event.attempt, self._strategy)

    def begin_step(self, step: AskedStep, scope: str) -> object:
        """Tell that a step begins; returns its span."""
        return None if self._spans is None else _told(self._spans.begin_step, step, scope)

    def end_step(self, span: object, step: EndedStep) -> None:
        """Tell that a step has ended."""
        if self._spans is not None and span is not None:
            _told(self._spans.end_step, span, step)
        for meter in self._meters:
            _told(meter.step_ended, step)

    def begin_tool(self, call: ToolCall, scope: str) -> object:
        """Tell that a tool call begins; returns its span."""
        return None if self._spans is None else _told(self._spans.begin_tool, call, scope)

    def end_tool(self, span: object, tool: EndedTool) -> None:
        """Tell that a tool call has ended."""
        if self._spans is not None and span is not None:
            _told(self._spans.end_tool, span, tool)
        for meter in self._meters:
            _told(meter.tool_ended, tool)

    def egress_blocked(self, agent: str, role: str) -> None:
        """Tell that a request was held back because it may not leave."""
        for meter in self._meters:
            _told(meter.egress_blocked, agent, role)

    def end(self, outcome: str, *, result: Result | None = None, error: BaseException | None = None) -> None:
        """Tell that the work on the run has ended. Only the first end counts."""
        if not self._is_open:
            return
        self._is_open = False
        seconds = time.monotonic() - self._started
        run = EndedRun(task=self._task, seconds=seconds, result=result, error=error, outcome=outcome)
        if self._spans is not None:
            _told(self._spans.end, run)
        for meter in self._meters:
            _told(meter.run_ended, run)


def _told(tell: Callable[P, T], *given: P.args, **named: P.kwargs) -> T | None:
    """Call an observer; return None where it fails."""
    try:
        return tell(*given, **named)
    except Exception as failed:  # a task boundary: exporters and their processors are the app's own code, and no run fails with them
        logger.warning("an observer of runs has failed: %s", failed)
        return None


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
