"""The gateway that a `Hybrid` starts itself: its handle on the child process, and the child, which serves the far agent until it leaves."""

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Unpack

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream
from pydantic import BaseModel, TypeAdapter

from ...cloud.config import A2aAgentConfig, GatewayLimits, ProviderConfig, build_provider
from ...protocols import Agent, AgentCard, ConfigError, DeadlineExceeded, NearfarError, Side, StepEvent, StepRequest, Unavailable, stream
from ...protocols.agent import LoopBound
from ...protocols.errors import BY_REASON
from ...protocols.limits import ask_for_open_files
from ...protocols.system import interpreter
from ..agents import AgentPool
from ..storage.owners import SocketFolder, remove_abandoned
from ..util.plugins import FarPluginConfig, open_plugin_agent
from ..util.runtime import run_in_daemon_thread
from . import FarConfig, GatewayConfig, LocalFarConfig, ServeOptions, open_local

if TYPE_CHECKING:
    from ...protocols.client import RemoteAgent
    from ...protocols.server import Server

logger = logging.getLogger(__name__)
_START_SECONDS = 120.0
"""Loading a large model from a slow disk takes this long at most."""
_STOP_SECONDS = 5.0
_MAXIMUM_LINE = 65_536
_HAS_SOCKET_FILES = hasattr(socket, "AF_UNIX")
"""False on Windows, where the gateway process is known by its token alone."""
_RESUME_SECONDS = 2.0
"""A broken private socket means a dead child, so resuming is given up soon."""
_PIECE = 65_536
_ALONE = GatewayLimits(waiting=1_000_000, longest_wait=86_400)
"""The parent is the only caller, and may queue up as much as it likes."""


_CONFIG: TypeAdapter[FarConfig] = TypeAdapter(FarConfig)


class GatewayProcess:
    """The far agent behind a gateway in a child process: an `Agent` that restarts the child when it has died."""

    def __init__(self, config: BaseModel, *, address: str | None = None) -> None:
        self._config = config
        self._folder = SocketFolder() if address is None and _HAS_SOCKET_FILES else None
        self._address = (address or "127.0.0.1:0") if self._folder is None else f"unix:{self._folder.path}/gateway"
        self._token = secrets.token_urlsafe()
        self._process: anyio.abc.Process | None = None
        self._remote: RemoteAgent | None = None
        self._card: AgentCard | None = None
        """Known from the first connection on, also while a child that died is replaced."""
        self._starting = anyio.Lock()
        self._is_closed = False
        self._home = LoopBound()

    @classmethod
    async def start(cls, config: BaseModel, *, address: str | None = None) -> "GatewayProcess":
        """Start the child and connect.

        Args:
            config: the far agent that the child opens.
            address: `HOST:PORT` on loopback; None: a unix socket in a private folder, or on Windows a free port.

        Raises what opening the far agent raises in the child, `Unavailable` where the child dies or hangs while it starts.
        """
        gateway = cls(config, address=address)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(gateway.aclose)
            await gateway._connected()
            stack.pop_all()
        return gateway

    @property
    def card(self) -> AgentCard:
        assert self._card is not None, "start() has connected"
        return self._card

    @property
    def process_id(self) -> int | None:
        """The id of the running child process; None where it has died or was closed."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def step(self, request: StepRequest) -> AsyncIterator[StepEvent]:
        with anyio.move_on_after(request.timeout) as starting:
            remote = await self._connected()
        if starting.cancelled_caught:
            raise DeadlineExceeded("the step's time was over before the gateway process had started again", hint="give it a longer timeout")
        async with stream(remote, request) as events:
            async for event in events:
                yield event

    async def aclose(self) -> None:
        """Stop the child: it gets a few seconds to end by itself."""
        self._is_closed = True
        await self._stop()
        self._remove_folder()

    def abandon(self) -> None:
        """End the child where the event loop that it belongs to is closed."""
        self._is_closed = True
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            self._folder.close()

    async def _connected(self) -> "RemoteAgent":
        from ...protocols.client import RemoteAgent  # with gRPC, which a Hybrid without a gateway does not need

        self._home.require("the gateway process")
        async with self._starting:
            if self._remote is not None and self.process_id is not None:
                return self._remote
            if self._is_closed:
                raise Unavailable("the gateway process is closed")
            await self._stop()
            # -P: the user's working folder may hold a json.py, and the child holds the provider's key.
            command = [interpreter(), "-P", "-m", "nearfar.orchestrator.compose.gateway_process"]
            self._process = await anyio.open_process(command, stderr=None, start_new_session=True)
            address = await self._handshake(self._process)
            remote = await RemoteAgent.connect(address, token=self._token, resume_timeout=_RESUME_SECONDS)
            self._remote, self._card = remote, remote.card
            return remote

    async def _handshake(self, process: anyio.abc.Process) -> str:
        assert process.stdin is not None, "a pipe by default"
        assert process.stdout is not None, "a pipe by default"
        order = {"far": self._config.model_dump(mode="json"), "address": self._address, "token": self._token}
        try:
            with anyio.fail_after(_START_SECONDS):
                await process.stdin.send(json.dumps(order).encode() + b"\n")
                line = await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", _MAXIMUM_LINE)
        except TimeoutError:
            raise Unavailable(f"the gateway process did not start within {_START_SECONDS:g} s") from None
        except (anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise Unavailable("the gateway process died while it started", hint="its error is printed above") from None
        answer: dict[str, str] = json.loads(line)
        if "error" in answer:
            raise BY_REASON[answer["error"]](answer["message"], hint=answer["hint"])
        return answer["address"]

    async def _stop(self) -> None:
        remote, self._remote = self._remote, None
        process, self._process = self._process, None
        # Shielded, since nothing else refers to the two any more; it takes a few seconds at most.
        with anyio.CancelScope(shield=True):
            if remote is not None:
                await remote.aclose()
            if process is not None:
                await _end(process)


async def _end(process: anyio.abc.Process) -> None:
    assert process.stdin is not None, "a pipe by default"
    await process.stdin.aclose()
    with anyio.move_on_after(_STOP_SECONDS):
        await process.wait()
    if process.returncode is None:
        process.kill()
    await process.aclose()


async def open_far_in_process(config: FarConfig) -> Agent:
    """Open the far agent itself, as the gateway process does. Raises `ConfigError` for a `GatewayConfig`, whose agent is elsewhere."""
    if isinstance(config, GatewayConfig):
        raise ConfigError("a gateway cannot forward to another gateway", hint="name a provider or a model in [far]")
    if isinstance(config, LocalFarConfig):
        return await open_local(config, name="far", side=Side.FAR)
    if isinstance(config, FarPluginConfig):
        return await open_plugin_agent(config, name="far", side=Side.FAR)
    if isinstance(config, A2aAgentConfig):
        from ...cloud.a2a import RemoteTaskAgent

        return await RemoteTaskAgent.connect(config, name="far")
    if config.model is None:
        from ...cloud.server_info import with_only_model

        config = await with_only_model(config)
    return build_provider(config)


def ask_providers_here(pool: AgentPool, configs: Mapping[str, FarConfig | None]) -> None:
    """Let the agents of a pool that ask a provider do so from this process, for one that is a gateway itself: its callers hold a token
    and no provider's key. To be called before the first task."""
    for name, far in configs.items():
        if isinstance(far, ProviderConfig):
            pool[name].open_by(partial(open_far_in_process, far))


def serve_far(
    agent: Agent, address: str, *, limits: GatewayLimits | None = None, **options: Unpack[ServeOptions]
) -> "AbstractAsyncContextManager[Server]":
    """Serve a far agent as a gateway does: callers are known by their tokens, and each step is logged without its content."""
    from ...cloud.gateway import serve_gateway

    return serve_gateway({agent.card.name: agent}, address, limits=limits, **options)


async def serve_until_parent_leaves() -> None:
    """Open the far agent, serve it, and stop when standard input closes."""
    order = json.loads(await _read_line())
    async with contextlib.AsyncExitStack() as stack:
        try:
            agent = await open_far_in_process(_CONFIG.validate_python(order["far"]))
            stack.push_async_callback(agent.aclose)
            serving = serve_far(agent, order["address"], limits=_ALONE, tokens={"parent": order["token"]})
            server = await stack.enter_async_context(serving)
        except NearfarError as error:
            _answer({"error": type(error).__name__, "message": error.message, "hint": error.hint})
            return
        _answer({"address": server.address})
        while await _read():
            pass


async def _read_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        if not (piece := await _read()):
            raise SystemExit(0)  # the parent has left before it said anything
        line += piece
    return line


async def _read() -> bytes:
    """Return the next bytes of standard input, b"" at its end. A thread reads: on Windows an event loop cannot."""
    piece = await run_in_daemon_thread(partial(os.read, sys.stdin.fileno(), _PIECE))
    assert isinstance(piece, bytes), "of os.read"
    return piece


def _answer(message: dict[str, str]) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent has left, as the end of standard input will say
        os.write(sys.stdout.fileno(), json.dumps(message).encode() + b"\n")


def main() -> None:
    """Entry point of the child process."""
    logging.basicConfig(level=logging.WARNING, format="nearfar gateway: %(message)s")
    # Ctrl-C reaches the whole terminal; the parent decides when the gateway stops.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ask_for_open_files()
    asyncio.run(serve_until_parent_leaves())
    remove_abandoned()  # a parent that was killed has left its own


if __name__ == "__main__":
    main()
