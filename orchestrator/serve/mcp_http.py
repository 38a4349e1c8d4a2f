"""Serve the MCP server by Streamable HTTP, to the callers that the server for clients of OpenAI and Anthropic lets in, too."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import anyio
import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ...protocols import ConfigError, NearfarError
from ...protocols.access import Access
from ...protocols.address import Address, parse_address
from ...protocols.channel import server_tls
from ...protocols.security import check_exposure
from ...protocols.tokens import Scope as TokenScope
from ..compose.http import ServeConfig
from .callers import Callers
from .errors import openai_error, refusal_of
from .mcp_server import IDENTITY_KEY
from .origin import OriginCheck

PATH: Final = "/mcp"
_LARGEST_BODY: Final = 4 * 1024 * 1024
_LEAVING_SECONDS: Final = 5
"""Time for open requests to end when the server is stopped."""


class TokenGate:
    """Admits requests with a valid token.

    Args:
        app: answers what is admitted. The caller's identity stands in its scope.
        callers: knows the tokens.
    """

    def __init__(self, app: ASGIApp, callers: Callers) -> None:
        self._app = app
        self._callers = callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            identity = self._callers.identify(scope, Headers(scope=scope), TokenScope.STEPS)
            with self._callers.call(identity):
                await self._app({**scope, IDENTITY_KEY: identity}, receive, send)
        except NearfarError as error:
            await _refusal(error)(scope, receive, send)


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
    settings = uvicorn.Config(
        mcp_app(server, config, access),
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=_LEAVING_SECONDS,
        ssl_certfile=config.certificate,
        ssl_keyfile=config.key,
    )
    listening, serving = _listen(address), _Server(settings)
    running = asyncio.create_task(serving.serve([listening]))
    try:
        await serving.ready.wait()
        host, port = listening.getsockname()[:2]
        yield f"http{'s' if tls else ''}://{Address(host=host, port=port)}{PATH}"
    finally:
        serving.should_exit = True
        with anyio.CancelScope(shield=True):
            await running


class _Server(uvicorn.Server):
    """A server that says when it is ready, and leaves signals to the program."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = anyio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await self._serve(sockets)


def _listen(address: Address) -> socket.socket:
    if address.path:
        raise ConfigError(f"an MCP server does not listen at {address}", hint="give HOST:PORT, or leave --address out for a program")
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        return socket.create_server((address.host, address.port), family=family)
    except OSError as error:
        raise ConfigError(f"{address} cannot be listened at: {error.strerror}", hint="choose another port; 0: any free one") from error
