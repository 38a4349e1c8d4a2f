"""The page that makes a browser tab a worker of the hub: its files, its engine, its model and its WebSocket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final

import anyio
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Asgi

from ...protocols import NearfarError, NotFound, Unavailable
from ...protocols.address import parse_address
from ...protocols.channel import server_tls
from ...protocols.hub import Hub
from ...protocols.limits import FRAME_BYTES
from ...protocols.security import check_exposure
from ...protocols.tokens import Scope
from ..compose.http import ServeConfig
from ..compose.hub import PageModel
from .errors import openai_error, status_of
from .hub_socket import HubSocket
from .server import serve_app

_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self' 'wasm-unsafe-eval'",
        "worker-src 'self' blob:",  # wllama starts its own code from a blob
        "connect-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",  # with the next two, the page may use threads
    "cross-origin-embedder-policy": "require-corp",
    "cross-origin-resource-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


@asynccontextmanager
async def serve_page(hub: Hub, model: PageModel, engine: Path, config: ServeConfig, *, insecure: bool = False) -> AsyncIterator[str]:
    """Serve the page until the context ends; yield its URL.

    Args:
        hub: the hub that tabs attach to.
        model: the model that they load.
        engine: the folder of wllama's files.
        config: where to listen, with which certificate.
        insecure: confirms plain text on this machine.

    Raises `ConfigError` for an address that cannot be used, or that others can reach without TLS.
    """
    address = parse_address(config.address)
    tls = server_tls(config.certificate, config.key, None)
    check_exposure(address, authenticator=hub.access.authenticator, tls=tls, insecure=insecure)
    with as_file(files(__package__) / "page") as folder:
        app = _app(HubSocket(hub), model, folder, engine)
        async with serve_app(lambda _: app, address, config, drain=0, frame_bytes=FRAME_BYTES) as (_, url):
            yield url


def _app(socket: HubSocket, model: PageModel, folder: Path, engine: Path) -> Starlette:
    def authorized(request: Request) -> None:
        socket.callers.identify(request.scope, request.headers, Scope.ATTACH)

    async def describe(request: Request) -> Response:
        authorized(request)
        return JSONResponse(model.described)

    async def send(request: Request) -> Response:
        authorized(request)
        path = model.parts.get(request.path_params["sha256"])
        if path is None:
            raise NotFound("this hub lends no such model", hint="load the page again")
        if not await anyio.Path(path).is_file():
            raise Unavailable("the hub's copy of the model was deleted", hint="start the hub again: it fetches the model")
        return FileResponse(path, media_type="application/octet-stream")

    routes: list[BaseRoute] = [
        Route("/model", describe),
        Route("/model/{sha256}", send),
        WebSocketRoute("/attach", socket.attach),
        Mount("/engine", StaticFiles(directory=engine)),
        Mount("/", StaticFiles(directory=folder, html=True)),
    ]
    return Starlette(routes=routes, middleware=[Middleware(_WithHeaders)], exception_handlers={NearfarError: _refuse})


async def _refuse(_request: Request, error: Exception) -> Response:
    assert isinstance(error, NearfarError)  # the only class that it is registered for
    return JSONResponse(openai_error(error), status_of(error, openai_error))


class _WithHeaders:
    """Adds the headers that keep the page to this server."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Asgi, receive: Receive, send: Send) -> None:
        async def send_more(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, receive, send_more if scope["type"] == "http" else send)
