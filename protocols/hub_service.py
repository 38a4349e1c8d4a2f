"""`HubService`: the RPCs of a hub. `Attach` is one worker's stream, from registration to end."""

import asyncio
import logging
from typing import TYPE_CHECKING

import anyio
import grpc

from .errors import InvalidRequest, NearfarError, Unavailable
from .hub_session import Session
from .hub_wire import Registration, registration_from_proto
from .limits import REGISTRATION_SECONDS
from .security import IDENTITY
from .status import Context
from .v1 import hub_pb2 as pb

if TYPE_CHECKING:
    from .hub import Hub

logger = logging.getLogger(__name__)

SERVICE = pb.DESCRIPTOR.services_by_name["HubService"].full_name
_LAST_WRITE_LIMIT = 1.0


class HubService:
    """Serves `hub` to its workers, and lists the workers to its own machine."""

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub

    def handlers(self) -> grpc.GenericRpcHandler:
        attach = grpc.stream_stream_rpc_method_handler(self.attach, pb.WorkerMessage.FromString, pb.HubMessage.SerializeToString)
        return grpc.method_handlers_generic_handler(SERVICE, {"Attach": attach})

    def local_handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers for callers on the hub's own machine."""
        listing = grpc.unary_unary_rpc_method_handler(self.list, pb.ListRequest.FromString, pb.ListResponse.SerializeToString)
        return grpc.method_handlers_generic_handler(SERVICE, {"List": listing})

    async def list(self, _: pb.ListRequest, context: Context) -> pb.ListResponse:
        """Return the hub's records of its workers."""
        return pb.ListResponse(workers=map(self._hub.known, self._hub.workers))

    async def attach(self, _: object, context: Context) -> None:
        """Serve one worker's stream, from registration to end."""
        registration = await _read_registration(context)
        session = self._hub.register(IDENTITY.get().caller, registration)
        logger.info("worker %r is attached with %s", session.worker, ", ".join(session.cards))
        await self._converse(session, context)

    async def _converse(self, session: Session, context: Context) -> None:
        """Send and receive until the session ends. Raise the error that it ended with."""
        registered = pb.Registered(
            worker=session.worker, heartbeat_interval=self._hub.heartbeat.interval, silence_limit=self._hub.heartbeat.silence_limit
        )
        session.outbox.put(pb.HubMessage(registered=registered))
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_receive, session, context)
                tasks.start_soon(_watch, session)
                sent = asyncio.Event()
                tasks.start_soon(_send, session, context, sent)
                error = await session.closed()
                with anyio.move_on_after(_LAST_WRITE_LIMIT):
                    await sent.wait()  # gRPC cannot end a call in the middle of a write
                tasks.cancel_scope.cancel()
        finally:
            session.close(Unavailable("the connection was lost"))  # where gRPC cancelled this call
            logger.info("worker %r is detached", session.worker)
        if error is not None:
            raise error


async def _read_registration(context: Context) -> Registration:
    try:
        async with asyncio.timeout(REGISTRATION_SECONDS):
            message = await context.read()
    except TimeoutError:
        raise InvalidRequest(f"the worker did not register within {REGISTRATION_SECONDS:g} s") from None
    if not isinstance(message, pb.WorkerMessage) or message.WhichOneof("message") != "register":
        raise InvalidRequest("a worker's first message is its registration")
    return registration_from_proto(message.register)


async def _receive(session: Session, context: Context) -> None:
    """Receive the worker's messages until it closes its half of the stream."""
    try:
        while isinstance(message := await context.read(), pb.WorkerMessage):
            session.receive(message)
        session.close()
    except NearfarError as error:
        session.close(error)
    except grpc.aio.BaseError:
        session.close(Unavailable("the connection was lost"))


async def _send(session: Session, context: Context, sent: asyncio.Event) -> None:
    try:
        while message := await session.outbox.get():
            await context.write(message)
    except grpc.aio.BaseError:
        session.close(Unavailable("the connection was lost"))
    finally:
        sent.set()


async def _watch(session: Session) -> None:
    await session.pulse.run(session.beat)
    session.close(Unavailable("the worker was silent for too long"))
