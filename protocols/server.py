"""`serve()`: agents at a gRPC address, and `AgentService`, the RPCs with the tasks in which the agents compute."""

import asyncio
import logging
import math
import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import replace
from hashlib import blake2b

import anyio
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health
from grpc_reflection.v1alpha import reflection

from .access import CALL, Access, Clock, Context
from .address import Address, parse_address
from .agent import Agent, AgentCard, run_step
from .channel import server_options
from .entrance import Entrance, guarded
from .errors import ConfigError, DeadlineExceeded, InvalidOutput, InvalidRequest, NearfarError, NotFound, StepLost, Unavailable
from .limits import CALLS, MAX_MESSAGE_BYTES, NAME_LENGTH, UNREAD_SECONDS
from .propagation import TRACEPARENT, continued_trace
from .security import IDENTITY, Tokens, check_exposure
from .step_log import LoggedStep, Retention, StepLog
from .steps import Finished, StepEvent, StepRequest
from .tls import ServerTls
from .v1 import agent_pb2 as pb
from .validation import check_privacy
from .wire import ACCEPTED, SERVICE, card_to_proto, event_to_proto, request_from_proto

logger = logging.getLogger(__name__)

__all__ = ["Retention", "Server", "ServerTls", "serve"]

_BACK_AFTER = 1.0
"""Seconds that clients of a server in shutdown should wait; another server may have its address by then."""


class AgentService:
    """Serves `agents` by name; the first one answers calls that name no agent. The mapping may change meanwhile, as a hub's does."""

    def __init__(self, agents: Mapping[str, Agent], *, retention: Retention) -> None:
        self._agents = agents
        self._log = StepLog(retention)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: NearfarError | None = None
        self._ended = asyncio.Event()
        """Set whenever a step or a call has ended."""
        self.live_calls = 0
        """Handlers of `Step` that are running now."""

    @property
    def live_steps(self) -> int:
        """Return the number of steps whose agent is computing now."""
        return len(self._tasks)

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers of the RPCs. Events are kept in their wire form, so `Step` needs no serializer."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Describe": grpc.unary_unary_rpc_method_handler(
                    self.describe, pb.DescribeRequest.FromString, pb.DescribeResponse.SerializeToString
                ),
                "Step": grpc.unary_stream_rpc_method_handler(self.step, pb.StepCall.FromString),
                "Cancel": grpc.unary_unary_rpc_method_handler(
                    self.cancel, pb.CancelRequest.FromString, pb.CancelResponse.SerializeToString
                ),
            },
        )

    async def describe(self, request: pb.DescribeRequest, context: Context) -> pb.DescribeResponse:
        return pb.DescribeResponse(agents=map(card_to_proto, _cards(self._agents)))

    async def cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResponse:
        self._log.leave((IDENTITY.get().caller, request.idempotency_key), reader=request.reader)
        return pb.CancelResponse()

    async def step(self, call: pb.StepCall, context: Context) -> None:
        self.live_calls += 1
        given = next((value for key, value in context.invocation_metadata() or () if key == TRACEPARENT), None)
        try:
            with continued_trace(given):
                await self._send(self._join(call, context), call, context)
        finally:
            self.live_calls -= 1
            self._ended.set()

    async def drain(self, time_limit: float) -> bool:
        """Refuse new steps, and give running ones at most `time_limit` seconds to be computed and read to their end.

        Return whether all of them ended.
        """
        self._log.refusal = _shutting_down()
        with anyio.move_on_after(time_limit):
            while self._tasks or self.live_calls:
                self._ended.clear()
                await self._ended.wait()
        return not self._tasks and not self.live_calls

    def shut_out(self, tokens: Collection[str], error: NearfarError) -> None:
        """Stop with `error` the steps of callers that have shown only these tokens, by their ids."""
        self._log.shut_out(tokens, error)

    async def close(self, time_limit: float) -> None:
        """Cancel all steps and wait for their tasks, at most `time_limit` seconds."""
        self._closing = _shutting_down()
        self._log.close(_shutting_down(StepLost))
        if self._tasks:
            _, stuck = await asyncio.wait(self._tasks, timeout=time_limit)
            if stuck:
                logger.error("%d steps did not stop within %g s of their cancellation", len(stuck), time_limit)

    def _join(self, call: pb.StepCall, context: Context) -> LoggedStep:
        if self._closing is not None:
            raise self._closing
        if len(call.reader) > NAME_LENGTH:
            raise InvalidRequest(f"a reader's name has {NAME_LENGTH} characters at most")
        name, agent = self._agent(call.agent)
        request = request_from_proto(call.request, idempotency_key=call.idempotency_key, timeout=_timeout(context))
        check_privacy(agent.card, request)
        fingerprint = blake2b(name.encode() + b"\0" + call.request.SerializeToString(deterministic=True)).digest()
        resume_from = call.resume_from if call.HasField("resume_from") else None
        identity = IDENTITY.get()
        step, is_new = self._log.join((identity.caller, call.idempotency_key), fingerprint, resume_from=resume_from)
        step.tokens.add(identity.token)
        if is_new:
            step.task = asyncio.create_task(self._compute(step, agent, request))
            self._tasks.add(step.task)
            step.task.add_done_callback(lambda task: self._settle(step, task))
        return step

    async def _send(self, step: LoggedStep, call: pb.StepCall, context: Context) -> None:
        is_local = context.peer().startswith("unix:")  # such a connection is lost only where the client is gone
        with self._log.reading(step, reader=call.reader, may_return=not is_local):
            await _Delivery(context).send(step, position=call.resume_from)
        if step.error is not None:
            raise step.error

    async def _compute(self, step: LoggedStep, agent: Agent, request: StepRequest) -> None:
        async def record(event: StepEvent) -> None:
            self._log.append(step, _encoded(event))
            if isinstance(event, Finished):
                self._log.finish(step)

        if error := await run_step(agent, request, record):
            self._log.finish(step, error)

    def _settle(self, step: LoggedStep, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._ended.set()
        step.task = None
        if not step.done:
            self._log.finish(step, StepLost("the step was stopped on the server"))

    def _agent(self, name: str) -> tuple[str, Agent]:
        if not name and self._agents:
            return next(iter(self._agents.items()))
        if name not in self._agents:
            raise NotFound(f"the server has no agent {name!r}", hint=f"it has: {', '.join(sorted(self._agents))}")
        return name, self._agents[name]


class _Delivery:
    """Sends a step's events to one reader, and ends the call with `DeadlineExceeded` when the reader takes nothing for `UNREAD_SECONDS`.

    One timer watches the whole call: a timer per event would cost more than the event.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._call = CALL.get()
        self._writing_since = math.inf
        self._timer = self._loop.call_later(UNREAD_SECONDS, self._check)

    async def send(self, step: LoggedStep, *, position: int) -> None:
        """Send the events from `position` on, as they come, until the step is done."""
        try:
            position += await self._call.begin(self._begin(step, position))
            while True:
                while position < len(step.events):
                    await self._write(step.events[position])
                    position += 1
                self._writing_since = math.inf
                if step.done:
                    return
                await step.change()
        finally:
            self._timer.cancel()

    async def _begin(self, step: LoggedStep, position: int) -> int:
        """Send the metadata, or the first event in place of them. Returns how many events were sent."""
        await asyncio.sleep(0)  # a fast agent, whose task comes before this one in the next turn of the loop, has an event by then
        if position or not step.events:
            await self._context.send_initial_metadata(ACCEPTED)
            return 0
        await self._write(step.events[0])
        return 1

    async def _write(self, event: bytes) -> None:
        self._writing_since = self._loop.time()
        await self._context.write(event)

    def _check(self) -> None:
        now = self._loop.time()
        due = min(self._writing_since, now) + UNREAD_SECONDS
        if due > now:
            self._timer = self._loop.call_at(due, self._check)
            return
        message = f"the step's reader took nothing for {UNREAD_SECONDS:g} s"
        self._call.end(DeadlineExceeded(message, hint="read faster, or resume the step"))


def _cards(agents: Mapping[str, Agent]) -> Iterator[AgentCard]:
    """Yield the cards under the served names, except those of workers that have never been attached."""
    for name, agent in agents.items():
        with suppress(Unavailable):
            yield agent.card.model_copy(update={"name": name})


def _shutting_down(error: type[Unavailable] = Unavailable) -> Unavailable:
    return error("the server is shutting down", hint="try again shortly, or at another server", retry_after=_BACK_AFTER)


def _encoded(event: StepEvent) -> bytes:
    data = event_to_proto(event).SerializeToString()
    if len(data) > MAX_MESSAGE_BYTES:
        raise InvalidOutput(f"the agent produced an event of more than {MAX_MESSAGE_BYTES} bytes", hint="ask for a shorter answer")
    return data


def _timeout(context: Context) -> float | None:
    remaining = context.time_remaining()
    if remaining is not None and remaining <= 0:
        raise DeadlineExceeded("the step's deadline had passed when it reached the server")
    return remaining


class Server:
    """A running server."""

    def __init__(self, address: Address, service: AgentService, health: health.HealthServicer, *, access: Access) -> None:
        self.address = str(address)
        """The address that is bound; port 0 is replaced by the free port that was found."""
        self._service = service
        self._health = health
        self._access = access

    async def drain(self, time_limit: float) -> bool:
        """Report "not serving", refuse new steps, and give running ones at most `time_limit` seconds to finish.

        Clients may still read and resume those. Return whether all of them ended; the others are cancelled when the server ends.
        """
        await self._health.enter_graceful_shutdown()
        return await self._service.drain(time_limit)

    def replace_tokens(self, tokens: Tokens) -> None:
        """Admit only callers with these `tokens`. Steps and calls with a removed token end at once.

        Raise `ConfigError`, and change nothing, if the server was started without tokens or one is unusable.
        """
        self._access.replace_tokens(tokens)

    @property
    def live_steps(self) -> int:
        """Return the number of steps whose agent is computing now."""
        return self._service.live_steps

    @property
    def live_calls(self) -> int:
        """Return the number of clients that are reading a step now."""
        return self._service.live_calls


@asynccontextmanager
async def serve(
    agents: Agent | Mapping[str, Agent],
    address: str = "localhost:0",
    *,
    tokens: Tokens | None = None,
    tls: ServerTls | None = None,
    insecure: bool = False,
    retention: Retention | None = None,
    shutdown_limit: float = 5.0,
    further: Mapping[str, grpc.GenericRpcHandler] | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Server]:
    """Serve `agents` (one, or several by name, of which the first is the default) until the context ends. The mapping may change
    meanwhile.

    `address` is `host:port` (port 0: a free one) or `unix:/path`. `tokens` maps each caller's name to its bearer token, or holds the
    records of a token file; without tokens every caller is admitted, which is allowed on this machine only. Beyond this machine `tls` is
    required; `insecure` confirms that plaintext is wanted, and is refused there. The agents stay open: the caller closes them. On exit
    running steps are cancelled, unless `Server.drain` let them finish before; each phase of the shutdown takes at most `shutdown_limit`
    seconds.

    `further` holds more services, by name. Tokens expire by `clock`. `retention` says how long, and how much of, finished steps is kept for
    callers that lost their connection.

    Raise `ConfigError` if there is nothing to serve, or the address is malformed, taken or too exposed.
    """
    agents = agents if isinstance(agents, Mapping) else {agents.card.name: agents}
    if not agents and not further:
        raise ConfigError("there is no agent to serve", hint="give at least one")
    access = Access(tokens, clock=clock)
    health_service = health.HealthServicer()
    service = AgentService(agents, retention=retention or Retention())
    access.on_ending(service.shut_out)
    serving = listening(
        {SERVICE: service.handlers(), **(further or {})},
        address,
        access=access,
        tls=tls,
        insecure=insecure,
        closing=lambda: service.close(shutdown_limit),
        time_limit=shutdown_limit,
        health_service=health_service,
    )
    async with serving as bound:
        logger.info("serving %s at %s", ", ".join(agents) or "no agent yet", bound)
        yield Server(bound, service, health_service, access=access)


@asynccontextmanager
async def listening(
    services: Mapping[str, grpc.GenericRpcHandler],
    address: str,
    *,
    access: Access,
    tls: ServerTls | None,
    insecure: bool,
    closing: Callable[[], Awaitable[None]],
    time_limit: float,
    health_service: health.HealthServicer | None = None,
) -> AsyncIterator[Address]:
    """Run a gRPC server with `services`, health and reflection until the context ends; yield the address that is bound.

    `access` decides who may call the services; health and reflection are open to all. On exit, `closing` ends the work of the services
    before the connections are closed. Raise `ConfigError` as `serve` does.
    """
    where = parse_address(address)
    check_exposure(where, authenticator=access.authenticator, tls=tls, insecure=insecure)
    server = grpc.aio.server(interceptors=[Entrance(access)], options=list(server_options()), maximum_concurrent_rpcs=CALLS)
    server.add_generic_rpc_handlers(tuple(guarded(each, access) for each in services.values()))
    health_service = health_service or health.HealthServicer()
    await _add_health_and_reflection(server, tuple(services), health_service)
    bound = _bind(server, where, tls)
    await server.start()
    watching = asyncio.create_task(access.watch())
    try:
        yield bound
    finally:
        watching.cancel()
        with anyio.CancelScope(shield=True):
            await health_service.enter_graceful_shutdown()
            await closing()
            await server.stop(time_limit)


async def _add_health_and_reflection(server: grpc.aio.Server, services: tuple[str, ...], service: health.HealthServicer) -> None:
    for name in services:
        await service.set(name, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(service, server)
    names = (*services, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)


def _bind(server: grpc.aio.Server, address: Address, tls: ServerTls | None) -> Address:
    if address.path:
        _free_socket_path(address.path)
    if address.host == "localhost":
        # One definite address: on both loopback addresses at once, a server counts as started if only one of them was free.
        address = replace(address, host="127.0.0.1")
    try:
        with _private_files() if address.path else nullcontext():
            port = server.add_insecure_port(str(address)) if tls is None else server.add_secure_port(str(address), tls.credentials())
    except RuntimeError as error:
        raise _cannot_listen(address) from error
    return address if address.path else replace(address, port=port)


@contextmanager
def _private_files() -> Iterator[None]:
    """Create files inside the block for their owner only, from their first moment: a socket accepts connections as soon as it exists."""
    before = os.umask(stat.S_IXUSR | stat.S_IRWXG | stat.S_IRWXO)
    try:
        yield
    finally:
        os.umask(before)


def _free_socket_path(path: str) -> None:
    """Remove the socket of a dead server. Raise `ConfigError` if a server still answers, or if the path is not a socket."""
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise ConfigError(f"{path} exists and is not a socket", hint="choose another path")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # a server that hangs, its queue full, is there all the same
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass
        except OSError as error:
            raise ConfigError(f"the socket {path} cannot be used: {error.strerror}", hint="choose another path") from error
    raise ConfigError(f"another server listens at unix:{path}", hint="stop it, or choose another path")


def _cannot_listen(address: Address) -> ConfigError:
    if address.path:
        return ConfigError(f"cannot listen at {address}", hint="the folder must exist and be writable")
    reason = "it is not available"
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family) as probe:
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            reason = error.strerror or str(error)
    return ConfigError(
        f"cannot listen at {address.host}, port {address.port}: {reason}",
        hint="stop the program that uses the port, choose another one, or use port 0 for a free one",
    )
