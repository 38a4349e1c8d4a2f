"""The path `/mcp`: the MCP server by Streamable HTTP, for callers with a token. Its package is loaded when the first of them asks."""

import asyncio
from typing import TYPE_CHECKING, Final

import anyio
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...protocols import NearfarError
from ...protocols.access import Access
from ...protocols.address import parse_address
from ...protocols.security import Identity
from ...protocols.security import Scope as TokenScope
from ..compose.hub import ServeConfig
from ..hybrid.hybrid import Hybrid
from ..util.runtime import cancel_task, in_thread
from .callers import ADMISSION_KEY, AdmittedCaller, Callers, OriginCheck
from .requests import openai_error, refusal_of, retry_headers

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

PATH: Final = "/mcp"
_LARGEST_BODY: Final = 4 * 1024 * 1024


class TokenGate:
    """Admits requests with a valid token, and ends those whose token is not valid any more.

    Args:
        app: answers what is admitted. The caller's admission stands in its scope, and its name binds sessions to the caller.
        callers: knows the tokens.
    """

    def __init__(self, app: ASGIApp, callers: Callers) -> None:
        self._app = app
        self._callers = callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def sending(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            identity = self._callers.identify(scope, Headers(scope=scope), TokenScope.TASKS)
            await self._callers.access.run(identity, self._admitted(identity, scope, receive, sending))
        except NearfarError as error:
            if not has_begun:
                await _refusal(error)(scope, receive, send)

    async def _admitted(self, identity: Identity, scope: Scope, receive: Receive, send: Send) -> None:
        user = await in_thread(_session_owner, identity.caller)  # the first time, a package is loaded, for which other requests cannot wait
        with self._callers.call(identity):
            await self._app({**scope, ADMISSION_KEY: AdmittedCaller(identity, self._callers.access), "user": user}, receive, send)


def _session_owner(caller: str) -> object:
    """Return the user to whom the package of MCP binds the sessions of a caller."""
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp.server.auth.provider import AccessToken

    return AuthenticatedUser(AccessToken(token="", client_id=caller, scopes=[]))


def _refusal(error: NearfarError) -> JSONResponse:
    status = refusal_of(error).status
    return JSONResponse(openai_error(error), status, retry_headers(error) | ({"www-authenticate": "Bearer"} if status == 401 else {}))


def mcp_app(server: "MCPServer", config: ServeConfig, access: Access) -> ASGIApp:
    """Return the ASGI app of a server, whose only path is `/mcp`."""
    hosts = (*config.hosts, parse_address(config.address).host)
    return OriginCheck(TokenGate(_streamable(server), Callers(access)), hosts=hosts, origins=config.origins)


def _streamable(server: "MCPServer") -> ASGIApp:
    from mcp.server.transport_security import TransportSecuritySettings

    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)  # `OriginCheck` knows the names of [serve], too
    return server.streamable_http_app(streamable_http_path=PATH, max_request_body_size=_LARGEST_BODY, transport_security=unchecked)


class McpMount:
    """The MCP server of a `hybrid` as a path of another server. It is made when the first request comes."""

    def __init__(self, hybrid: Hybrid, config: ServeConfig) -> None:
        """Serve callers as `config` says."""
        self._hybrid = hybrid
        self._config = config
        self._starting = anyio.Lock()
        self._app: ASGIApp | None = None
        self._running: asyncio.Task[None] | None = None
        self._listening: set[anyio.CancelScope] = set()
        """Requests of hosts that wait for messages, without end."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._starting:
            app = self._app or await self._start()
        if scope["method"] == "GET":
            await self._listen(app, scope, receive, send)
        else:
            await app(scope, receive, send)

    async def _start(self) -> ASGIApp:
        server = await in_thread(self._make)
        self._app, has_begun = _streamable(server), anyio.Event()
        self._running = asyncio.create_task(_run_sessions(server, has_begun))
        await has_begun.wait()
        return self._app

    def _make(self) -> "MCPServer":
        from .mcp_server import mcp_server

        return mcp_server(self._hybrid, self._config)

    async def _listen(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = False

        async def sent(message: Message) -> None:
            nonlocal is_open
            is_open = message.get("more_body", True)
            await send(message)

        with anyio.CancelScope() as listening:
            self._listening.add(listening)
            try:
                await app(scope, receive, sent)
            finally:
                self._listening.discard(listening)
        if listening.cancelled_caught and is_open:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def end_listening(self) -> None:
        """End the requests of hosts that wait for messages, so that the server can drain."""
        for listening in self._listening:
            listening.cancel()

    async def aclose(self) -> None:
        """End all sessions."""
        if self._running is not None:
            await cancel_task(self._running)


async def _run_sessions(server: "MCPServer", has_begun: anyio.Event) -> None:
    async with server.session_manager.run():
        has_begun.set()
        await anyio.sleep_forever()
