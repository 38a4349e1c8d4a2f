"""`Worker`: lends this machine's agents to a hub through one outgoing stream."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TypeAlias
from uuid import uuid4

import anyio
import grpc

from .address import parse_address
from .agent import Agent, DeviceState, DeviceStateSource, run_step
from .channel import explained, open_channel
from .errors import Cancelled, ConfigError, InvalidOutput, NearfarError, NotFound, Unavailable, Unsupported, UserError
from .hub_session import Registration, device_state_to_proto, failure_to_proto, registration_to_proto
from .limits import MAX_MESSAGE_BYTES, Heartbeat, Pulse
from .propagation import continued_trace
from .security import bearer_metadata
from .status import from_rpc_error
from .steps import Finished, StepEvent
from .tls import ClientTls, pinned_tls
from .v1 import hub_pb2 as pb
from .v1.hub_pb2_grpc import HubServiceStub
from .validation import check_privacy
from .wire import event_to_proto, request_from_proto

logger = logging.getLogger(__name__)

__all__ = ["ClientTls", "Worker"]

AttachCall: TypeAlias = "grpc.aio.StreamStreamCall[pb.WorkerMessage, pb.HubMessage]"

_CONNECT_LIMIT = 10.0
_LEAVE_LIMIT = 2.0
"""Seconds that the hub has to end a stream after the worker has closed its half."""
_STOP_LIMIT = 5.0
_FIRST_DELAY = 0.5
_LONGEST_DELAY = 30.0
_MOST_DOUBLINGS = 16
"""More would overflow after a night without the hub, and change nothing."""
_MOST_REFUSALS = 4
"""Limit of consecutive refusals that the hub called temporary: a restarted worker is refused for some seconds while its old stream still
counts."""
_QUICKEST_BEAT, _LONGEST_SILENCE = 0.01, 3600.0
"""Seconds. A hub that asks for heartbeats outside these bounds would keep the worker busy, or deaf."""
_UNSENT_MESSAGES = 64
"""Messages that may wait for the network; a faster agent has to wait."""


class Worker:
    """Serves `agents` (one, or several by name) to the hub at `address` until it is drained.

    When the connection breaks, the worker cancels the steps on it, since the hub has failed them already, and attaches again after a
    random, growing delay of at most 30 seconds. The agents stay open: the caller closes them.
    """

    def __init__(
        self,
        agents: Agent | Mapping[str, Agent],
        address: str,
        *,
        token: str | None = None,
        tls: ClientTls | None = None,
        fingerprint: str | None = None,
        device_state: DeviceStateSource = DeviceState,
    ) -> None:
        """Set up a worker; nothing is sent before `run`.

        Without a `token`, the certificate in `tls` identifies the worker. `fingerprint`, from a pairing, replaces the roots in `tls` if no
        authority has signed the hub's certificate. `device_state` reads the battery, heat and free memory that the hub is told. Raise
        `ConfigError` for a malformed address or token, or if there is no agent.
        """
        self._agents = dict(agents) if isinstance(agents, Mapping) else {agents.card.name: agents}
        if not self._agents:
            raise ConfigError("there is no agent to lend", hint="give at least one")
        self._address = parse_address(address)
        self._tls = tls
        self._fingerprint = fingerprint
        self._metadata = bearer_metadata(token)
        self._device_state = device_state
        self._instance = uuid4().hex
        self._attachment: _Attachment | None = None
        self._draining = asyncio.Event()
        self.attached = asyncio.Event()
        """Set while the hub knows this worker."""
        self.name = ""
        """The worker's name, as the hub last said."""

    @property
    def address(self) -> str:
        """Return the hub's address."""
        return str(self._address)

    @property
    def live_steps(self) -> int:
        """Return the number of steps that are running now."""
        return 0 if self._attachment is None else len(self._attachment.steps)

    async def run(self) -> None:
        """Serve until `drain` is done. Raise the error with which the hub refuses this worker, usually `Unauthenticated`."""
        failures = refusals = 0
        while not self._draining.is_set():
            error = await self._attach_once()
            if error is None:
                return
            was_attached = self.attached.is_set()
            self.attached.clear()
            refusals = refusals + 1 if isinstance(error, UserError) else 0
            if refusals and (error.retry_after is None or refusals >= _MOST_REFUSALS):
                raise error
            failures = 0 if was_attached else failures + 1
            delay = (error.retry_after or 0.0) + random.uniform(
                0, min(_FIRST_DELAY * 2.0 ** min(failures, _MOST_DOUBLINGS), _LONGEST_DELAY)
            )
            logger.warning("not attached to %s (%s); next attempt in %.1f s", self._address, error, delay)
            with anyio.move_on_after(delay):
                await self._draining.wait()

    async def drain(self, time_limit: float) -> None:
        """Take no further steps, let those under way finish for at most `time_limit` seconds, and leave; `run` returns then."""
        self._draining.set()
        if self._attachment is not None:
            await self._attachment.drain(time_limit)

    async def _attach_once(self) -> NearfarError | None:
        """Run one stream from registration to end. Return the error that ended it, or None after an orderly leave."""
        channel: grpc.aio.Channel | None = None
        call: AttachCall | None = None
        tls: ClientTls | None = None
        try:
            tls = await self._trusted()
            channel = open_channel(self._address, tls)
            call = HubServiceStub(channel).Attach(metadata=self._metadata)
            registered = await self._register(call)
            if self._draining.is_set():
                return None
            self.name = registered.worker
            heartbeat = Heartbeat(interval=registered.heartbeat_interval, silence_limit=registered.silence_limit)
            self._attachment = _Attachment(call, self._agents, self._device_state, heartbeat)
            self.attached.set()
            logger.info("attached to %s as %r", self._address, self.name)
            return await self._attachment.run()
        except NearfarError as error:
            return error
        except grpc.aio.AioRpcError as error:
            return await explained(self._address, tls, error) or _read_error(error)
        finally:
            self._attachment = None
            if call is not None:
                call.cancel()
            if channel is not None:
                with anyio.CancelScope(shield=True):
                    await channel.close()

    async def _trusted(self) -> ClientTls | None:
        """Return the TLS options to use. A pinned certificate is compared for each stream, so that a changed one is reported."""
        if self._fingerprint is None:
            return self._tls
        return await anyio.to_thread.run_sync(pinned_tls, self._address, self._fingerprint, self._tls)

    async def _register(self, call: AttachCall) -> pb.Registered:
        cards = tuple(agent.card.model_copy(update={"name": name}) for name, agent in self._agents.items())
        registration = Registration(instance=self._instance, cards=cards, state=self._device_state())
        try:
            async with asyncio.timeout(_CONNECT_LIMIT):
                with suppress(asyncio.InvalidStateError):  # grpc's word for a call that is over; reading it tells why
                    await call.write(pb.WorkerMessage(register=registration_to_proto(registration)))
                message = await call.read()
        except TimeoutError:
            raise Unavailable(f"the hub at {self._address} did not answer within {_CONNECT_LIMIT:g} s") from None
        if not isinstance(message, pb.HubMessage) or message.WhichOneof("message") != "registered":
            raise InvalidOutput(f"the hub at {self._address} did not confirm the registration")
        if not _QUICKEST_BEAT <= message.registered.heartbeat_interval <= message.registered.silence_limit <= _LONGEST_SILENCE:
            raise InvalidOutput(f"the hub at {self._address} asks for impossible heartbeats")
        return message.registered


class _Attachment:
    """One stream to the hub, and the steps on it."""

    def __init__(self, call: AttachCall, agents: Mapping[str, Agent], device_state: DeviceStateSource, heartbeat: Heartbeat) -> None:
        self._call = call
        self._agents = agents
        self._device_state = device_state
        self._pulse = Pulse(heartbeat)
        self._outbox: asyncio.Queue[pb.WorkerMessage | None] = asyncio.Queue(_UNSENT_MESSAGES)
        self.steps: dict[int, tuple[asyncio.Task[None], anyio.CancelScope]] = {}
        self._is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._error: NearfarError | None = None
        self._ended = asyncio.Event()

    async def run(self) -> NearfarError | None:
        """Serve until the stream ends; returns what ended it, None where the worker has left in order."""
        receiving = asyncio.create_task(self._receive())
        try:
            async with anyio.create_task_group() as tasks:
                for part in (self._send, self._watch):
                    tasks.start_soon(part)
                await self._ended.wait()
                tasks.cancel_scope.cancel()
        finally:
            self._call.cancel()  # first, so that no further steps come
            await self._stop_steps()
            with anyio.CancelScope(shield=True):
                # It ends with the call. Cancelled by itself, it would leave gRPC to answer its read when this loop may be closed.
                await asyncio.wait([receiving], timeout=_LEAVE_LIMIT)
        return self._error

    async def drain(self, time_limit: float) -> None:
        """Announce it, wait for the steps, then close this half of the stream and wait for the hub to close the other."""
        self._is_draining = True
        with anyio.move_on_after(time_limit):
            await self._outbox.put(pb.WorkerMessage(draining=pb.Draining()))
            await self._idle.wait()
        with anyio.move_on_after(_LEAVE_LIMIT):
            await self._stop_steps()
            await self._outbox.put(None)
            await self._ended.wait()
        self._end(None)

    def _end(self, error: NearfarError | None) -> None:
        if not self._ended.is_set():
            self._error = error
            self._ended.set()

    async def _receive(self) -> None:
        try:
            while isinstance(message := await self._call.read(), pb.HubMessage):
                self._pulse.heard()
                self._take(message)
            self._end(None if self._is_draining else Unavailable("the hub ended the stream"))
        except grpc.aio.AioRpcError as error:
            self._end(_read_error(error))
        finally:
            self._end(Unavailable("the connection was lost"))

    async def _send(self) -> None:
        try:
            while message := await self._outbox.get():
                await self._call.write(message)
            await self._call.done_writing()
        except grpc.aio.AioRpcError as error:
            self._end(_read_error(error))
        except asyncio.InvalidStateError:  # grpc's word for a call that is over; `_receive` has its status
            logger.debug("the stream ended while it was written to")

    async def _watch(self) -> None:
        await self._pulse.run(self._beat)
        self._end(Unavailable("the hub was silent for too long"))

    async def _beat(self) -> None:
        if self._outbox.empty():
            await self._outbox.put(pb.WorkerMessage(heartbeat=pb.WorkerHeartbeat(state=device_state_to_proto(self._device_state()))))

    def _take(self, message: pb.HubMessage) -> None:
        match message.WhichOneof("message"):
            case "start" if message.start.step not in self.steps:
                number, scope = message.start.step, anyio.CancelScope()
                task = asyncio.create_task(self._serve(message.start, scope))
                self.steps[number] = task, scope
                self._idle.clear()
                task.add_done_callback(partial(self._settle, number))
            case "cancel" if message.cancel.step in self.steps:
                self.steps[message.cancel.step][1].cancel()

    def _settle(self, number: int, _: "asyncio.Task[None]") -> None:
        del self.steps[number]
        if not self.steps:
            self._idle.set()

    async def _serve(self, start: pb.StartStep, scope: anyio.CancelScope) -> None:
        """Compute one step and tell the hub how it ended. A cancelled step is reported too, so that the hub can forget it."""
        error: NearfarError | None = None
        has_finished = False

        async def emit(event: StepEvent) -> None:
            nonlocal has_finished
            message = pb.WorkerMessage(output=pb.StepOutput(step=start.step, event=event_to_proto(event)))
            if message.ByteSize() > MAX_MESSAGE_BYTES:  # which would end the stream, and all steps on it
                raise InvalidOutput(f"the agent produced an event of more than {MAX_MESSAGE_BYTES} bytes", hint="ask for a shorter answer")
            await self._outbox.put(message)
            has_finished = isinstance(event, Finished)

        with scope, continued_trace(start.traceparent):
            error = await self._compute(start, emit)
        if scope.cancelled_caught:
            error = self._leaving() if self._is_draining else Cancelled("the step was cancelled by its caller")
        if error is not None and has_finished:  # the agent failed, or was cancelled, while it tidied up; a step ends once
            logger.warning("after the end of a step: %s", error)
        elif error is not None and not self._ended.is_set():
            await self._outbox.put(pb.WorkerMessage(output=pb.StepOutput(step=start.step, failure=failure_to_proto(error))))

    async def _compute(self, start: pb.StartStep, emit: Callable[[StepEvent], Awaitable[None]]) -> NearfarError | None:
        try:
            if self._is_draining:
                raise self._leaving()
            if start.agent not in self._agents:
                raise NotFound(f"the worker has no agent {start.agent!r}")
            agent = self._agents[start.agent]
            timeout = start.timeout if start.HasField("timeout") else None
            request = request_from_proto(start.request, idempotency_key=start.idempotency_key, timeout=timeout)
            check_privacy(agent.card, request)
        except NearfarError as error:
            return error
        return await run_step(agent, request, emit)

    async def _stop_steps(self) -> None:
        """Cancel all steps and wait until their agents have let go of them."""
        for _, scope in self.steps.values():
            scope.cancel()
        with anyio.move_on_after(_STOP_LIMIT, shield=True):
            await self._idle.wait()
        if self.steps:
            logger.error("%d steps did not stop within %g s of their cancellation", len(self.steps), _STOP_LIMIT)

    def _leaving(self) -> Unavailable:
        return Unavailable("the worker is leaving", hint="ask another agent")


def _read_error(error: grpc.aio.AioRpcError) -> NearfarError:
    """Return the error that a stream ended with; a server without `Attach` is reported as not being a hub."""
    read = from_rpc_error(error)
    if isinstance(read, Unsupported):
        return Unsupported("the server at this address is not a hub", hint="start one there with `nearfar serve hub`")
    return read
