"""`RemoteAgent`: an agent on the other side of a gRPC connection. Its steps are read, resumed after a broken connection, and cancelled when
their reader leaves early.
"""

import asyncio
import logging
import random
import secrets
from collections.abc import AsyncGenerator, Awaitable
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias, TypeVar

import anyio
import grpc

from .address import Address, parse_address
from .agent import AgentCard, LoopBound, Side
from .channel import explained, open_channel
from .errors import (
    ConfigError,
    DeadlineExceeded,
    InvalidOutput,
    InvalidRequest,
    NearfarError,
    NotFound,
    ResumeLost,
    Stalled,
    StepLost,
    Unavailable,
    from_grpc_status,
)
from .limits import MAX_MESSAGE_BYTES, STEP_BYTES
from .propagation import trace_headers
from .secrets import inspect
from .security import bearer_metadata
from .status import carried_error, is_broken, never_connected
from .steps import Finished, StepEvent, StepRequest
from .tls import ClientTls
from .v1 import agent_pb2 as pb
from .v1.agent_pb2_grpc import AgentServiceStub
from .validation import check_privacy
from .wire import ACCEPTED, card_from_proto, event_from_proto, request_to_proto

logger = logging.getLogger(__name__)

_DESCRIBE_LIMIT = 10.0
IDLE_TIMEOUT = 330.0
"""Seconds. A reasoning model may be silent for minutes; keepalive notices a dead peer much earlier. The value is a little above a
provider's own limit, so that the provider's more exact error arrives first."""

StepCall: TypeAlias = "grpc.aio.UnaryStreamCall[pb.StepCall, pb.StepEvent]"

_CANCEL_LIMIT = 1.0
"""Seconds for telling the server about a cancellation."""
_CANCEL_WAIT = 0.2
"""Seconds of them that the leaving reader has to wait."""
_SEND_AGAIN_LIMIT = 1.0
_FIRST_DELAY = 0.05
_LONGEST_DELAY = 1.0
_LONGEST_TIMEOUT = 1e9
"""Seconds. gRPC's clock overflows with larger values, and the call would end at once."""
_NEVER = float("inf")

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Connection:
    """The channel and options that all steps of one `RemoteAgent` share."""

    stub: AgentServiceStub
    address: Address
    tls: ClientTls | None
    metadata: tuple[tuple[str, str], ...] = field(repr=False)
    """Holds the token."""
    idle_timeout: float
    resume_timeout: float
    leaving: set[asyncio.Task[None]] = field(default_factory=set)
    """Tasks that tell the server about left steps; each ends by itself."""

    async def failure(self, error: grpc.aio.AioRpcError) -> NearfarError:
        """Return the error behind the end of a call: the server's own error, or the reason why it cannot be reached."""
        return carried_error(error) or await explained(self.address, self.tls, error) or self._unreachable(error)

    def _unreachable(self, error: grpc.aio.AioRpcError) -> NearfarError:
        """Return the error for a status that does not come from a nearfar server."""
        details = error.details() or error.code().name
        if error.code() is grpc.StatusCode.CANCELLED:
            return Unavailable(
                f"{self.address} dropped the call without an answer",
                hint="the server, or a proxy before it, is overloaded: try again later",
            )
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            hint = "check that the server runs, its address, and its certificate if it uses TLS"
            return Unavailable(f"cannot reach {self.address}: {details}", hint=hint)
        return from_grpc_status(error.code().name, f"{self.address}: {details}")


class RemoteStep:
    """A step that a server computes. Call `next` until it returns None, then `close`; an earlier `close` cancels the step."""

    def __init__(self, connection: Connection, agent: str, request: StepRequest) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._message = pb.StepCall(
            agent=agent, idempotency_key=request.idempotency_key, request=request_to_proto(request), reader=secrets.token_hex(16)
        )
        if self._message.ByteSize() > MAX_MESSAGE_BYTES:
            raise InvalidRequest(f"the request is larger than {MAX_MESSAGE_BYTES} bytes", hint="shorten the conversation")
        inspect(self._message.SerializeToString)
        self._metadata = (*connection.metadata, *trace_headers().items())
        self._deadline = _NEVER if request.timeout is None else self._loop.time() + request.timeout
        self._received = 0
        self._bytes = 0
        self._is_finished = False
        """`Finished` has come."""
        self._was_sent_again = False
        self._is_over = False
        """The server has no compute left to stop."""
        self._ended_by: NearfarError | None = None
        """The reason why this side cancelled the call."""
        self._waiting_since = _NEVER
        self._call = self._open()
        self._timer = self._loop.call_later(connection.idle_timeout, self._check_idle)

    async def next(self) -> StepEvent | None:
        """Return the next event, or None after the last one. Raise the error that the step ended with."""
        while True:
            if self._ended_by is not None:
                raise self._ended_by
            try:
                message = await self._read()
            except grpc.aio.AioRpcError as error:
                if self._is_finished:  # the connection broke when everything had come
                    return None
                await self._recover(error)
                continue
            if isinstance(message, pb.StepEvent):
                return self._event(message)
            self._is_over = True
            if self._is_finished:
                return None
            raise InvalidOutput(f"{self._connection.address} ended a stream without a result")

    async def close(self) -> None:
        """Release the call; if the step is not over, tell the server to stop it. A silent server is not waited for."""
        self._timer.cancel()
        self._call.cancel()
        if self._is_over:
            return
        self._is_over = True
        telling = asyncio.create_task(self._send_cancel())
        self._connection.leaving.add(telling)
        telling.add_done_callback(self._connection.leaving.discard)
        with anyio.CancelScope(shield=True):
            await asyncio.wait([telling], timeout=_CANCEL_WAIT)

    async def abort(self, error: NearfarError) -> None:
        """Close the step from outside; its reader gets `error`."""
        self._ended_by = self._ended_by or error
        await self.close()

    def _open(self) -> StepCall:
        timeout = None if self._deadline == _NEVER else min(max(self._deadline - self._loop.time(), 0.0), _LONGEST_TIMEOUT)
        call: StepCall = self._connection.stub.Step(self._message, timeout=timeout, metadata=self._metadata)
        return call

    def _event(self, message: pb.StepEvent) -> StepEvent:
        if self._is_finished:
            raise InvalidOutput(f"{self._connection.address} went on after the end of a step")
        event = event_from_proto(message)
        self._received += 1
        self._bytes += message.ByteSize()
        if self._bytes > STEP_BYTES:
            raise InvalidOutput(
                f"{self._connection.address} sent more than {STEP_BYTES} bytes in one step", hint="ask for a shorter answer"
            )
        if isinstance(event, Finished):
            self._is_finished = self._is_over = True
        return event

    async def _read(self) -> object:
        """Return the next message, or grpc's end-of-stream mark."""
        self._waiting_since = self._loop.time()
        try:
            return await self._unless_ended(self._call.read())
        finally:
            self._waiting_since = _NEVER

    async def _unless_ended(self, waiting: Awaitable[_T]) -> _T:
        """Await `waiting`. Raise the reason instead if this class has cancelled the call."""
        task = asyncio.current_task()
        cancellations = task.cancelling() if task else 0
        try:
            return await waiting
        except asyncio.CancelledError:
            # The call was cancelled, by this class or from outside; or the task that reads it was.
            if self._ended_by is None or (task and task.cancelling() > cancellations):
                raise
            raise self._ended_by from None

    async def _recover(self, error: grpc.aio.AioRpcError) -> None:
        """Resume the step after `error`, or raise the error that it stands for."""
        if not is_broken(error):
            await self._fail(error)
        logger.info("the connection to %s broke after %d events", self._connection.address, self._received)
        self._timer.cancel()
        await (self._resume(error) if await self._was_accepted() else self._send_again(error))
        self._timer = self._loop.call_later(self._connection.idle_timeout, self._check_idle)

    async def _was_accepted(self) -> bool:
        return self._received > 0 or ACCEPTED[0] in tuple(await self._call.initial_metadata())

    async def _send_again(self, error: grpc.aio.AioRpcError) -> None:
        """Look for the step on the server, which may or may not have received it, and send it again if it is not there.

        This is tried once and at once: a server that is down is not waited for.
        """
        if self._was_sent_again:
            await self._fail_unheard(error)
        self._was_sent_again = True
        give_up_at = min(self._loop.time() + _SEND_AGAIN_LIMIT, self._deadline)
        try:
            failure = await self._look_for_it(give_up_at)
        except ResumeLost:
            self._is_over = False
            self._message.ClearField("resume_from")
            self._call = self._open()
            if (failure := await self._connect(give_up_at)) is not None:
                error = failure
        if failure is not None:
            await self._fail_unheard(error)

    async def _look_for_it(self, give_up_at: float) -> grpc.aio.AioRpcError | None:
        """Call `_reopen` until the connection holds: the first attempt may use the old connection, whose end gRPC has not noticed yet."""
        while True:
            failure = await self._reopen(give_up_at)
            if failure is None or never_connected(failure) or self._loop.time() >= give_up_at:
                return failure
            await asyncio.sleep(random.uniform(0, _FIRST_DELAY))
            if self._ended_by is not None:
                raise self._ended_by

    async def _reopen(self, give_up_at: float) -> grpc.aio.AioRpcError | None:
        """Open the call after the last event received; see `_connect`."""
        self._message.resume_from = self._received
        self._call = self._open()
        return await self._connect(give_up_at)

    async def _resume(self, error: grpc.aio.AioRpcError) -> None:
        """Open the call again after the last event received, with growing, jittered delays."""
        give_up_at = min(self._loop.time() + self._connection.resume_timeout, self._deadline)
        delay = _FIRST_DELAY
        while True:
            await asyncio.sleep(random.uniform(0, delay))
            if self._ended_by is not None:
                raise self._ended_by
            if self._loop.time() >= give_up_at:
                self._give_up(error)
            if failure := await self._reopen(give_up_at):
                error = failure
            else:
                return
            delay = min(2 * delay, _LONGEST_DELAY)

    async def _connect(self, give_up_at: float) -> grpc.aio.AioRpcError | None:
        """Wait until the server has accepted the call. Return the error of a broken connection, raise any other."""
        try:
            async with asyncio.timeout_at(give_up_at):
                await self._unless_ended(self._call.wait_for_connection())
        except TimeoutError:
            return _connection_timeout()
        except grpc.aio.AioRpcError as error:
            if not is_broken(error):
                await self._fail(error)
            return error
        return None

    async def _fail(self, error: grpc.aio.AioRpcError) -> NoReturn:
        self._is_over = True
        raise await self._connection.failure(error) from error

    async def _fail_unheard(self, error: grpc.aio.AioRpcError) -> NoReturn:
        """Fail because there is no connection and the server has not confirmed the step; if a connection existed, it may have the step."""
        self._is_over = True
        found = await self._connection.failure(error)
        if type(found) is not Unavailable or never_connected(error):
            raise found from error
        raise StepLost(f"{found.message}; the step may have begun there", hint=found.hint) from error

    def _give_up(self, error: grpc.aio.AioRpcError) -> NoReturn:
        self._is_over = True  # the server cannot be told; it stops the step by itself when the reader stays away
        if self._loop.time() >= self._deadline:
            raise DeadlineExceeded("the step took longer than its timeout") from error
        window = self._connection.resume_timeout
        raise StepLost(
            f"the connection to {self._connection.address} broke after {self._received} events and did not come back within {window:g} s",
            hint="ask again with the same idempotency key, or ask another agent",
        ) from error

    def _check_idle(self) -> None:
        """Check for an idle timeout. Runs once per idle timeout, not once per event."""
        now = self._loop.time()
        due = min(self._waiting_since, now) + self._connection.idle_timeout
        if due > now:
            self._timer = self._loop.call_at(due, self._check_idle)
            return
        idle = self._connection.idle_timeout
        self._ended_by = Stalled(f"{self._connection.address} was silent for {idle:g} s", hint="ask another agent, or raise idle_timeout")
        self._call.cancel()

    async def _send_cancel(self) -> None:
        """Tell the server to cancel the step, again while connections break: a step that is not cancelled goes on for a while, and
        costs."""
        message = pb.CancelRequest(idempotency_key=self._message.idempotency_key, reader=self._message.reader)
        connection, give_up_at = self._connection, self._loop.time() + _CANCEL_LIMIT
        while (left := give_up_at - self._loop.time()) > 0:
            try:
                await connection.stub.Cancel(message, timeout=left, metadata=connection.metadata, wait_for_ready=True)
            except grpc.aio.AioRpcError as error:
                logger.debug("the server could not be told to cancel a step: %s", error.code().name)
                if error.code() is grpc.StatusCode.UNAVAILABLE and not carried_error(error):
                    await asyncio.sleep(_FIRST_DELAY)
                    continue
            return


def _connection_timeout() -> grpc.aio.AioRpcError:
    metadata = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, metadata, metadata, "connecting took too long")


class RemoteAgent:
    """The agent that a server offers at `address` under the name `agent` (empty: its first one).

    A step fails at once if the server is down. If the connection breaks later, the step is resumed behind the last event
    received for up to `resume_timeout` seconds, so that the text stays exact. `Stalled` says that the server was silent for
    `idle_timeout` seconds. On this machine the connection is plaintext unless `tls` is given; to another one it is always TLS,
    and the agent counts as far whatever its card says, so private text never leaves this machine. When files in `tls` change,
    further steps get a new connection.
    """

    is_elsewhere = True
    """Text that must never leave this device is not sent here: a hub may sit behind an address on this machine, too."""

    def __init__(
        self,
        address: str,
        *,
        agent: str = "",
        token: str | None = None,
        tls: ClientTls | None = None,
        idle_timeout: float = IDLE_TIMEOUT,
        resume_timeout: float = 2.0,
    ) -> None:
        """Set up the connection; nothing is sent before the first call. `token` is the bearer token that the server knows this device by.
        Raise `ConfigError` for a malformed address or token."""
        self._address = parse_address(address)
        self._agent = agent
        self._tls = tls
        self._metadata = bearer_metadata(token)
        self._idle_timeout = idle_timeout
        self._resume_timeout = resume_timeout
        self._channels: list[grpc.aio.Channel] = []
        """The current channel, and older ones that steps from before a change of the files in `tls` may still use."""
        self._files: object = None
        self._connection: Connection | None = None
        self._card: AgentCard | None = None
        self._steps: set[RemoteStep] = set()
        self._is_closed = False
        self._home = LoopBound()

    @classmethod
    async def connect(
        cls,
        address: str,
        *,
        agent: str = "",
        token: str | None = None,
        tls: ClientTls | None = None,
        idle_timeout: float = IDLE_TIMEOUT,
        resume_timeout: float = 2.0,
    ) -> "RemoteAgent":
        """Return a `RemoteAgent` whose card is loaded; the arguments are those of `RemoteAgent`. Raise the errors of `describe`."""
        remote = cls(address, agent=agent, token=token, tls=tls, idle_timeout=idle_timeout, resume_timeout=resume_timeout)
        try:
            await remote.describe()
        except BaseException:
            await remote.aclose()
            raise
        return remote

    @property
    def server(self) -> tuple[str, int] | None:
        """Return the host and port of the server, for telemetry; None for a Unix socket."""
        return None if self._address.path else (self._address.host, self._address.port)

    @property
    def card(self) -> AgentCard:
        """Return the card that `describe` last fetched. Raise `ConfigError` before the first `describe`."""
        if self._card is None:
            raise ConfigError(
                f"the agent at {self._address} has not been asked for its card", hint="await RemoteAgent.connect(...) or describe()"
            )
        return self._card

    async def describe(self) -> AgentCard:
        """Fetch the card. Raises `Unavailable`, `Unauthenticated` or, if the server has no such agent, `NotFound`."""
        connection = self._connected()
        try:
            reply: pb.DescribeResponse = await connection.stub.Describe(
                pb.DescribeRequest(), timeout=_DESCRIBE_LIMIT, metadata=connection.metadata
            )
        except grpc.aio.AioRpcError as error:
            raise await connection.failure(error) from error
        cards = [card_from_proto(card) for card in reply.agents]
        chosen = next((card for card in cards if self._agent in ("", card.name)), None)
        if chosen is None:
            names = ", ".join(card.name for card in cards) or "none"
            raise NotFound(f"the server at {self._address} has no agent {self._agent!r}", hint=f"it has: {names}")
        self._card = chosen if self._address.is_local else chosen.model_copy(update={"side": Side.FAR})
        return self._card

    async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
        """Run one step on the server with this `request`. Leaving the stream early stops the compute there."""
        connection = self._connected()
        check_privacy(self._card or await self.describe(), request)
        step = RemoteStep(connection, self._agent, request)
        self._steps.add(step)
        try:
            while event := await step.next():
                yield event
        finally:
            self._steps.discard(step)
            await step.close()

    async def aclose(self) -> None:
        """Close the connection. Steps under way are stopped on the server and raise `StepLost`."""
        if self._channels:
            self._home.require(f"the connection to {self._address}")
        self._is_closed = True
        await asyncio.gather(*(step.abort(self._closed(StepLost)) for step in tuple(self._steps)))
        if self._connection is not None and self._connection.leaving:
            await asyncio.wait(self._connection.leaving)
        await asyncio.gather(*(channel.close() for channel in self._channels))

    def _connected(self) -> Connection:
        if self._is_closed:
            raise self._closed()
        self._home.require(f"the connection to {self._address}")
        files = None if self._tls is None else self._tls.look()
        if self._connection is None:
            self._connection = self._open()
        elif files != self._files:
            try:
                self._connection = self._open()
            except ConfigError as error:  # files that are replaced one after the other do not fit for a moment
                logger.warning("the connection to %s stays as it was: %s", self._address, error)
                return self._connection
        self._files = files
        return self._connection

    def _open(self) -> Connection:
        channel = open_channel(self._address, self._tls)
        self._channels.append(channel)
        return Connection(
            stub=AgentServiceStub(channel),
            address=self._address,
            tls=self._tls,
            metadata=self._metadata,
            idle_timeout=self._idle_timeout,
            resume_timeout=self._resume_timeout,
        )

    def _closed(self, error: type[Unavailable] = Unavailable) -> Unavailable:
        return error(f"the connection to {self._address} is closed")
