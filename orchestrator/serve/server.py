"""The HTTP server itself: where it listens, how long it waits for slow clients, and how it ends."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio

from ...protocols import ConfigError
from ...protocols.access import Access
from ...protocols.address import parse_address
from ...protocols.limits import HANDSHAKE_SECONDS, UNREAD_SECONDS
from ...protocols.security import check_exposure
from ...protocols.tokens import Tokens
from ..compose.http import ServeConfig
from ..hybrid.hybrid import Hybrid

try:
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    from .app import make_app
except ImportError as error:
    raise ConfigError("serving HTTP needs starlette and uvicorn", hint="pip install 'nearfar[serve]'") from error

IDLE_SECONDS: Final = 75
"""Seconds for which a connection stays open between two requests: clients of both makers keep theirs for less."""
_BACKLOG: Final = 1024


class _Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]  # chosen by uvicorn among its own
    """A connection that ends if its client sends no request, or does not read what it is sent."""

    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - as uvicorn types it
        super().connection_made(transport)
        self._end_after(HANDSHAKE_SECONDS)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None:
            self._end_after(None)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._end_after(UNREAD_SECONDS)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_after(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_after(None)
        super().connection_lost(exc)

    def _end_after(self, seconds: float | None) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self._limit = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self.transport.abort)


class _Server(uvicorn.Server):
    """Leaves signals to its owner."""

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await self._serve(sockets)


class HttpServer:
    """A server that runs."""

    def __init__(self, server: uvicorn.Server, address: str, access: Access) -> None:
        self._server = server
        self.address = address
        """URL at which it listens."""
        self.access = access
        """Lets callers in."""

    @property
    def live_requests(self) -> int:
        """Return the number of requests that are being served."""
        return len(self._server.server_state.tasks)

    def end_now(self) -> None:
        """Cut off what is still being served when the server ends."""
        self._server.force_exit = True


@asynccontextmanager
async def serve_hybrid(hybrid: Hybrid, config: ServeConfig, *, tokens: Tokens, drain: float = 0.0) -> AsyncIterator[HttpServer]:
    """Serve a `hybrid` over HTTP until the context ends; requests that are being served then get `drain` seconds.

    Raises `ConfigError` for an address that cannot be used, or that others can reach without TLS.
    """
    access = Access(tokens)
    if access.authenticator.is_open:
        raise ConfigError("serving HTTP needs a token", hint="any page in a browser on this machine could call the server otherwise")
    address = parse_address(config.address)
    listening = _listen(address)
    tls = _tls(config)
    try:
        check_exposure(address, authenticator=access.authenticator, tls=tls, insecure=False)
        settings = _settings(hybrid, config, access, drain)
    except ConfigError:
        listening.close()
        raise
    server = _Server(settings)
    url = f"{'http' if tls is None else 'https'}://{_name(address)}:{listening.getsockname()[1]}"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(access.watch)
        running = asyncio.create_task(server.serve([listening]))
        try:
            while not server.started and not running.done():
                await anyio.sleep(0.001)
            yield HttpServer(server, url, access)
        finally:
            server.should_exit = True
            with anyio.CancelScope(shield=True):
                await running
        tasks.cancel_scope.cancel()
