"""Observers of runs: spans and metrics are made from what a run tells them while it happens."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import ParamSpec, Protocol, TypeVar

from ...protocols import AgentCard, FinishReason, Message, StepRequest, ToolCall, ToolResult
from ..task.events import AttemptEnded, AttemptStarted, TaskEvent
from ..task.labels import Label
from ..task.results import Attempt, Call, Result
from ..task.task import Task
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
