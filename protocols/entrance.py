"""`Entrance`: the checks that every call of a server passes before its handler runs, and the status with which every call ends."""

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeAlias

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection

from .access import Access, Behaviour, CallerShares, Context, FailedAttempts, Share, home_of
from .errors import DeadlineExceeded, InternalError, InvalidRequest, NearfarError, Unsupported
from .limits import (
    CALLS_OF_A_CALLER,
    CALLS_OF_A_STRANGER,
    FIRST_MESSAGE_SECONDS,
    STRANGER_SECONDS,
)
from .secrets import log_defect
from .security import credentials_of
from .status import abort

logger = logging.getLogger(__name__)

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Found: TypeAlias = "Awaitable[grpc.RpcMethodHandler[Any, Any] | None]"

_HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_FOR_STRANGERS: Final = (f"/{_HEALTH}/", f"/{reflection.SERVICE_NAME}/")
_WATCH: Final = f"/{_HEALTH}/Watch"


def guarded(handlers: grpc.GenericRpcHandler, access: Access) -> grpc.GenericRpcHandler:
    """Return the same RPCs with access control in front. Errors that a behaviour raises are sent to the caller."""
    return _GuardedHandlers(handlers, access)


class _GuardedHandlers(grpc.GenericRpcHandler):
    """Handlers with an `Access` before each."""

    def __init__(self, handlers: grpc.GenericRpcHandler, access: Access) -> None:
        self._handlers = handlers
        self._access = access

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        handler = self._handlers.service(details)
        if handler is None:
            return None
        make, behaviour = _parts(handler)

        async def answer(request: object, context: Context) -> object:
            return await self._access.answer(details.method, behaviour, request, context)

        guarded: grpc.RpcMethodHandler[Any, Any] = make(answer, handler.request_deserializer, handler.response_serializer)
        return guarded


def _parts(handler: "grpc.RpcMethodHandler[Any, Any]") -> tuple[Callable[..., Any], Behaviour]:
    """Return the function that makes handlers of this kind, and the handler's behaviour."""
    kinds: dict[tuple[bool, bool], tuple[Callable[..., Any], Any]] = {
        (False, False): (grpc.unary_unary_rpc_method_handler, handler.unary_unary),
        (False, True): (grpc.unary_stream_rpc_method_handler, handler.unary_stream),
        (True, False): (grpc.stream_unary_rpc_method_handler, handler.stream_unary),
        (True, True): (grpc.stream_stream_rpc_method_handler, handler.stream_stream),
    }
    return kinds[handler.request_streaming, handler.response_streaming]


class Entrance(grpc.aio.ServerInterceptor):
    """Admits calls with a valid token, within the limits of their caller, before their request is read.

    Every handler is called as one that streams in both directions: only such a handler is called before the request has arrived.
    """

    def __init__(self, access: Access, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._access = access
        self._attempts = FailedAttempts(monotonic)
        self._handlers: dict[str, Handler] = {}
        """The wrapped handlers, by method."""
        self._shares = CallerShares()

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Found], handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        name = str(handler_call_details.method)
        if (known := self._handlers.get(name)) is not None:
            return known
        handler = await continuation(handler_call_details)
        if handler is None:
            return None  # type: ignore[return-value]  # which gRPC takes for an unknown method
        method = _Method(name, handler, self)
        guarded = grpc.stream_stream_rpc_method_handler(method.serve, _parsing(handler.request_deserializer), handler.response_serializer)
        self._handlers[name] = guarded
        return guarded

    def admit(self, method: str, context: Context) -> Share:
        """Return the share of a call's caller, to count the call while it is open. Raise the error with which it is refused."""
        if method.startswith(_FOR_STRANGERS):
            return self._shares.call(("stranger", home_of(context.peer()) or ""), CALLS_OF_A_STRANGER)
        return self._shares.call(("caller", self._caller(method, context)), CALLS_OF_A_CALLER)

    def _caller(self, method: str, context: Context) -> str:
        credentials = credentials_of(context)
        shown = credentials.authorization
        home = home_of(context.peer()) if shown else None
        if home is None:  # nothing is guessed, or only this machine's own user can
            return self._access.admit(method, credentials).caller
        return self._attempts.identify(home, shown, lambda: self._access.admit(method, credentials)).caller


class _Method:
    """A method of the server. Its handler, of any kind, runs in calls that stream in both directions."""

    def __init__(self, name: str, handler: Handler, entrance: Entrance) -> None:
        self._name = name
        self._handler = handler
        self._entrance = entrance
        kinds = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
        self._run: Callable[..., Any] = next(behaviour for behaviour in kinds if behaviour is not None)
        self._is_brief = name.startswith(_FOR_STRANGERS) and name != _WATCH

    async def serve(self, requests: AsyncIterator[object], context: Context) -> None:
        """Answer a call, and end it with an error of ours whatever happens."""
        try:
            with self._entrance.admit(self._name, context) as share:
                answer = self._answer(share, requests, context)
                await (_soon(answer) if self._is_brief else answer)
        except NearfarError as error:
            await abort(context, error)
        except grpc.aio.AbortError:
            raise
        except grpc.aio.BaseError:  # what gRPC raises for writing to a call that is over
            logger.debug("the caller of %s left while it was written to", self._name)
        except NotImplementedError:  # raised by generated services in methods without an implementation, such as the health's List
            await abort(context, Unsupported(f"the server does not answer {self._name}"))
        except Exception as defect:  # the boundary of a call: its caller learns that it failed, and the log where
            log_defect(logger, f"a call of {self._name} failed", defect)
            await abort(context, InternalError("the call failed unexpectedly", hint="the server's log has the details"))

    async def _answer(self, share: Share, requests: AsyncIterator[object], context: Context) -> None:
        if self._handler.request_streaming:
            await self._reply(requests, context)
            return
        request = await _first(share, context)
        with share.holding(request.ByteSize()):
            await self._reply(request, context)

    async def _reply(self, given: object, context: Context) -> None:
        """Write the messages that the handler returns or yields, unless it writes by itself."""
        answer = self._run(given, context)
        if inspect.isasyncgen(answer):
            async for message in answer:
                await context.write(message)
        elif (reply := await answer) is not None and not self._handler.response_streaming:
            await context.write(reply)


async def _first(share: Share, context: Context) -> Message:
    """Return the request of a call that has exactly one."""
    try:
        async with asyncio.timeout(FIRST_MESSAGE_SECONDS), share.reading:
            message: object = await context.read()
    except TimeoutError:
        raise DeadlineExceeded(f"the request did not arrive within {FIRST_MESSAGE_SECONDS:g} s", hint="check the network") from None
    if not isinstance(message, Message):
        raise InvalidRequest("the call ended before its request", hint="the caller is faulty, or not a nearfar client")
    return message


async def _soon(answer: Awaitable[None]) -> None:
    limit = asyncio.timeout(STRANGER_SECONDS)
    try:
        async with limit:
            await answer
    except TimeoutError:
        if not limit.expired():
            raise
        raise DeadlineExceeded(f"the call was open for {STRANGER_SECONDS:g} s", hint="call again") from None


def _parsing(parse: Callable[[bytes], object] | None) -> Callable[[bytes], object] | None:
    """Return `parse` for bytes from untrusted callers. gRPC would log the error of `parse` and send it to the caller."""

    def parsed(data: bytes) -> object:
        try:
            return data if parse is None else parse(data)
        except DecodeError:
            raise InvalidRequest("the message cannot be read", hint="the caller is faulty, or not a nearfar client") from None

    return parsed
