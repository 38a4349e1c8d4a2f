"""Serve a `Hybrid` to other programs over HTTP: where the server listens, how long it waits for slow clients, and how it ends."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio

from ...protocols import ConfigError
from ...protocols.access import Access
from ...protocols.address import Address, parse_address
from ...protocols.limits import BODY_SECONDS, HANDSHAKE_SECONDS, UNREAD_SECONDS, most_connections
from ...protocols.security import Tokens, check_exposure
from ...protocols.tls import server_tls
from ..compose.hub import ServeConfig
from ..hybrid import Hybrid
from ..util.runtime import cancel_task

try:
    import uvicorn
    from starlette.types import ASGIApp, Receive, Scope, Send
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    from .app import PATH, McpMount, make_app, mcp_app
except ImportError as error:
    raise ConfigError("serving HTTP needs starlette and uvicorn", hint="pip install 'nearfar[serve]'") from error

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

IDLE_SECONDS: Final = 75
"""Seconds for which a connection stays open between two requests: clients of both makers keep theirs for less."""
_BACKLOG: Final = 1024
_MOST_HEAD: Final = 64 * 1024
"""Bytes that a client may send before the head of its request is complete."""
_CUT_OFF: Final = [(b"content-length", b"0"), (b"connection", b"close"), (b"retry-after", b"1")]
_LEAST_DRAIN: Final = 0.05
"""Seconds in which connections without a request are closed."""


class _Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]  # chosen by uvicorn among its own
    """A connection that ends if its client sends no whole request, or an endless head, or does not read what it is sent."""

    _head = 0
    """Bytes of a request's head, or of what follows its body, that is not complete."""
    _is_body = False
    """The bytes that came last belong, in part, to the body of a request."""
    _limit: asyncio.TimerHandle | None = None
    _is_upgraded = False

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - as uvicorn types it
        # asyncio does this itself only for sockets that name their protocol: without it, the second write of a response waits 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(transport)
        self._end_after(HANDSHAKE_SECONDS)

    def data_received(self, data: bytes) -> None:
        latest, self._is_body = self.cycle, False
        super().data_received(data)
        if self._is_upgraded:
            return  # its WebSocket has limits of its own
        self._head = 0 if self._is_body or self.cycle is not latest else self._head + len(data)
        if self._head > _MOST_HEAD:
            self.transport.abort()  # httptools keeps heads, and trailers, of any length
        if self.flow.write_paused:
            return  # further requests are no excuse for leaving the response unread
        if self.cycle is not None and not self.cycle.response_complete:
            self._end_after(BODY_SECONDS if self.cycle.more_body else None)
        elif self._limit is None:
            self._end_after(HANDSHAKE_SECONDS)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take in a header without the blanks around it, which httptools leaves at the end of values (RFC 9110, section 5.5)."""
        super().on_header(name, value.strip(b" \t"))

    def on_body(self, body: bytes) -> None:
        self._is_body = True
        super().on_body(body)

    def handle_events(self) -> None:
        """Take in what has arrived by h11, which limits heads itself."""
        self._is_body = True
        super().handle_events()

    def handle_websocket_upgrade(self, *event: Any) -> None:  # noqa: ANN401 - h11's implementation is given an event, httptools' none
        self._is_upgraded = True
        self._end_after(None)
        super().handle_websocket_upgrade(*event)

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
    """Leaves signals to its owner, and tells when it listens, or cannot."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = anyio.Event()
        self.has_ended = anyio.Event()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await self._serve(sockets)
        finally:
            self.has_ended.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self.listens.set()


class Front(NamedTuple):
    """Further pages in front of an app."""

    around: Callable[[ASGIApp], ASGIApp] = lambda app: app
    """Returns the app with the pages in front of it."""
    end_streams: Callable[[], None] = lambda: None
    """Ends the responses that would not end by themselves; called when the server drains."""


class HttpServer:
    """A server that runs."""

    def __init__(self, server: _Server, address: str, access: Access, streams: Sequence[Callable[[], None]]) -> None:
        self._server = server
        self._end_streams = streams
        self.address = address
        """URL at which it listens."""
        self.access = access
        """Lets callers in."""

    @property
    def live_requests(self) -> int:
        """Return the number of requests that are being served."""
        return len(self._server.server_state.tasks)

    async def drain(self) -> None:
        """Stop listening, let requests finish as long as the server was told to, and end."""
        self._server.should_exit = True
        for end in self._end_streams:
            end()
        await self._server.has_ended.wait()

    def end_now(self) -> None:
        """Cut off all requests."""
        self._server.should_exit = self._server.force_exit = True
        for task in tuple(self._server.server_state.tasks):
            task.cancel()


@asynccontextmanager
async def serve_hybrid(
    hybrid: Hybrid,
    config: ServeConfig,
    *,
    tokens: Tokens,
    drain: float = 0.0,
    front: Front = Front(),  # noqa: B008 - it cannot change
) -> AsyncIterator[HttpServer]:
    """Serve a `hybrid` over HTTP until the context ends; requests that are being served then get `drain` seconds. `front` stands before the
    app.

    Raises `ConfigError` for an address that cannot be used, or that others can reach without TLS.
    """
    access = Access(tokens)
    if access.authenticator.is_open:
        raise ConfigError("serving HTTP needs a token", hint="any page in a browser on this machine could call the server otherwise")
    address = parse_address(config.address)
    tls = server_tls(config.certificate, config.key, None)
    check_exposure(address, authenticator=access.authenticator, tls=tls, insecure=False)
    watching = asyncio.create_task(access.watch())
    mcp = McpMount(hybrid, config) if find_spec("mcp") is not None else None
    try:
        streams = [front.end_streams] if mcp is None else [front.end_streams, mcp.end_listening]
        async with serve_app(lambda _: front.around(make_app(hybrid, config, access, mcp)), address, config, drain=drain) as (server, url):
            yield HttpServer(server, url, access, streams)
    finally:
        if mcp is not None:
            await mcp.aclose()
        await cancel_task(watching)


@asynccontextmanager
async def serving_mcp(server: "MCPServer", config: ServeConfig, access: Access) -> AsyncIterator[str]:
    """Serve an MCP server alone at the address of `config` within the block, and yield the URL.

    Without tokens, any program on this machine may call. Raises `ConfigError` for an address that would expose the server, or is taken.
    """
    address, tls = parse_address(config.address), server_tls(config.certificate, config.key, None)
    check_exposure(address, authenticator=access.authenticator, tls=tls, insecure=False)
    app = mcp_app(server, config, access)
    async with serve_app(lambda _: app, address, config, drain=0.0) as (_, url), server.session_manager.run():
        yield f"{url}{PATH}"


@asynccontextmanager
async def serve_app(
    make: Callable[[str], ASGIApp], address: Address, config: ServeConfig, *, drain: float, frame_bytes: int = 0
) -> AsyncIterator[tuple[_Server, str]]:
    """Serve an app at an address, and yield the server and its URL, with which `make` made the app. `frame_bytes`: the largest frame of a
    WebSocket, 0 to refuse WebSockets. Raises `ConfigError`."""
    listening = _listen(address)
    url = _url(address, listening, is_secure=config.certificate is not None)
    try:
        server = _Server(_settings(_without_traceback(make(url)), config, drain, frame_bytes))
    except BaseException:
        listening.close()
        raise
    running = asyncio.create_task(server.serve([listening]))
    try:
        await server.listens.wait()
        if not server.started:
            await running
        yield server, url
    finally:
        server.should_exit = True
        with anyio.CancelScope(shield=True):
            await running


def _without_traceback(app: ASGIApp) -> ASGIApp:
    """Return the app, whose requests are told of it when the server cuts them off, instead of leaving a traceback each in its log."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            if scope["type"] != "http":
                raise
            with suppress(RuntimeError):  # its response has begun
                await send({"type": "http.response.start", "status": 503, "headers": _CUT_OFF})
                await send({"type": "http.response.body"})

    return serve


def _listen(address: Address) -> socket.socket:
    """Return a socket that listens at an address."""
    if address.path:
        raise ConfigError(f"HTTP is not served at {address}", hint="give host:port")
    try:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        in_use = error.errno == errno.EADDRINUSE
        hint = "another server listens there; port 0 takes any free one" if in_use else "give an address of this machine"
        raise ConfigError(f"{address} cannot be used: {error.strerror or error}", hint=hint) from None


def _url(address: Address, listening: socket.socket, *, is_secure: bool) -> str:
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{'https' if is_secure else 'http'}://{host}:{listening.getsockname()[1]}"


def _settings(app: ASGIApp, config: ServeConfig, drain: float, frame_bytes: int) -> uvicorn.Config:
    settings = uvicorn.Config(
        app,
        http=_Connection,
        ws="websockets-sansio" if frame_bytes else "none",
        ws_max_size=frame_bytes,
        ws_per_message_deflate=False,  # a small frame cannot unpack to a large one
        ws_ping_interval=None,  # both sides send heartbeats of their own
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        limit_concurrency=most_connections(),
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=max(drain, _LEAST_DRAIN),  # type: ignore[arg-type]  # which is passed on to asyncio, and may be a fraction
        ssl_certfile=config.certificate,
        ssl_keyfile=config.key,
    )
    try:
        settings.load()
    except OSError as error:  # ssl's own errors are some of these
        raise ConfigError(f"the certificate or its key cannot be used: {error}", hint="[serve] certificate and key are PEM files") from None
    return settings
