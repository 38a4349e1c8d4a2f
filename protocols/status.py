"""Errors as gRPC statuses: the class is the `reason` of a google.rpc.ErrorInfo, so that both ends raise the same class. And the statuses
of broken connections.
"""

import asyncio
from typing import Final, NoReturn, TypeVar, cast

import anyio
import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from .access import Context
from .errors import BY_REASON, MAPPINGS, NearfarError, Unavailable, from_grpc_status, travelling_class

DOMAIN = "nearfar"

T = TypeVar("T")


# All trailers of a call must stay below gRPC's 8 KiB. The message is sent twice, percent-encoded and in base64; the hint in base64.
_MESSAGE_BYTES = 1200
_HINT_BYTES = 1000
_LAST_WRITE_SECONDS = 1.0
_NANOS = 1_000_000_000
_LONGEST_DELAY = 366 * 24 * 3600.0
"""Seconds. A foreign server may name any number, and the wire cannot carry all of them."""
_BROKEN_WHILE_WRITING: Final = "Internal error from Core"
"""grpc.aio's message, with status INTERNAL, if the connection breaks while a message is being written."""
_BROKEN = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED})
"""Status codes, without a nearfar `reason`, that mean that the connection failed and not the step. CANCELLED comes from proxies that
lose their server, and from servers with thousands of waiting calls."""
_NEVER_CONNECTED = ("failed to connect to all addresses", "DNS resolution failed")
"""gRPC's messages for a call that was never sent. After any other message the call may have been sent."""


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


def is_broken(error: grpc.aio.AioRpcError) -> bool:
    """Return True if the connection failed, and not the call."""
    return error.code() in _BROKEN and carried_error(error) is None


def never_connected(error: grpc.aio.AioRpcError) -> bool:
    """Return True if the call was certainly not sent."""
    return any(words in (error.details() or "") for words in _NEVER_CONNECTED)


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
