"""The ASGI apps: that of a `Hybrid`, and that of an MCP server.

The MCP server speaks Streamable HTTP at the path `/mcp`, with callers that have a token. Its package is loaded when the first of them asks.
"""

import asyncio
from typing import TYPE_CHECKING, Final

import anyio
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...protocols import ConfigError, NearfarError, NotFound
from ...protocols.access import Access
from ...protocols.address import parse_address
from ...protocols.security import Identity
from ...protocols.security import Scope as TokenScope
from ..compose.hub import ServeConfig
from ..hybrid import Hybrid
from ..runs.sessions import KeptResponses
from ..runs.store import RunStore
from ..tracing.observing import CONTENT_TYPE
from ..util.runtime import cancel_task, in_thread
from .agui import answer_agui
from .callers import ADMISSION_KEY, AdmittedCaller, Callers, OriginCheck
from .chat import Chat
from .endpoint import Endpoint, Exchange, Face, turn_endpoint
from .messages import Messages
from .models import decide, embed, list_models, tell_model
from .requests import anthropic_error, openai_error, refusal_of, retry_headers
from .responses import Responses

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

PATH: Final = "/mcp"
_LARGEST_BODY: Final = 4 * 1024 * 1024
_TOLD: Final = (
    *("x-nearfar-run", "x-nearfar-side", "x-nearfar-agent", "x-nearfar-model", "x-nearfar-cost"),
    *("x-request-id", "retry-after", "mcp-session-id"),
)
"""Headers that pages of allowed origins may read."""


def make_app(hybrid: Hybrid, config: ServeConfig, access: Access, mcp: "McpMount | None") -> Starlette:
    """Return the app that has a `hybrid` serve the callers whom `access` lets in. The `hybrid` stays open, and is closed by its owner.

    `mcp`: the MCP server; None: its package is not installed.
    """
    face = Face(hybrid, config, Callers(access))
    hosts = (*config.hosts, parse_address(config.address).host or "")
    guards = [Middleware(OriginCheck, hosts=hosts, origins=config.origins)]
    if config.origins:
        anything = ["*"]
        pages = Middleware(
            CORSMiddleware, allow_origins=config.origins, allow_methods=anything, allow_headers=anything, expose_headers=_TOLD
        )
        guards.append(pages)
    mounted = Endpoint(face, _no_mcp, methods=_ANY) if mcp is None else TokenGate(mcp, face.callers)
    others = [Route(PATH, mounted), Route("/{path:path}", Endpoint(face, _unknown, methods=_ANY))]
    return Starlette(routes=[*_routes(face), *others], middleware=guards)


_ANY: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def _routes(face: Face) -> list[BaseRoute]:
    _ = face.hybrid.metrics  # tasks are counted from here on
    messages = Messages()
    return [
        Route("/", _alive, methods=["GET", "HEAD"]),
        Route("/health", _alive, methods=["GET", "HEAD"]),
        Route("/metrics", Endpoint(face, _metrics, methods=("GET",), needed=TokenScope.METRICS)),
        Route("/v1/models", Endpoint(face, list_models, methods=("GET",))),
        Route("/v1/models/{model:path}", Endpoint(face, tell_model, methods=("GET",))),
        Route("/v1/chat/completions", turn_endpoint(face, Chat())),
        Route("/v1/embeddings", Endpoint(face, embed)),
        Route("/v1/systemone", Endpoint(face, decide)),
        *_responses(face),
        Route("/v1/messages", turn_endpoint(face, messages)),
        Route("/v1/messages/count_tokens", Endpoint(face, messages.count, error_body=anthropic_error)),
        Route("/agui", Endpoint(face, answer_agui)),
    ]


def _responses(face: Face) -> list[BaseRoute]:
    responses = Responses(KeptResponses(_run_store(face.hybrid)))
    one = "/v1/responses/{response}"
    return [
        Route("/v1/responses", turn_endpoint(face, responses)),
        Route("/v1/responses/input_tokens", Endpoint(face, responses.count)),
        Route(one, Endpoint(face, responses.show, methods=("GET", "DELETE"))),
        Route(f"{one}/cancel", Endpoint(face, responses.cancel)),
        Route(f"{one}/input_items", Endpoint(face, responses.items, methods=("GET",))),
    ]


def _run_store(hybrid: Hybrid) -> RunStore | None:
    """Return the store of the runs; None where none are kept."""
    try:
        return hybrid.runs
    except ConfigError:
        return None


async def _alive(_request: Request) -> Response:
    return Response(b'{"status":"ok"}', media_type="application/json")


async def _metrics(exchange: Exchange) -> None:
    text = await exchange.face.hybrid.metrics.text()
    await exchange.reply(text.encode(), headers={"content-type": CONTENT_TYPE})


async def _no_mcp(exchange: Exchange) -> None:
    raise NotFound("MCP is not served here", hint="pip install 'nearfar[mcp]'")


async def _unknown(exchange: Exchange) -> None:
    raise NotFound(f"there is no {exchange.scope['path']}", hint="docs/interoperate.md lists the paths")


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
