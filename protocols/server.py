"""`serve()`: agents at a gRPC address."""

import asyncio
import logging
import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace

import anyio
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health
from grpc_reflection.v1alpha import reflection

from .access import Access, Clock
from .address import Address, parse_address
from .agent import Agent
from .channel import ServerTls, server_options
from .entrance import Entrance
from .errors import ConfigError
from .limits import CALLS
from .security import check_exposure
from .service import AgentService
from .step_log import Retention
from .tokens import Tokens
from .wire import SERVICE

logger = logging.getLogger(__name__)

__all__ = ["Retention", "Server", "ServerTls", "serve"]


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
        """Admit only callers with these tokens. Steps and calls with a removed token end at once.

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

    `further` holds more services, by name. Tokens expire by `clock`.

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
    server.add_generic_rpc_handlers(tuple(map(access.guarded, services.values())))
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
