"""The hub over HTTP: the page that brings a browser's model to the hub, and the socket that it speaks through."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final

import anyio
from google.protobuf.json_format import MessageToJson, Parse, ParseError
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Asgi
from starlette.websockets import WebSocket, WebSocketDisconnect

from ...protocols import InvalidRequest, NearfarError, NotFound, Unavailable
from ...protocols.address import parse_address
from ...protocols.errors import MAPPINGS, travelling_class
from ...protocols.hub import Hub
from ...protocols.hub_session import WorkerSession, registration_from_proto
from ...protocols.limits import FRAME_BYTES, REGISTRATION_SECONDS
from ...protocols.security import Scope, check_exposure
from ...protocols.tls import server_tls
from ...protocols.v1 import hub_pb2 as pb
from ..compose.hub import PageModel, ServeConfig
from . import serve_app
from .callers import Callers
from .requests import openai_error, status_of

logger = logging.getLogger(__name__)

PROTOCOL: Final = "nearfar.v1"
_ERRORS_FROM: Final = 4000
_REASON_BYTES: Final = 123
"""RFC 6455 gives a control frame 125 bytes, two of which are the code."""
_LAST_WRITE_SECONDS: Final = 1.0
_IN_ORDER: Final = 1000


class HubSocket:
    """Attaches the workers that connect by WebSocket to `hub`."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.callers = Callers(hub.access)

    async def attach(self, socket: WebSocket) -> None:
        """Serve one worker's connection, from its token to its end."""
        try:
            await self._serve(socket)
        except NearfarError as error:
            await _close(socket, _ERRORS_FROM + MAPPINGS[travelling_class(error)].http_status, f"{type(error).__name__}: {error.message}")
        except WebSocketDisconnect:
            logger.debug("a worker left before it was attached")
        else:
            await _close(socket, _IN_ORDER, "")

    async def _serve(self, socket: WebSocket) -> None:
        offered = socket.scope["subprotocols"]
        await socket.accept(PROTOCOL if PROTOCOL in offered else next(iter(offered), None))
        if PROTOCOL not in offered:
            raise InvalidRequest(f"this hub speaks {PROTOCOL}: name it as the WebSocket's subprotocol")
        try:
            async with asyncio.timeout(REGISTRATION_SECONDS):
                identity = self.callers.identify(socket.scope, {"authorization": f"Bearer {await _text(socket)}"}, Scope.ATTACH)
                message = _parsed(await _text(socket))
        except TimeoutError:
            raise InvalidRequest(f"the worker did not register within {REGISTRATION_SECONDS:g} s") from None
        if message.WhichOneof("message") != "register":
            raise InvalidRequest("a worker's first message is its registration")
        session = self._hub.register(identity.caller, registration_from_proto(message.register))
        logger.info("worker %r is attached by WebSocket with %s", session.worker, ", ".join(session.cards))
        try:
            await self._hub.access.run(identity, self._converse(session, socket))
        finally:
            session.close(Unavailable("the connection was lost"))
            logger.info("worker %r is detached", session.worker)

    async def _converse(self, session: WorkerSession, socket: WebSocket) -> None:
        """Send and receive until the session ends. Raise the error that it ended with."""
        beat = self._hub.heartbeat
        registered = pb.Registered(worker=session.worker, heartbeat_interval=beat.interval, silence_limit=beat.silence_limit)
        session.outbox.put(pb.HubMessage(registered=registered))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_receive, session, socket)
            tasks.start_soon(_send, session, socket)
            tasks.start_soon(_watch, session)
            error = await session.closed()
            tasks.cancel_scope.cancel()
        if error is not None:
            raise error


async def _receive(session: WorkerSession, socket: WebSocket) -> None:
    try:
        while True:
            session.receive(_parsed(await _text(socket)))
    except NearfarError as error:
        session.close(error)
    except WebSocketDisconnect as left:
        session.close(None if left.code == _IN_ORDER else Unavailable("the connection was lost"))


async def _send(session: WorkerSession, socket: WebSocket) -> None:
    try:
        while message := await session.outbox.get():
            await socket.send_text(MessageToJson(message, indent=None))
    except (WebSocketDisconnect, RuntimeError):  # Starlette raises the latter after the other side has closed
        session.close(Unavailable("the connection was lost"))


async def _watch(session: WorkerSession) -> None:
    await session.pulse.run(session.beat)
    session.close(Unavailable("the worker was silent for too long"))


async def _text(socket: WebSocket) -> str:
    """Return the next frame. Raise `InvalidRequest` for a binary one."""
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message["code"], message.get("reason"))
    text = message.get("text")
    if not isinstance(text, str):
        raise InvalidRequest("frames are text, and the worker sent a binary one")
    return text


def _parsed(frame: str) -> pb.WorkerMessage:
    try:
        return Parse(frame, pb.WorkerMessage(), ignore_unknown_fields=True)
    except (ParseError, RecursionError) as error:
        raise InvalidRequest(f"the frame is no WorkerMessage in JSON: {str(error)[:200]}") from None


async def _close(socket: WebSocket, code: int, reason: str) -> None:
    """Close the connection, unless the other side has."""
    with anyio.move_on_after(_LAST_WRITE_SECONDS):
        try:
            await socket.close(code, reason.encode()[:_REASON_BYTES].decode(errors="ignore"))
        except (WebSocketDisconnect, RuntimeError):
            logger.debug("a worker had left when its connection was closed")


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
