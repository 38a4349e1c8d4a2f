"""Recorded outcomes: `record` writes an agent's answers to a file, and `ReplayAgent` repeats them without the agent.

A recording is a JSON Lines file: the agent's card, then one outcome per line. It holds the text of the conversations.
"""

import json
from collections.abc import AsyncGenerator, Iterable, Iterator
from hashlib import sha256
from pathlib import Path

from pydantic import ValidationError, field_validator

from .agent import Agent, stream
from .cards import AgentCard
from .errors import BY_REASON, ConfigError, NearfarError, NotFound, Unavailable, travelling_class
from .messages import Value
from .steps import Finished, StepEvent, StepRequest
from .validation import check_request


class RecordedError(Value):
    """A `NearfarError` that ended a step."""

    reason: str
    message: str
    hint: str = ""
    retry_after: float | None = None

    @classmethod
    def of(cls, error: NearfarError) -> "RecordedError":
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
    task: str
    """The text of the last user message."""
    events: tuple[StepEvent, ...] = ()
    error: RecordedError | None = None


def fingerprint(request: StepRequest) -> str:
    """Return a digest of a request's content; it does not depend on the key, the timeout or provider states."""
    content = request.model_dump(mode="json", exclude={"idempotency_key": True, "timeout": True, "messages": {"__all__": {"state"}}})
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
        self._card = card
        self._outcomes: dict[str, list[RecordedOutcome]] = {}
        self._is_closed = False
        for outcome in outcomes:
            self._outcomes.setdefault(_key(outcome.fingerprint, outcome.task), []).append(outcome)

    @classmethod
    def load(cls, path: Path) -> "ReplayAgent":
        """Load a recording. Raise `NotFound` if there is no such file, `ConfigError` if a line of it is malformed."""
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
