"""Record a run while it happens. Taking an entry takes microseconds: the writing thread does the rest, and redacts credentials."""

import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Final

from ...protocols import ApprovalNeeded, Message, NearfarError, Side, StepRequest, StoreError, ToolCall
from ..budgets import Spent
from ..storage import DatabaseSession
from ..task import Task
from ..task.events import AgentText, CallEnded, TaskEvent, TaskFinished, ToolFinished, ToolStarted
from ..task.labels import Label
from ..task.results import Result
from ..task.tools import Tool
from . import (
    AgentStepped,
    AnyEntry,
    EntriesLost,
    Happened,
    Labelled,
    Outcome,
    RunBegan,
    RunEnded,
    ToolRan,
    TracedTool,
    TraceStore,
    has_entries,
    insert_entries,
)
from .observing import AskedStep, EndedStep, EndedTool, ObservedRun, Observers

logger = logging.getLogger(__name__)

MOST_WAITING: Final = 10_000
"""Most entries of a run that wait to be written; further ones are counted as lost."""

_Making = Callable[[], AnyEntry]
_Key = tuple[str, str, str]


class EntryQueue:
    """Entries of one run on their way to the store. No failure there reaches the run: lost entries are counted, and logged."""

    def __init__(self, store: TraceStore, task: Task) -> None:
        self.started = time.monotonic()
        self._store = store
        self._run = task.idempotency_key
        self._user = task.user
        self._waiting: deque[_Making] = deque()
        self._is_submitted = False
        self._is_begun = False
        """Entries of the run were written."""
        self._lost = 0
        self._requests: dict[_Key, tuple[Message, ...]] = {}
        """The last request of each agent in each role; only the writing thread uses it."""

    @property
    def now(self) -> float:
        return time.monotonic() - self.started

    def put(self, make: _Making) -> None:
        """Queue an entry; `make` makes it later."""
        if len(self._waiting) >= MOST_WAITING:
            self._lost += 1
            return
        self._waiting.append(make)
        if self._is_submitted:
            return
        self._is_submitted = True
        try:
            self._store.submit(self._write).add_done_callback(self._note)
        except StoreError as error:
            self._drop_waiting(error)

    def step(self, key: _Key, request: StepRequest, **fields: object) -> AgentStepped:
        """Return the entry of a step, with the new part of the request and without the providers' encrypted states.
        Attachments are recorded by their digests."""
        before, now = self._requests.get(key, ()), request.messages
        kept = next((place for place, pair in enumerate(zip(before, now, strict=False)) if pair[0] != pair[1]), min(len(before), len(now)))
        self._requests[key] = now
        messages = [message.without_attachments.without_state for message in now[kept:]]
        return AgentStepped.model_validate({"kept": kept, "messages": messages, "sensitivity": request.sensitivity, **fields})

    def _write(self, session: DatabaseSession) -> None:
        self._is_submitted = False
        lost, self._lost = self._lost, 0
        entries: list[AnyEntry] = [EntriesLost(at=self.now, count=lost)] if lost else []
        try:
            while self._waiting:
                entries.append(self._waiting.popleft()())
            contents = [redact_credentials(entry.model_dump_json()) for entry in entries]
            if self._is_begun and not has_entries(session, self._run):
                return  # it was forgotten meanwhile, and must not come back
            insert_entries(
                session, self._run, self._user, [(entry.type, content) for entry, content in zip(entries, contents, strict=True)]
            )
            self._is_begun = True
        except BaseException:
            self._lost += lost + len(entries)
            raise

    def _note(self, writing: "Future[None]") -> None:
        error = writing.exception()
        if error is not None:
            self._drop_waiting(error)

    def _drop_waiting(self, error: BaseException) -> None:
        self._is_submitted = self._is_begun = False
        self._requests.clear()  # the next requests cannot refer to lost ones
        self._lost += len(self._waiting)
        self._waiting.clear()
        logger.warning("run %s could not be traced: %s", self._run, error)


@dataclass(frozen=True)
class TracedStep:
    """A step under way, from `RunTrace.begin_step` to `RunTrace.step`."""

    trace: "RunTrace"
    asked: AskedStep
    span: object

    def current(self) -> AbstractContextManager[None]:
        """Make the step's span the current one within the block, if it has one."""
        observed = self.trace.observed
        return nullcontext() if observed is None else observed.current(self.span)


class RunTrace:
    """Records one run, or a part of it, and tells its observers.

    Args:
        queue: takes the entries of the trace; None: none is kept.
        observed: tells the observers; None: there are none.
    """

    def __init__(
        self, queue: EntryQueue | None, tools: Mapping[str, Tool], scope: str = "", *, observed: ObservedRun | None = None
    ) -> None:
        self._queue = queue
        self._tools = tools
        self._scope = scope
        self.observed = observed
        self._label = Label()
        self._started: dict[str, tuple[ToolCall, float]] = {}
        self._spans: dict[str, object] = {}
        """The spans of running tool calls, by the calls' ids."""

    @classmethod
    def of(cls, task: Task, tools: Mapping[str, Tool], *, store: TraceStore | None, observers: Observers | None) -> "RunTrace":
        """Return the recorder of a run. `store`: keeps its trace; None: none is kept."""
        queue = None if store is None else EntryQueue(store, task)
        return cls(queue, tools, observed=None if observers is None else ObservedRun(observers, task))

    def within(self, scope: str) -> "RunTrace":
        """Return the recorder of a part of the run."""
        return RunTrace(self._queue, self._tools, f"{self._scope}, {scope}" if self._scope else scope, observed=self.observed)

    def recalled(self, seconds: float, items: int) -> None:
        """Note that the memory was read just now, for so many `seconds`, before the run was prepared."""
        if self.observed is not None:
            self.observed.recalled(seconds, items)

    def record_event(self, event: TaskEvent) -> None:
        """Record an event. Agents' texts are recorded with their steps."""
        match event:
            case AgentText() | CallEnded() | TaskFinished():
                return
            case ToolStarted():
                self._started[event.call.id] = (event.call, time.monotonic())
            case ToolFinished():
                self._record_tool(event)
            case _:
                self._put(partial(Happened, event=event))
                if self.observed is not None:
                    self.observed.event(event, self._scope)

    def begin_step(self, asked: AskedStep) -> TracedStep:
        """Tell the observers that an agent is about to be asked."""
        return TracedStep(self, asked, None if self.observed is None else self.observed.begin_step(asked, self._scope))

    def step(self, traced: TracedStep, ended: EndedStep, *, reserved: Spent | None) -> None:
        """Record a request to an agent, and its reply or failure."""
        call = ended.call
        if self.observed is not None:
            self.observed.end_step(traced.span, ended)
        if self._queue is None:
            return
        self._record_label(ended.label)
        key = (self._scope, call.agent, call.role)
        step = partial(self._queue.step, key, ended.asked.request, call=call, reply=ended.reply, label=ended.label)
        if reserved is not None:
            step = partial(step, reserved_tokens=reserved.tokens, reserved_dollars=reserved.dollars)
        self._put(step)

    def egress_blocked(self, agent: str, role: str) -> None:
        """Tell the observers that a request was held back because it may not leave."""
        if self.observed is not None:
            self.observed.egress_blocked(agent, role)

    @contextmanager
    def running_tool(self, call: ToolCall) -> Iterator[None]:
        """Make the span of a tool call the current one while the tool runs. `ToolFinished` ends it."""
        if self.observed is None:
            yield
            return
        span = self._spans[call.id] = self.observed.begin_tool(call, self._scope)
        with self.observed.current(span):
            yield

    @contextmanager
    def record_run(self, task: Task, agents: Mapping[str, Side]) -> Iterator[None]:
        """Record the beginning of the work on a run, and its end if the block raises; otherwise call `conclude`."""
        tools = tuple(TracedTool(spec=tool.spec, declared=tool.declared) for tool in self._tools.values())
        shown = tuple(message.without_attachments for message in task.messages)
        task = task.model_copy(update={"messages": shown})
        self._put(partial(RunBegan, clock=time.time(), task=task, recalled=task.recalled, tools=tools, agents=agents))
        try:
            with nullcontext() if self.observed is None else self.observed.begun():
                yield
        except NearfarError as error:
            self._end("waiting" if isinstance(error, ApprovalNeeded) else "failed", error, error.message)
            raise
        except BaseException as error:  # recorded, and raised again
            self._end("stopped", error)
            raise

    @contextmanager
    def observed_to_its_end(self) -> Iterator[None]:
        """Tell the observers at the end of the block that the run has ended, if it has no result by then: its reader may have left."""
        error: BaseException | None = None
        try:
            yield
        except BaseException as caught:  # told, and raised again
            error = caught
            raise
        finally:
            if self.observed is not None:
                self.observed.end("failed" if isinstance(error, NearfarError) else "stopped", error=error)

    def conclude(self, result: Result) -> None:
        """Record the outcome."""
        fields = result.model_dump(include={"text", "agent", "side", "reasons", "label", "recalled", "speculation"})
        self._put(partial(RunEnded, outcome="done", near=result.near, far=result.far, **fields))
        if self.observed is not None:
            self.observed.end("done", result=result)

    def _end(self, outcome: Outcome, error: BaseException, text: str = "") -> None:
        self._put(partial(RunEnded, outcome=outcome, error=type(error).__name__, text=text))
        if self.observed is not None:
            self.observed.end(outcome, error=error)

    def _record_tool(self, event: ToolFinished) -> None:
        result = event.result
        known, span = self._started.pop(result.call_id, None), self._spans.pop(result.call_id, None)
        tool = self._tools.get(result.name)
        if known is None or tool is None:
            return  # there is no such tool, as the agent was told: nothing has happened
        call, since = known
        ended = EndedTool(
            call=call, result=result, seconds=time.monotonic() - since, label=tool.label_of(result), effect=tool.declared.effect
        )
        if self.observed is not None:
            self.observed.end_tool(span, ended)
        self._put(partial(ToolRan, call=call, result=result, seconds=ended.seconds, label=ended.label, effect=ended.effect))
        self._record_label(ended.label)

    def _record_label(self, label: Label) -> None:
        whole = self._label.joined(label)
        if whole != self._label:
            self._label = whole
            self._put(partial(Labelled, label=whole))

    def _put(self, make: Callable[..., AnyEntry]) -> None:
        if self._queue is not None:
            self._queue.put(partial(make, at=self._queue.now, scope=self._scope))


REDACTED: Final = "[redacted]"
_SECRETS: Final = (
    ("bearer ", r"(?i:(?<=\bbearer )[\w.~+/=-]{8,})"),
    ("key=", r"(?i:(?<=[?&]key=)[^&\s\"\\]+)"),
    ("PRIVATE KEY-----", r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^\"]*?-----END [A-Z ]*PRIVATE KEY-----"),
    *((f"{word}-", rf"\b{word}-[A-Za-z0-9][\w*.-]{{15,}}") for word in ("sk", "pk", "rk", "key")),  # OpenAI, Stripe and those that follow
    ("AIza", r"\bAIza[\w-]{20,}"),
    ("AKIA", r"\bAKIA[0-9A-Z]{16}\b"),
    *((f"gh{letter}_", rf"\bgh{letter}_\w{{20,}}") for letter in "pousr"),
    ("xox", r"\bxox[abeoprs]-[\w-]{10,}"),
    ("eyJ", r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+"),  # JSON Web Tokens
)
"""A substring in lower case, and the pattern of a credential that contains it. Most texts hold no substring, and looking for it is fast."""
_PATTERNS: Final = tuple((mark.lower(), re.compile(pattern)) for mark, pattern in _SECRETS)


def redact_credentials(text: str) -> str:
    """Return the text without anything that looks like a key, a token or a private key."""
    lowered = text.lower()
    for mark, pattern in _PATTERNS:
        if mark in lowered:
            text = pattern.sub(REDACTED, text)
    return text
