"""Serve the MCP server by Streamable HTTP, to the callers that the server for clients of OpenAI and Anthropic lets in, too."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...protocols import NearfarError
from ...protocols.access import Access
from ...protocols.address import parse_address
from ...protocols.channel import server_tls
from ...protocols.security import Identity, check_exposure
from ...protocols.tokens import Scope as TokenScope
from ..compose.http import ServeConfig
from ..util.runtime import cancel_task
from .callers import Callers
from .errors import openai_error, refusal_of
from .mcp_server import ADMISSION_KEY, Admission
from .origin import OriginCheck
from .server import serve_app

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
            identity = self._callers.identify(scope, Headers(scope=scope), TokenScope.STEPS)
            await self._callers.access.run(identity, self._admitted(identity, scope, receive, sending))
        except NearfarError as error:
            if not has_begun:
                await _refusal(error)(scope, receive, send)

    async def _admitted(self, identity: Identity, scope: Scope, receive: Receive, send: Send) -> None:
        user = AuthenticatedUser(AccessToken(token="", client_id=identity.caller, scopes=[]))
        with self._callers.call(identity):
            await self._app({**scope, ADMISSION_KEY: Admission(identity, self._callers.access), "user": user}, receive, send)


def _refusal(error: NearfarError) -> JSONResponse:
    status = refusal_of(error).status
    return JSONResponse(openai_error(error), status, {"www-authenticate": "Bearer"} if status == 401 else None)


def mcp_app(server: MCPServer, config: ServeConfig, access: Access) -> ASGIApp:
    """Return the ASGI app of a server, whose only path is `/mcp`."""
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)  # `OriginCheck` knows the names of [serve], too
    app = server.streamable_http_app(streamable_http_path=PATH, max_request_body_size=_LARGEST_BODY, transport_security=unchecked)
    hosts = (*config.hosts, parse_address(config.address).host)
    return OriginCheck(TokenGate(app, Callers(access)), hosts=hosts, origins=config.origins)


@asynccontextmanager
async def serving_mcp(server: MCPServer, config: ServeConfig, access: Access) -> AsyncGenerator[str]:
    """Serve at the address of `config` within the block, and yield the URL.

    Without tokens, any program on this machine may call. Raises `ConfigError` for an address that would expose the server, or is taken.
    """
    address, tls = parse_address(config.address), server_tls(config.certificate, config.key, None)
    check_exposure(address, authenticator=access.authenticator, tls=tls, insecure=False)
    app = mcp_app(server, config, access)
    watching = asyncio.create_task(access.watch())
    try:
        async with serve_app(lambda _: app, address, config, drain=0.0) as (_, url), server.session_manager.run():
            yield f"{url}{PATH}"
    finally:
        await cancel_task(watching)
