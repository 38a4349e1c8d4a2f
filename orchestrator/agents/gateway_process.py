"""The gateway of a far agent that a `Hybrid` starts itself, in a process of its own."""

import contextlib
import json
import logging
import secrets
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream
from pydantic import BaseModel

from ...protocols import AgentCard, DeadlineExceeded, StepEvent, StepRequest, Unavailable, stream
from ...protocols.agent import LoopBound
from ...protocols.errors import BY_REASON
from ..storage.owners import SocketFolder

if TYPE_CHECKING:
    from ...protocols.client import RemoteAgent


logger = logging.getLogger(__name__)
_START_SECONDS = 120.0
"""Loading a large model from a slow disk takes this long at most."""
_STOP_SECONDS = 5.0
_MAXIMUM_LINE = 65_536
_HAS_SOCKET_FILES = hasattr(socket, "AF_UNIX")
"""False on Windows, where the gateway process is known by its token alone."""
_RESUME_SECONDS = 2.0
"""A broken private socket means a dead child, so resuming is given up soon."""


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
            command = [sys.executable, "-P", "-m", "nearfar.orchestrator.compose.gateway_child"]
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
