"""Agents for tests: `ScriptedAgent` gives scripted replies, and `ReplayAgent` repeats outcomes that `record` wrote to a file.

A recording is a JSON Lines file: the agent's card, then one outcome per line. It holds the text of the conversations.
"""

import json
import math
import re
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

import anyio
from pydantic import ValidationError, field_validator

from .agent import Agent, AgentCard, Capabilities, Limits, Prices, Side, stream
from .errors import (
    BY_REASON,
    ConfigError,
    ContextOverflow,
    DeadlineExceeded,
    InvalidOutput,
    NearfarError,
    NotFound,
    Unavailable,
    travelling_class,
)
from .steps import (
    Finished,
    FinishReason,
    LikelyToken,
    StepEvent,
    StepRequest,
    TextDelta,
    TokenLogprob,
    ToolCall,
    ToolCalled,
    ToolChoice,
    Usage,
    Value,
)
from .validation import check_arguments, check_request, parse_output

ScriptItem: TypeAlias = str | ToolCall | Finished | NearfarError | anyio.Event
"""Text (one `TextDelta`), a call (one `ToolCalled`), an error to raise, an event to wait for, or a `Finished` instead of the usual one."""

Reply: TypeAlias = ScriptItem | Sequence[ScriptItem]
Script: TypeAlias = Iterable[Reply] | Callable[[StepRequest], Reply]
"""One reply per step, in order, or a function from the request to its reply."""

Pace: TypeAlias = float | Callable[[], Awaitable[object]]
"""Seconds before each event, or a function whose result is awaited before each event."""

_TOKEN = re.compile(r"\w+|[^\w\s]")
_SPACED_TOKEN = re.compile(r"\s*(?:\w+|[^\w\s])|\s+$")


@lru_cache(maxsize=1024)  # each step counts the whole conversation
def count_tokens(text: str) -> int:
    """Count words and punctuation marks, which are the tokens of a `ScriptedAgent`; an attachment is one, too."""
    return len(_TOKEN.findall(text))


class ScriptedAgent:
    """Answers the n-th step with the n-th reply of its script.

    It enforces what a real agent enforces: tool arguments, `output_schema`, `stop`, `max_output_tokens`, the context window,
    `timeout`, `limits.concurrency` and privacy. `NotFound` says that the script has no reply left.
    """

    def __init__(
        self,
        script: Script,
        *,
        name: str = "scripted",
        side: Side = Side.NEAR,
        model: str = "scripted",
        capabilities: Capabilities | None = None,
        limits: Limits | None = None,
        prices: Prices | None = None,
        confidence: float | None = None,
        pace: Pace = 0.0,
    ) -> None:
        """Make an agent that says what its script says.

        Args:
            script: the replies in order, or a function that makes one of each request. A reply is a text, its pieces, tool calls, or an
                error to raise
            name: its name on its card
            side: the side that it counts as
            model: the name of its model on its card
            capabilities: what its card claims; None: tools, JSON Schema, cancellation and log-probabilities
            limits: the limits on its card; None: 1024 steps at once
            prices: dollars per million tokens; None: unknown
            confidence: of every reply, 0 to 1; None: it states none
            pace: seconds before each piece of a reply, or a function that waits
        """
        claimed = capabilities or Capabilities(tools=True, json_schema=True, cancellation=True, logprobs=True)
        self._card = AgentCard(
            name=name,
            side=side,
            model=model,
            description="says what its script says",
            capabilities=claimed.model_copy(update={"confidence": confidence is not None}),
            limits=limits or Limits(concurrency=1024),
            prices=prices,
        )
        self._answer = script if callable(script) else _in_order(script, name)
        self._confidence = confidence
        self._pace = _as_waiting(pace)
        self._slots = anyio.Semaphore(self._card.limits.concurrency)
        self._waits: set[anyio.CancelScope] = set()
        self._closed = False
        self.requests: list[StepRequest] = []
        """Every request, in the order of their arrival."""
        self.live_steps = 0
        """Steps that have started and not ended."""
        self.cancelled_steps = 0
        """Steps whose reader left before the end."""
        self.tokens_decoded = 0
        """Events produced by all steps together."""

    @property
    def card(self) -> AgentCard:
        return self._card

    async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
        """Stream the next reply of the script; the `request` is kept in `requests`."""
        self.requests.append(request)
        self.live_steps += 1
        deadline = None if request.timeout is None else anyio.current_time() + request.timeout
        holds_slot = False
        is_over = False
        try:
            plan = self._plan(request)
            await self._take_slot(deadline)
            holds_slot = True
            for item in plan.items:
                if event := await self._perform(item, request, deadline):
                    self.tokens_decoded += 1
                    yield event
            last = self._finish(plan, request)
            is_over = True
            yield last
        except Exception:
            is_over = True  # it has failed, and its reader is still there
            raise
        finally:
            self.cancelled_steps += not is_over
            self.live_steps -= 1
            if holds_slot:
                self._slots.release()

    async def aclose(self) -> None:
        """Refuse further steps; running ones raise `Unavailable` at their next event."""
        self._closed = True
        for wait in tuple(self._waits):
            wait.cancel()

    def _plan(self, request: StepRequest) -> "_Plan":
        self._check_open()
        check_request(self._card, request)
        input_tokens = _input_tokens(request)
        window = self._card.limits.context_tokens
        if window is not None and input_tokens >= window:
            raise ContextOverflow(f"the prompt has {input_tokens} tokens and the context window {window}", hint="shorten the conversation")
        bounds = [request.max_output_tokens, self._card.limits.max_output_tokens, None if window is None else window - input_tokens]
        reply = self._answer(request)
        items = reply if isinstance(reply, Sequence) and not isinstance(reply, str) else (reply,)
        max_tokens = min((bound for bound in bounds if bound is not None), default=None)
        kept, reason, stop = _cut(items, stop=request.stop, max_tokens=max_tokens)
        return _Plan(items=kept, reason=reason, stop=stop, input_tokens=input_tokens)

    async def _perform(self, item: ScriptItem, request: StepRequest, deadline: float | None) -> StepEvent | None:
        """Return the event of one script item, at its time."""
        if isinstance(item, anyio.Event):
            await self._wait(item.wait, deadline)
            return None
        if isinstance(item, Finished):
            return None
        if self._pace is not None:
            await self._wait(self._pace, deadline)
        self._check_open()
        _check_deadline(deadline)
        if isinstance(item, NearfarError):
            raise item
        if isinstance(item, str):
            return TextDelta(text=item) if item else None
        check_arguments(item, () if request.tool_choice is ToolChoice.NONE else request.tools)
        return ToolCalled(call=item)

    def _finish(self, plan: "_Plan", request: StepRequest) -> Finished:
        self._check_open()
        if plan.finished is not None:
            return plan.finished
        if request.tool_choice is ToolChoice.REQUIRED and plan.reason is FinishReason.STOP:
            raise InvalidOutput("tool_choice is 'required' and the script calls no tool")
        if request.output_schema is not None and plan.reason is FinishReason.STOP:
            parse_output(plan.text, request.output_schema)
        usage = Usage(input_tokens=plan.input_tokens, output_tokens=plan.output_tokens)
        logprobs = () if request.top_logprobs is None else self._logprobs(plan.text, request.top_logprobs)
        return Finished(
            reason=plan.reason, usage=usage, model=self._card.model, confidence=self._confidence, logprobs=logprobs, stop=plan.stop
        )

    def _logprobs(self, text: str, top: int) -> tuple[TokenLogprob, ...]:
        """Return the tokens of a text, each as sure as the agent is of all of them."""
        sure = {"logprob": 0.0 if self._confidence is None else math.log(max(self._confidence, sys.float_info.min))}
        tokens = _SPACED_TOKEN.findall(text)
        return tuple(TokenLogprob(token=token, top=(LikelyToken(token=token, **sure),)[:top], **sure) for token in tokens)

    async def _take_slot(self, deadline: float | None) -> None:
        try:
            self._slots.acquire_nowait()
        except anyio.WouldBlock:
            await self._wait(self._slots.acquire, deadline)

    async def _wait(self, waiting: Callable[[], Awaitable[object]], deadline: float | None) -> None:
        with anyio.CancelScope(deadline=float("inf") if deadline is None else deadline) as scope:
            self._waits.add(scope)
            try:
                await waiting()
            finally:
                self._waits.discard(scope)
        if scope.cancelled_caught:
            self._check_open()
            raise DeadlineExceeded("the step took longer than its timeout")

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(f"agent {self._card.name!r} is closed")


@dataclass(frozen=True, slots=True)
class _Plan:
    """A reply within the limits of its request."""

    items: tuple[ScriptItem, ...]
    reason: FinishReason
    stop: str | None
    input_tokens: int

    @property
    def text(self) -> str:
        return "".join(item for item in self.items if isinstance(item, str))

    @property
    def finished(self) -> Finished | None:
        return next((item for item in self.items if isinstance(item, Finished)), None)

    @property
    def output_tokens(self) -> int:
        calls = (item for item in self.items if isinstance(item, ToolCall))
        return count_tokens(self.text) + sum(count_tokens(f"{call.name} {call.arguments}") for call in calls)


def _in_order(script: Iterable[Reply], name: str) -> Callable[[StepRequest], Reply]:
    replies: Iterator[Reply] = iter(script)

    def answer(request: StepRequest) -> Reply:
        for reply in replies:
            return reply
        raise NotFound(f"the script of agent {name!r} has no reply left", hint="add one reply per step, or pass a function")

    return answer


def _as_waiting(pace: Pace) -> Callable[[], Awaitable[object]] | None:
    if callable(pace):
        return pace
    return partial(anyio.sleep, pace) if pace else None


def _cut(
    items: Sequence[ScriptItem], *, stop: Sequence[str], max_tokens: int | None
) -> tuple[tuple[ScriptItem, ...], FinishReason, str | None]:
    """Cut `items` at the first stop sequence or after `max_tokens` of text. Return them with the reason why the step ends, and the stop
    sequence that did it."""
    text = "".join(item for item in items if isinstance(item, str))
    end, found = min(((text.find(sequence), sequence) for sequence in stop if sequence in text), default=(len(text), None))
    token_ends = [match.end() for match in _TOKEN.finditer(text)] if max_tokens is not None else []
    if max_tokens is not None and len(token_ends) > max_tokens and token_ends[max_tokens - 1] < end:
        return _up_to(items, token_ends[max_tokens - 1]), FinishReason.LENGTH, None
    kept = tuple(items) if end == len(text) else _up_to(items, end)
    calls = any(isinstance(item, ToolCall) for item in kept)
    return (kept, FinishReason.TOOL_CALLS, None) if calls else (kept, FinishReason.STOP, found)


def _up_to(items: Sequence[ScriptItem], end: int) -> tuple[ScriptItem, ...]:
    """Return `items` up to character `end` of their text."""
    kept: list[ScriptItem] = []
    position = 0
    for item in items:
        kept.append(item[: end - position] if isinstance(item, str) else item)
        position += len(item) if isinstance(item, str) else 0
        if position >= end:
            break
    return tuple(item for item in kept if item != "")


def _input_tokens(request: StepRequest) -> int:
    results = (message.tool_result.content for message in request.messages if message.tool_result)
    attached = sum(len(message.attachments) for message in request.messages)
    return sum(count_tokens(message.text) for message in request.messages) + sum(map(count_tokens, results)) + attached


def _check_deadline(deadline: float | None) -> None:
    if deadline is not None and anyio.current_time() >= deadline:
        raise DeadlineExceeded("the step took longer than its timeout")


class RecordedError(Value):
    """A `NearfarError` that ended a step."""

    reason: str
    """Name of the class."""
    message: str
    """The error's message."""
    hint: str = ""
    """The error's hint."""
    retry_after: float | None = None
    """Seconds after which the request may succeed; None: unknown."""

    @classmethod
    def of(cls, error: NearfarError) -> "RecordedError":
        """Return an `error` as it is recorded."""
        return cls(reason=travelling_class(error).__name__, message=error.message, hint=error.hint, retry_after=error.retry_after)

    @field_validator("reason")
    @classmethod
    def _is_a_class_of_ours(cls, reason: str) -> str:
        if reason not in BY_REASON:
            raise ValueError(f"{reason!r} is not an error class of nearfar")
        return reason

    def error(self) -> NearfarError:
        return BY_REASON[self.reason](self.message, hint=self.hint, retry_after=self.retry_after)


class RecordedOutcome(Value):
    """An agent's answer to one request. Without a fingerprint it answers every request with this task."""

    fingerprint: str | None = None
    """Hash of the request; None: any request."""
    task: str
    """The text of the last user message."""
    events: tuple[StepEvent, ...] = ()
    """The events, in order."""
    error: RecordedError | None = None
    """The error that ended the step; None: it finished."""


_OF_ONE_RUN = ("idempotency_key", "timeout", "max_reasoning_tokens")
"""Fields of a request that may differ where its content is the same."""


def fingerprint(request: StepRequest) -> str:
    """Return a digest of a request's content; it does not depend on the key, on limits that differ by the run, or on provider
    states."""
    content = request.model_dump(mode="json", exclude={**dict.fromkeys(_OF_ONE_RUN, True), "messages": {"__all__": {"state"}}})
    return sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode(errors="surrogatepass")).hexdigest()


def task_text(request: StepRequest) -> str:
    """Return the text of the last user message, or an empty text."""
    return next((message.text for message in reversed(request.messages) if message.role == "user"), "")


class ReplayAgent:
    """An agent that answers each request as recorded: by its fingerprint, else by its task. Several outcomes of one request are used in
    turn, and the last one is repeated.

    A request without a recorded outcome raises `NotFound`.
    """

    def __init__(self, card: AgentCard, outcomes: Iterable[RecordedOutcome]) -> None:
        """Replay `outcomes`, under the name and with the capabilities of `card`."""
        self._card = card
        self._outcomes: dict[str, list[RecordedOutcome]] = {}
        self._is_closed = False
        for outcome in outcomes:
            self._outcomes.setdefault(_key(outcome.fingerprint, outcome.task), []).append(outcome)

    @classmethod
    def load(cls, path: Path) -> "ReplayAgent":
        """Load a recording from the file at `path`. Raise `NotFound` if there is no such file, `ConfigError` if a line of it is
        malformed."""
        try:
            lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")  # JSON strings may hold other line ends
        except FileNotFoundError as error:
            raise NotFound(f"there is no recording {path}", hint="make one with record(agent, path)") from error
        try:
            card = AgentCard.model_validate_json(lines[0])
        except ValidationError as error:
            raise ConfigError(f"line 1 of {path} is not an agent card", hint="record again") from error
        return cls(card, _parsed(lines, path))

    @property
    def card(self) -> AgentCard:
        return self._card

    async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
        """Yield what was recorded for the same `request`, in the order of the recording, and raise the recorded error."""
        if self._is_closed:
            raise Unavailable(f"agent {self._card.name!r} is closed")
        check_request(self._card, request)
        outcome = self._next(request)
        for event in outcome.events:
            yield event
        if outcome.error is not None:
            raise outcome.error.error()

    async def aclose(self) -> None:
        self._is_closed = True

    def _next(self, request: StepRequest) -> RecordedOutcome:
        task = task_text(request)
        outcomes = self._outcomes.get(_key(fingerprint(request), task)) or self._outcomes.get(_key(None, task))
        if not outcomes:
            raise NotFound(f"no outcome is recorded for the task {task[:80]!r}", hint="record it with record(agent, path)")
        return outcomes.pop(0) if len(outcomes) > 1 else outcomes[0]


class _RecordingAgent:
    def __init__(self, agent: Agent, path: Path) -> None:
        self._agent = agent
        self._path = path
        self.is_elsewhere = bool(getattr(agent, "is_elsewhere", False))
        if not path.exists():
            self._write(agent.card.model_dump_json())

    @property
    def card(self) -> AgentCard:
        return self._agent.card

    async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
        seen: list[StepEvent] = []
        try:
            async with stream(self._agent, request) as events:
                async for event in events:
                    seen.append(event)
                    if isinstance(event, Finished):  # written before it is shown: its reader may leave with it
                        self._add(request, seen)
                    yield event
        except NearfarError as error:
            self._add(request, seen, RecordedError.of(error))
            raise

    async def aclose(self) -> None:
        await self._agent.aclose()

    def _add(self, request: StepRequest, events: list[StepEvent], error: RecordedError | None = None) -> None:
        outcome = RecordedOutcome(fingerprint=fingerprint(request), task=task_text(request), events=tuple(events), error=error)
        self._write(outcome.model_dump_json())

    def _write(self, line: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def record(agent: Agent, path: Path) -> Agent:
    """Return `agent` wrapped so that every outcome is appended to `path`. Steps that are left early are not recorded."""
    return _RecordingAgent(agent, path)


def _key(request_fingerprint: str | None, task: str) -> str:
    return f"task {task}" if request_fingerprint is None else f"request {request_fingerprint}"


def _parsed(lines: list[str], path: Path) -> Iterator[RecordedOutcome]:
    for number, line in enumerate(lines[1:], start=2):
        try:
            yield RecordedOutcome.model_validate_json(line)
        except ValidationError as error:
            raise ConfigError(f"line {number} of {path} is not a recorded outcome", hint="record again, or remove the line") from error
