"""Access control of a server, and the errors that its callers get.

Each call is admitted by the scope of its token, and ended when the token expires or is revoked. Errors travel as gRPC statuses: the class
is the `reason` of a google.rpc.ErrorInfo, so that both ends raise the same class.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import datetime
from typing import Any, Final, NoReturn, TypeAlias, TypeVar, cast

import anyio
import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from .errors import BY_REASON, MAPPINGS, NearfarError, PermissionDenied, Unauthenticated, Unavailable, from_grpc_status, travelling_class
from .security import IDENTITY, OWNER_HINT, Authenticator, Identity, system_time
from .tokens import Credentials, Scope, Tokens, credentials_of

DOMAIN = "nearfar"

Answer = TypeVar("Answer")
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

# All trailers of a call must stay below gRPC's 8 KiB. The message is sent twice, percent-encoded and in base64; the hint in base64.
_MESSAGE_BYTES = 1200
_HINT_BYTES = 1000
_LAST_WRITE_SECONDS = 1.0
_NANOS = 1_000_000_000
_LONGEST_DELAY = 366 * 24 * 3600.0
"""Seconds. A foreign server may name any number, and the wire cannot carry all of them."""
_BROKEN_WHILE_WRITING: Final = "Internal error from Core"
"""grpc.aio's message, with status INTERNAL, if the connection breaks while a message is being written."""


def to_status(error: NearfarError) -> grpc.Status:
    """Return code, message and trailing metadata that carry `error`."""
    cls = travelling_class(error)
    code: int = grpc.StatusCode[MAPPINGS[cls].grpc_status].value[0]
    metadata = {"hint": _cut(error.hint, _HINT_BYTES)} if error.hint else {}
    details: list[Message] = [ErrorInfo(reason=cls.__name__, domain=DOMAIN, metadata=metadata)]
    if error.retry_after is not None and error.retry_after >= 0:  # which NaN is not
        details.append(RetryInfo(retry_delay=_duration(error.retry_after)))
    return rpc_status.to_status(Status(code=code, message=_cut(error.message, _MESSAGE_BYTES), details=map(_packed, details)))


async def abort(context: Context, error: NearfarError) -> NoReturn:
    """End a call on the server with `error`."""
    status = to_status(error)
    with anyio.move_on_after(_LAST_WRITE_SECONDS):
        await context.abort(status.code, status.details, status.trailing_metadata)
    # The status waits behind output that the caller does not take. It stays there; the handler need not.
    raise asyncio.CancelledError


async def begun(operation: Awaitable[object]) -> None:
    """Wait for the operation that begins a reply: its metadata, or its first message.

    gRPC accepts no status during that operation, so a call that ended just then would end for its client only at its deadline. A
    cancellation waits for the operation, for a second at most.
    """
    sending = asyncio.ensure_future(operation)
    try:
        await asyncio.shield(sending)
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            await asyncio.wait({sending}, timeout=_LAST_WRITE_SECONDS)
        if sending.done() and not sending.cancelled():
            sending.exception()  # it is the cancellation that counts
        raise


def from_rpc_error(error: grpc.aio.AioRpcError) -> NearfarError:
    """Return the error that the other side raised, or the error for a status without a nearfar `reason`."""
    if error.details() == _BROKEN_WHILE_WRITING:
        return Unavailable("the connection broke", hint="try again: what was confirmed is not lost")
    return carried_error(error) or from_grpc_status(error.code().name, error.details() or "the call failed without a message")


def carried_error(error: grpc.aio.AioRpcError) -> NearfarError | None:
    """Return the nearfar error in `error`, or None if the status comes from a proxy, a foreign server or gRPC itself."""
    status = _rich_status(error)
    if status is None:
        return None
    info, retry = ErrorInfo(), RetryInfo()
    for detail in status.details:
        detail.Unpack(info) or detail.Unpack(retry)
    if info.domain != DOMAIN or info.reason not in BY_REASON:
        return None
    delay = retry.retry_delay
    retry_after = delay.seconds + delay.nanos / _NANOS if retry.HasField("retry_delay") else None
    return BY_REASON[info.reason](status.message, hint=info.metadata.get("hint", ""), retry_after=retry_after)


def _rich_status(error: grpc.aio.AioRpcError) -> Status | None:
    try:
        return rpc_status.from_call(cast(grpc.Call, error))  # it has the three methods of a call that are read
    except (DecodeError, ValueError):  # garbage, or details that contradict the status itself: not ours
        return None


def _packed(message: Message) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed


def _duration(seconds: float) -> Duration:
    whole, part = divmod(min(seconds, _LONGEST_DELAY), 1)
    return Duration(seconds=int(whole), nanos=min(round(part * _NANOS), _NANOS - 1))


def _cut(text: str, limit: int) -> str:
    """Return `text` as valid UTF-8 of at most `limit` bytes."""
    whole = text.encode(errors="replace")
    return whole.decode() if len(whole) <= limit else whole[: limit - 3].decode(errors="ignore") + "..."


REQUIRED: Final[Mapping[str, Scope | None]] = {
    "/nearfar.v1.AgentService/Describe": Scope.DESCRIBE,
    "/nearfar.v1.AgentService/Step": Scope.STEPS,
    "/nearfar.v1.AgentService/Cancel": Scope.STEPS,
    "/nearfar.v1.HubService/Attach": Scope.ATTACH,
    "/nearfar.v1.HubService/List": None,
    "/nearfar.v1.MemoryService/Put": Scope.MEMORY,
    "/nearfar.v1.MemoryService/Get": Scope.MEMORY,
    "/nearfar.v1.MemoryService/Search": Scope.MEMORY,
    "/nearfar.v1.MemoryService/Delete": Scope.MEMORY,
    "/nearfar.v1.MemoryService/Erase": Scope.MEMORY,
    "/nearfar.v1.MemoryService/Greet": Scope.MEMORY,
    "/nearfar.v1.MemoryService/Pull": Scope.MEMORY,
    "/nearfar.v1.MemoryService/Push": Scope.MEMORY,
    "/nearfar.v1.MemoryService/Watch": Scope.MEMORY,
    "/lf.a2a.v1.A2AService/SendMessage": Scope.TASKS,
    "/lf.a2a.v1.A2AService/SendStreamingMessage": Scope.TASKS,
    "/lf.a2a.v1.A2AService/GetTask": Scope.TASKS,
    "/lf.a2a.v1.A2AService/ListTasks": Scope.TASKS,
    "/lf.a2a.v1.A2AService/CancelTask": Scope.TASKS,
    "/lf.a2a.v1.A2AService/SubscribeToTask": Scope.TASKS,
    "/lf.a2a.v1.A2AService/CreateTaskPushNotificationConfig": Scope.TASKS,
    "/lf.a2a.v1.A2AService/GetTaskPushNotificationConfig": Scope.TASKS,
    "/lf.a2a.v1.A2AService/ListTaskPushNotificationConfigs": Scope.TASKS,
    "/lf.a2a.v1.A2AService/DeleteTaskPushNotificationConfig": Scope.TASKS,
    "/lf.a2a.v1.A2AService/GetExtendedAgentCard": Scope.TASKS,
}
"""The scope that each RPC needs. An RPC with None is answered only by a server without tokens, such as one on a unix socket."""

Behaviour: TypeAlias = Callable[[Any, Context], Awaitable[Any]]
"""Answers a call; its first argument is a message or a stream of them. Raises `NearfarError` for what the caller is told."""
Ending: TypeAlias = Callable[[Collection[str], NearfarError], None]
"""Ends everything that callers run with the tokens of these ids."""


class Clock:
    """The time by which tokens expire."""

    def now(self) -> datetime:
        """Return the current time with its time zone."""
        return system_time()

    async def tick(self) -> None:
        """Wait until it is time to look for expired tokens again. The wait is short, so that a changed system clock is noticed."""
        await anyio.sleep(1.0)


class Access:
    """Lets the calls of a server in and, where their token is worth nothing any more, out."""

    def __init__(self, tokens: Tokens | None, *, clock: Clock | None = None) -> None:
        """Let every caller make every call if there are no tokens. Raise `ConfigError` for unusable tokens."""
        self._clock = clock or Clock()
        self.authenticator = Authenticator(tokens, now=self._clock.now)
        self._calls: set[_Call] = set()
        self._endings: list[Ending] = []

    def guarded(self, handlers: grpc.GenericRpcHandler) -> grpc.GenericRpcHandler:
        """Return the same RPCs with access control in front. Errors that a behaviour raises are sent to the caller."""
        return _GuardedHandlers(handlers, self)

    def on_ending(self, ending: Ending) -> None:
        """Call `ending` whenever tokens expire or are revoked, to end work that outlives the calls that showed them."""
        self._endings.append(ending)

    def replace_tokens(self, tokens: Tokens) -> None:
        """Admit only callers with these tokens, and end everything that was begun with another token.

        Raise `ConfigError` as `Authenticator.replace` does, and change nothing then.
        """
        self._end(self.authenticator.replace(tokens), Unauthenticated("the token was revoked", hint=OWNER_HINT))

    async def watch(self) -> None:
        """End, for ever, everything that runs with tokens that have expired."""
        while not self.authenticator.is_open:
            await self._clock.tick()
            self._end(self.authenticator.expired(), Unauthenticated("the token expired", hint=OWNER_HINT))

    async def answer(self, method: str, behaviour: Behaviour, request: object, context: Context) -> object:
        """Let `behaviour` answer a call if its caller may make it. The token is checked again: it may have been revoked while the
        request came in."""
        identity = self.admit(method, credentials_of(context))
        IDENTITY.set(identity)  # gRPC runs every call in a task of its own
        return await self.run(identity, behaviour(request, context))

    def admit(self, method: str, credentials: Credentials) -> Identity:
        """Return the caller's identity. Raise `Unauthenticated` for an unknown caller, `PermissionDenied` for one that may not make this
        call."""
        identity = self.authenticator.identify(credentials)
        scope = REQUIRED.get(method)
        if scope is not None:
            identity.require(scope)
        elif not self.authenticator.is_open:
            raise PermissionDenied(f"{method} is answered on the server's own machine only", hint="no token has a scope for it")
        return identity

    async def run(self, identity: Identity, answering: Awaitable[Answer]) -> Answer:
        """Wait for the answer to a caller. Raise `Unauthenticated` when its token expires or is revoked meanwhile, and cancel the work."""
        call = _Call(identity)
        self._calls.add(call)
        try:
            async with call.limit:
                return await answering
        except TimeoutError:
            if call.error is None:
                raise
            raise call.error from None
        finally:
            self._calls.remove(call)

    def _end(self, tokens: Collection[str], error: NearfarError) -> None:
        if not tokens:
            return
        for ending in self._endings:
            ending(tokens, error)
        for call in [call for call in self._calls if call.identity.token in tokens]:
            call.end(error)


class _Call:
    """A call that is being answered."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.limit = asyncio.timeout(None)
        """The timeout that ends the call; it has no time until then. `asyncio.timeout` is used because it is faster than a scope of
        anyio's."""
        self.error: NearfarError | None = None
        """The error that the call ends with."""

    def end(self, error: NearfarError) -> None:
        """End the call with `error`, unless it is ending already."""
        if self.error is None:
            self.error = error
            self.limit.reschedule(0)


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
