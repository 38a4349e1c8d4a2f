"""Serve the MCP server by Streamable HTTP: who may call, from which pages, and at which address."""

import socket
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ...protocols import ConfigError, NearfarError, PermissionDenied
from ...protocols.address import Address, is_loopback
from ...protocols.channel import ServerTls
from ...protocols.errors import MAPPINGS
from ...protocols.security import Authenticator, check_exposure
from ...protocols.tokens import Credentials
from .mcp_server import IDENTITY_KEY

PATH: Final = "/mcp"
_LARGEST_BODY: Final = 4 * 1024 * 1024
_LOCAL_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")
_LEAVING_SECONDS: Final = 5
"""Time for open requests to end when the server is stopped."""


class TokenGate:
    """Admits requests with a valid token, and refuses those of pages of other hosts.

    Args:
        app: answers what is admitted. The caller's identity stands in its scope.
        authenticator: knows the tokens.
    """

    def __init__(self, app: ASGIApp, authenticator: Authenticator) -> None:
        self._app = app
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            _check_origin(headers)
            identity = self._authenticator.identify(Credentials(headers.get("authorization", "")))
        except NearfarError as error:
            await _refusal(error)(scope, receive, send)
            return
        await self._app({**scope, IDENTITY_KEY: identity}, receive, send)


def _check_origin(headers: Mapping[str, str]) -> None:
    """Raise `PermissionDenied` for a page of another host, which a browser may have been led to by DNS rebinding."""
    origin = headers.get("origin", "")
    if origin and not is_loopback(urlsplit(origin).hostname or ""):
        raise PermissionDenied("pages of other hosts may not call this server", hint="call it from a program")


def _refusal(error: NearfarError) -> JSONResponse:
    status = MAPPINGS[type(error)].http_status
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"error": {"type": type(error).__name__, "message": error.message, "hint": error.hint}}, status, headers)


def mcp_app(server: MCPServer, address: Address, authenticator: Authenticator) -> ASGIApp:
    """Return the ASGI app of a server, whose only path is `/mcp`."""
    # On loopback the Host header must name this machine: no page can then reach the server by a name of its own. Elsewhere a token is
    # needed, which no page has.
    hosts = [host for name in _LOCAL_HOSTS for host in (name, f"{name}:*")]
    origins = [f"http://{host}" for host in hosts]
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=is_loopback(address.host), allowed_hosts=hosts, allowed_origins=origins
    )
    app = server.streamable_http_app(streamable_http_path=PATH, max_request_body_size=_LARGEST_BODY, transport_security=security)
    return TokenGate(app, authenticator)


@asynccontextmanager
async def serving_mcp(
    server: MCPServer, address: Address, authenticator: Authenticator, *, tls: ServerTls | None = None, insecure: bool = False
) -> AsyncGenerator[str]:
    """Serve within the block, and yield the URL. Raises `ConfigError` for an address that would expose the server, or is taken."""
    check_exposure(address, authenticator=authenticator, tls=tls, insecure=insecure)
    if address.path:
        raise ConfigError(f"an MCP server does not listen at {address}", hint="give HOST:PORT, or leave --address out for a program")
    files: dict[str, Any] = {}
    if tls is not None:
        files = {"ssl_certfile": tls.certificate, "ssl_keyfile": tls.private_key}
        if tls.client_roots is not None:
            files |= {"ssl_ca_certs": tls.client_roots, "ssl_cert_reqs": ssl.CERT_REQUIRED}
    app = mcp_app(server, address, authenticator)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=_LEAVING_SECONDS, server_header=False, **files
    )
    listening = _listen(address)
    serving = _Server(config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serving.serve, [listening])
        try:
            await serving.ready.wait()
            host, port = listening.getsockname()[:2]
            yield f"http{'s' if tls else ''}://{Address(host=host, port=port)}{PATH}"
        finally:
            serving.should_exit = True


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
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        return socket.create_server((address.host, address.port), family=family)
    except OSError as error:
        raise ConfigError(f"{address} cannot be listened at: {error.strerror}", hint="choose another port; 0: any free one") from error
