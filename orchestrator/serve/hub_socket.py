"""The hub over WebSocket, for workers without gRPC: browser tabs, Kotlin and Swift. docs/devices.md describes the frames for their authors.

The subprotocol is `nearfar.v1`. The worker's first frame is its token; each further frame of either side is one message of `hub.proto` in
protobuf's canonical JSON. An error closes the connection with the code 4000 + its HTTP status; the reason begins with its class.
"""

import asyncio
import logging
from typing import Final

import anyio
from google.protobuf.json_format import MessageToJson, Parse, ParseError
from starlette.websockets import WebSocket, WebSocketDisconnect

from ...protocols import InvalidRequest, NearfarError, Unavailable
from ...protocols.errors import MAPPINGS, travelling_class
from ...protocols.hub import Hub
from ...protocols.hub_session import WorkerSession, registration_from_proto
from ...protocols.limits import REGISTRATION_SECONDS
from ...protocols.tokens import Scope
from ...protocols.v1 import hub_pb2 as pb
from .callers import Callers

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
