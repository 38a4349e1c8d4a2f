"""One attached worker as its hub keeps it: its steps, their events, and the protobuf messages between the two. Independent of gRPC."""

import asyncio
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from .agent import AgentCard, DeviceState, PowerSource, Thermal
from .errors import (
    BY_REASON,
    ApprovalNeeded,
    ConfigError,
    DeadlineExceeded,
    InternalError,
    InvalidOutput,
    InvalidRequest,
    LedgerConflict,
    NearfarError,
    NotFound,
    RateLimited,
    RunBusy,
    Stalled,
    StepLost,
    StoreError,
    Unauthenticated,
    Unavailable,
    VersionConflict,
    travelling_class,
)
from .limits import (
    AGENTS_OF_A_WORKER,
    CALLS_OF_A_MESSAGE,
    CHECKED_CHARACTERS,
    EVENT_OVERHEAD,
    FAILURE_LENGTH,
    LATE_OUTPUTS,
    MAX_MESSAGE_BYTES,
    NAME_LENGTH,
    NEWS,
    REGISTRATION_BYTES,
    STEP_BYTES,
    STEPS_OF_A_WORKER,
    UNREAD_BYTES,
    UNSENT_BYTES,
    WORKER_NAME_LENGTH,
    Heartbeat,
    Pulse,
)
from .propagation import traceparent
from .secrets import inspect
from .steps import Finished, FinishReason, StepEvent, StepRequest, TextDelta, ToolCalled, ToolChoice
from .v1 import hub_pb2 as pb
from .validation import check_arguments, parse_output
from .wire import FaultsBecome, card_from_proto, card_to_proto, event_from_proto, request_to_proto

_POWER_SOURCES = {PowerSource.MAINS: pb.POWER_SOURCE_MAINS, PowerSource.BATTERY: pb.POWER_SOURCE_BATTERY}
_THERMALS = {
    Thermal.NOMINAL: pb.THERMAL_NOMINAL,
    Thermal.FAIR: pb.THERMAL_FAIR,
    Thermal.SERIOUS: pb.THERMAL_SERIOUS,
    Thermal.CRITICAL: pb.THERMAL_CRITICAL,
}
_POWER_SOURCE_OF = {number: source for source, number in _POWER_SOURCES.items()}
_THERMAL_OF = {number: thermal for thermal, number in _THERMALS.items()}
_READING_STATE = FaultsBecome(InvalidRequest, "the device state is malformed")

_AT_HOME = (ConfigError, Unauthenticated, NotFound, ApprovalNeeded, RunBusy, StoreError, VersionConflict, LedgerConflict)
"""Errors about the worker's own configuration, runs or stores. A caller would take them for errors about its own request."""


@dataclass(frozen=True, kw_only=True)
class Registration:
    """A worker's description of itself when it attaches. Its name comes from its token."""

    instance: str
    """Random id of the worker's process, the same for its whole life."""
    cards: tuple[AgentCard, ...]
    state: DeviceState


def registration_to_proto(registration: Registration) -> pb.Register:
    return pb.Register(
        instance=registration.instance,
        agents=map(card_to_proto, registration.cards),
        state=device_state_to_proto(registration.state),
    )


def registration_from_proto(message: pb.Register) -> Registration:
    """Read a registration. Raise `InvalidRequest` for content that no nearfar worker sends: the message is untrusted."""
    size = message.ByteSize()
    if size > REGISTRATION_BYTES:
        raise InvalidRequest(f"the registration has {size} bytes, and {REGISTRATION_BYTES} are allowed")
    if not 1 <= len(message.instance) <= WORKER_NAME_LENGTH:
        raise InvalidRequest(f"a worker's instance is a random text of 1 to {WORKER_NAME_LENGTH} characters")
    if not 1 <= len(message.agents) <= AGENTS_OF_A_WORKER:
        raise InvalidRequest(f"a worker offers 1 to {AGENTS_OF_A_WORKER} agents, not {len(message.agents)}")
    try:
        cards = tuple(map(card_from_proto, message.agents))
    except InvalidOutput as error:  # here it is the registration that is at fault
        raise InvalidRequest(error.message) from error
    names = [card.name for card in cards]
    if len(set(names)) < len(names) or not all(name.isprintable() and len(name) <= WORKER_NAME_LENGTH for name in names):
        raise InvalidRequest(f"agents have distinct, printable names of at most {WORKER_NAME_LENGTH} characters")
    if not all(card.model.isprintable() for card in cards):  # it is shown in terminals, which obey control characters
        raise InvalidRequest("the name of a model is not printable")
    return Registration(instance=message.instance, cards=cards, state=device_state_from_proto(message.state))


def device_state_to_proto(state: DeviceState) -> pb.DeviceState:
    """Write a device state. `is_offline` is left out: a worker that can send this is online."""
    return pb.DeviceState(
        battery=state.battery,
        power_source=pb.POWER_SOURCE_UNKNOWN if state.power_source is None else _POWER_SOURCES[state.power_source],
        thermal=pb.THERMAL_UNKNOWN if state.thermal is None else _THERMALS[state.thermal],
        free_memory_bytes=state.free_memory_bytes,
    )


def device_state_from_proto(message: pb.DeviceState) -> DeviceState:
    """Read a device state; values unknown to this version become None. Raise `InvalidRequest` for a malformed one."""
    with _READING_STATE:
        return DeviceState(
            battery=message.battery if message.HasField("battery") else None,
            power_source=_POWER_SOURCE_OF.get(message.power_source),
            thermal=_THERMAL_OF.get(message.thermal),
            free_memory_bytes=message.free_memory_bytes if message.HasField("free_memory_bytes") else None,
        )


def failure_to_proto(error: NearfarError) -> pb.StepFailure:
    return pb.StepFailure(
        reason=travelling_class(error).__name__,
        message=_cut(error.message),
        hint=_cut(error.hint),
        retry_after=error.retry_after,
    )


def failure_from_proto(message: pb.StepFailure) -> NearfarError:
    """Return the error that the worker raised; `InternalError` for a class that this version does not know.

    An error about the worker's own configuration, runs or stores becomes `Unavailable`: its caller can only ask another agent.
    """
    cls = BY_REASON.get(message.reason, InternalError)
    cls = Unavailable if issubclass(cls, _AT_HOME) else cls
    has_delay = message.HasField("retry_after") and math.isfinite(message.retry_after) and message.retry_after >= 0
    return cls(_cut(message.message), hint=_cut(message.hint), retry_after=message.retry_after if has_delay else None)


def _cut(text: str) -> str:
    """Return a valid text of bounded length; an agent may quote half a character that its model wrote."""
    return text[:FAILURE_LENGTH].encode(errors="replace").decode()


class AttachedStep:
    """A step that a worker computes, as its single reader sees it: events, then one final end."""

    def __init__(self, number: int, request: StepRequest, *, idle_timeout: float) -> None:
        self.number = number
        self._request = request
        self._idle_timeout = idle_timeout
        self._loop = asyncio.get_running_loop()
        self._deadline = None if request.timeout is None else self._loop.time() + request.timeout
        self._unread: deque[tuple[StepEvent, int]] = deque()
        self._unread_bytes = 0
        self._received_bytes = 0
        self._text: list[str] = []
        self._text_length = 0
        self._calls = 0
        self._error: NearfarError | None = None
        self._changed = asyncio.Event()
        self.is_over = False

    async def next(self) -> StepEvent | None:
        """Return the next event, or None after the last one. Raise the error that the step ended with."""
        while not self._unread:
            if self._error is not None:
                raise self._error
            if self.is_over:
                return None
            await self._change()
        event, size = self._unread.popleft()
        self._unread_bytes -= size
        return event

    def take(self, message: pb.StepOutput) -> None:
        """Add an output of the worker.

        Raise `InvalidOutput` if it breaks the contract, since workers are not trusted, `DeadlineExceeded` if it comes too late, and
        `InvalidRequest` if the caller's schema cannot be checked.
        """
        if message.WhichOneof("output") == "failure":
            self.end(failure_from_proto(message.failure))
            return
        if self._deadline is not None and self._loop.time() >= self._deadline:  # a reader that always has something to read never waits
            raise _too_late()
        event = event_from_proto(message.event)
        self._check(event)
        size = message.ByteSize() + EVENT_OVERHEAD
        self._unread_bytes += size
        self._received_bytes += size
        if self._unread_bytes > UNREAD_BYTES:
            raise InvalidOutput(f"the worker sent more than {UNREAD_BYTES} bytes that are not read yet")
        if self._received_bytes > STEP_BYTES:  # a reader that keeps up would otherwise collect without end
            raise InvalidOutput(f"the worker sent more than {STEP_BYTES} bytes in one step", hint="ask for a shorter answer")
        self._unread.append((event, size))
        if isinstance(event, Finished):
            self.end()
        self._changed.set()

    def end(self, error: NearfarError | None = None) -> None:
        """End the step for its reader, after the events that have arrived; only the first end counts."""
        if not self.is_over:
            self.is_over, self._error = True, error
            self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        idle_at = self._loop.time() + self._idle_timeout
        until = idle_at if self._deadline is None else min(idle_at, self._deadline)
        try:
            async with asyncio.timeout_at(until):
                await self._changed.wait()
        except TimeoutError:
            if until == self._deadline:
                raise _too_late() from None
            raise Stalled(f"the step was silent for {self._idle_timeout:g} s", hint="ask another agent, or raise idle_timeout") from None

    def _check(self, event: StepEvent) -> None:
        request = self._request
        if isinstance(event, TextDelta) and request.output_schema is not None:
            self._text.append(event.text)
            self._text_length += len(event.text)
            if self._text_length > CHECKED_CHARACTERS:
                raise InvalidOutput(f"the output has more than {CHECKED_CHARACTERS} characters")
        if isinstance(event, ToolCalled):
            self._check_call(event)
        if isinstance(event, Finished):
            self._check_end(event)

    def _check_call(self, event: ToolCalled) -> None:
        """Refuse a call that no later request could carry; such a request would fail as if the caller were at fault."""
        request = self._request
        check_arguments(event.call, () if request.tool_choice is ToolChoice.NONE else request.tools)
        self._calls += 1
        if self._calls > CALLS_OF_A_MESSAGE:
            raise InvalidOutput(f"the worker called more than {CALLS_OF_A_MESSAGE} tools in one step")
        if len(event.call.id) > NAME_LENGTH:
            raise InvalidOutput(f"the worker gave a call an id of more than {NAME_LENGTH} characters")

    def _check_end(self, event: Finished) -> None:
        request = self._request
        if event.reason is FinishReason.TOOL_CALLS and not self._calls:
            raise InvalidOutput("the worker stopped for tool calls, and called no tool")
        if event.reason is FinishReason.STOP and not self._calls:
            if request.tool_choice is ToolChoice.REQUIRED:
                raise InvalidOutput("tool_choice is 'required' and the worker called no tool")
            if request.output_schema is not None:
                parse_output("".join(self._text), request.output_schema)


class Outbox:
    """Messages that wait to be sent to a worker."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[pb.HubMessage | None] = asyncio.Queue()
        self.size = 0
        """Total bytes of the messages."""

    def put(self, message: pb.HubMessage) -> None:
        self.size += message.ByteSize()
        self._messages.put_nowait(message)

    async def get(self) -> pb.HubMessage | None:
        """Return the next message, or None after `close`."""
        message = await self._messages.get()
        self.size -= message.ByteSize() if message is not None else 0
        return message

    def close(self) -> None:
        """Drop the messages that were not sent, and wake the reader."""
        while not self._messages.empty():
            self._messages.get_nowait()
        self._messages.put_nowait(None)


class WorkerSession:
    """One stream of one worker, from its registration to its end. All steps on it end with it."""

    def __init__(self, worker: str, registration: Registration, *, heartbeat: Heartbeat, numbers: Iterator[int]) -> None:
        """Start the session. `numbers` yields step numbers that are unique in the hub."""
        self.worker = worker
        self.instance = registration.instance
        self.cards = {card.name: card for card in registration.cards}
        self.state = registration.state
        """The last known state of the device."""
        self.is_draining = False
        self.outbox = Outbox()
        self.pulse = Pulse(heartbeat)
        self._numbers = numbers
        self._running: dict[int, AttachedStep] = {}
        self._given_up: dict[int, int] = {}
        """Cancelled steps that the worker has not ended yet, with the number of outputs since."""
        self._news = 0
        self._error: NearfarError | None = None
        self._closed = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    @property
    def live_steps(self) -> int:
        """Return the number of steps that the worker has not ended."""
        return len(self._running) + len(self._given_up)

    def start(self, agent: str, request: StepRequest, *, idle_timeout: float) -> AttachedStep:
        """Give the worker a step. Raise `Unavailable` if it accepts none, `RateLimited` if it has too many."""
        if self.is_closed or self.is_draining:
            raise Unavailable(f"worker {self.worker!r} is leaving", hint="ask another agent")
        if self.live_steps >= STEPS_OF_A_WORKER or self.outbox.size > UNSENT_BYTES:
            raise RateLimited(f"worker {self.worker!r} has {self.live_steps} unfinished steps", hint="try again shortly", retry_after=1.0)
        step = AttachedStep(next(self._numbers), request, idle_timeout=idle_timeout)
        message = pb.HubMessage(
            start=pb.StartStep(
                step=step.number,
                agent=agent,
                idempotency_key=request.idempotency_key,
                timeout=request.timeout,
                request=request_to_proto(request),
                traceparent=traceparent(),
            )
        )
        if message.ByteSize() > MAX_MESSAGE_BYTES:
            raise InvalidRequest(f"the request is larger than {MAX_MESSAGE_BYTES} bytes", hint="shorten the conversation")
        inspect(message.SerializeToString)
        self._running[step.number] = step
        self.outbox.put(message)
        return step

    def give_up(self, step: AttachedStep, error: NearfarError | None = None) -> None:
        """End the step with `error` for its reader and tell the worker to stop it; do nothing if the worker has ended it."""
        step.end(error)
        if self._running.pop(step.number, None) is not None and not self.is_closed:
            self._given_up[step.number] = 0
            self.outbox.put(pb.HubMessage(cancel=pb.CancelStep(step=step.number)))

    def receive(self, message: pb.WorkerMessage) -> None:
        """Process a message of the worker. Raise `InvalidRequest` for a forbidden one; the caller has to end the stream then."""
        self.pulse.heard()
        match message.WhichOneof("message"):
            case "output":
                self._receive_output(message.output)
            case "heartbeat":
                self._count_news()
                self.state = device_state_from_proto(message.heartbeat.state)
            case "draining":
                self._count_news()
                self.is_draining = True
            case "register":
                raise InvalidRequest("the worker registered twice on one stream")
            case _:
                raise InvalidRequest("the worker sent a message that this version does not know")

    async def beat(self) -> None:
        """Send a heartbeat, unless another message waits to be sent anyway."""
        self._news = 0
        if not self.outbox.size:
            self.outbox.put(pb.HubMessage(heartbeat=pb.HubHeartbeat()))

    def close(self, error: NearfarError | None = None) -> None:
        """End the session, with `error` unless the worker left in order; only the first end counts. Running steps raise `StepLost`."""
        if self.is_closed:
            return
        self._error = error
        self._closed.set()
        self.outbox.close()
        reason = f": {error.message}" if error is not None else ""
        lost = StepLost(f"worker {self.worker!r} left in mid-step{reason}", hint="ask another agent")
        for step in self._running.values():
            step.end(lost)
        self._running.clear()
        self._given_up.clear()

    async def closed(self) -> NearfarError | None:
        """Wait for the end of the session. Return the error that it ended with."""
        await self._closed.wait()
        return self._error

    def _receive_output(self, output: pb.StepOutput) -> None:
        is_last = output.WhichOneof("output") == "failure" or output.event.WhichOneof("event") == "finished"
        step = self._running.get(output.step)
        if step is None:
            self._drop(output.step, is_last=is_last)
            return
        try:
            step.take(output)
        except NearfarError as error:  # the worker's fault, or that of the caller, whose schema turns out to be unusable only now
            step.end(error)
        if is_last:
            del self._running[output.step]
        elif step.is_over:
            self.give_up(step)

    def _drop(self, number: int, *, is_last: bool) -> None:
        """Count an output of a cancelled step, and drop it."""
        if number not in self._given_up:
            raise InvalidRequest(f"the worker sent output of step {number}, which it does not have")
        self._given_up[number] += 1
        if self._given_up[number] > LATE_OUTPUTS:
            raise InvalidRequest(f"the worker does not stop step {number}")
        if is_last:
            del self._given_up[number]

    def _count_news(self) -> None:
        self._news += 1
        if self._news > NEWS:
            raise InvalidRequest("the worker floods the hub with heartbeats")


def _too_late() -> DeadlineExceeded:
    return DeadlineExceeded("the step took longer than its timeout")
