"""`Entrance`: the checks that every call of a server passes before its handler runs, and the status with which every call ends."""

import asyncio
import inspect
import ipaddress
import logging
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import sha256
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection

from .access import Access, Context, abort
from .errors import DeadlineExceeded, InternalError, InvalidRequest, NearfarError, RateLimited, Unauthenticated, Unsupported
from .limits import (
    ADDRESSES,
    CALLS_OF_A_CALLER,
    CALLS_OF_A_STRANGER,
    FAILURES_KEPT_SECONDS,
    FIRST_MESSAGE_SECONDS,
    FREE_FAILURES,
    LONGEST_WAIT_SECONDS,
    READS_OF_A_CALLER,
    REQUEST_BYTES_OF_A_CALLER,
    STRANGER_SECONDS,
)
from .secrets import log_defect
from .security import Identity
from .tokens import credentials_of

logger = logging.getLogger(__name__)

_HOMES_BITS = 64
"""Length of the IPv6 prefix that identifies a home; the rest of the address is free for its owner to choose."""
_MOST_DOUBLINGS = 30

_Key = TypeVar("_Key")
_Entry = TypeVar("_Entry")


@dataclass(slots=True)
class _Failures:
    count: int
    latest: float
    """Time of the last failure, by the monotonic clock."""

    @property
    def wait(self) -> float:
        """Return the seconds from the last failure to the next attempt that is looked at."""
        doublings = self.count - FREE_FAILURES
        return 0.0 if doublings < 0 else min(2.0 ** min(doublings, _MOST_DOUBLINGS), LONGEST_WAIT_SECONDS)


class FailedAttempts:
    """Counts of wrong tokens, by the address that they came from.

    While an address has to wait, only tokens that were right from there before are looked at, so callers who share an address with a
    guesser are not disturbed. Those tokens can be guessed at full speed, which is why tokens are random.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        """Use `monotonic` for the time: seconds that never run backwards."""
        self._monotonic = monotonic
        self._failures: OrderedDict[str, _Failures] = OrderedDict()
        self._right: OrderedDict[tuple[str, bytes], None] = OrderedDict()
        """Digests of tokens that were right, with their address."""

    def identify(self, address: str, token: str, identify: Callable[[], Identity]) -> Identity:
        """Return the identity of the caller at an address that shows this token, as `identify` finds it. Raise what it raises, and
        `RateLimited` if the address has to wait."""
        self.check(address, token)
        try:
            identity = identify()
        except Unauthenticated:
            if self.failed(address) == FREE_FAILURES:
                logger.warning("%d wrong tokens came from %s, which has to wait from now on", FREE_FAILURES, address)
            raise
        self.succeeded(address, token)
        return identity

    def check(self, address: str, token: str) -> None:
        """Raise `RateLimited` if this address has to wait before another token is looked at."""
        failures = self._failures.get(address)
        if failures is None:
            return
        now = self._monotonic()
        if now - failures.latest >= FAILURES_KEPT_SECONDS:
            del self._failures[address]
        elif (left := failures.latest + failures.wait - now) > 0 and (address, _digest(token)) not in self._right:
            hint = f"check the token, and try again in {math.ceil(left)} s"
            raise RateLimited("too many wrong tokens came from this address", hint=hint, retry_after=left)

    def failed(self, address: str) -> int:
        """Count a wrong token. Return the number of wrong tokens from this address."""
        failures = self._failures.pop(address, None)
        count = 1 if failures is None else failures.count + 1
        _keep(self._failures, address, _Failures(count, self._monotonic()))
        return count

    def succeeded(self, address: str, token: str) -> None:
        """Remember that a token was right. The address still has to wait with other tokens: a caller with a token may guess another
        one's."""
        _keep(self._right, (address, _digest(token)), None)


@lru_cache(maxsize=ADDRESSES)
def home_of(peer: str) -> str | None:
    """Return the part of gRPC's peer name that its owner cannot change at will, or None for a socket of this machine.

    This is an IPv4 address, or the first half of an IPv6 address: a home gets a whole block and may use any address in it.
    """
    kind, _, rest = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return None
    host = rest.rpartition(":")[0].strip("[]").partition("%")[0]
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return str(ipaddress.ip_network((address, _HOMES_BITS), strict=False))
        address = address.ipv4_mapped
    return str(address)


def _keep(entries: "OrderedDict[_Key, _Entry]", key: _Key, entry: _Entry) -> None:
    """Put an entry last, and forget the first where there are too many."""
    entries[key] = entry
    entries.move_to_end(key)
    while len(entries) > ADDRESSES:
        entries.popitem(last=False)


def _digest(token: str) -> bytes:
    return sha256(token.encode()).digest()


Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Found: TypeAlias = "Awaitable[grpc.RpcMethodHandler[Any, Any] | None]"

_HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_FOR_STRANGERS: Final = (f"/{_HEALTH}/", f"/{reflection.SERVICE_NAME}/")
_WATCH: Final = f"/{_HEALTH}/Watch"
_RETRY_AFTER: Final = 1.0


class Share:
    """The calls and memory that one caller uses now."""

    def __init__(self) -> None:
        self.calls = 0
        self.reading = asyncio.Semaphore(READS_OF_A_CALLER)
        self._bytes = 0

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Count `size` bytes of a request as held. Raise `RateLimited` if the caller's requests take too much memory."""
        if self._bytes + size > REQUEST_BYTES_OF_A_CALLER:
            message = f"this caller's requests take more than {REQUEST_BYTES_OF_A_CALLER} bytes"
            raise RateLimited(message, hint="wait for some of them", retry_after=_RETRY_AFTER)
        self._bytes += size
        try:
            yield
        finally:
            self._bytes -= size


class CallerShares:
    """The shares of all callers of a server, as long as they have calls open."""

    def __init__(self) -> None:
        self._shares: dict[tuple[str, str], Share] = {}

    @contextmanager
    def call(self, key: tuple[str, str], most: int) -> Iterator[Share]:
        """Count a call of the caller known by `key` while it is open. Raise `RateLimited` if `most` of them are open already."""
        share = self._shares.get(key)
        if share is None:
            share = self._shares[key] = Share()
        if share.calls >= most:
            raise RateLimited(f"{most} calls of this caller are open", hint="close some of them", retry_after=_RETRY_AFTER)
        share.calls += 1
        try:
            yield share
        finally:
            share.calls -= 1
            if not share.calls:
                self._shares.pop(key, None)


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
        method = str(handler_call_details.method)
        if (known := self._handlers.get(method)) is not None:
            return known
        handler = await continuation(handler_call_details)
        if handler is None:
            return None  # type: ignore[return-value]  # which gRPC takes for an unknown method
        serve = partial(self._serve, _Answering(handler), method)
        guarded = grpc.stream_stream_rpc_method_handler(serve, _parsing(handler.request_deserializer), handler.response_serializer)
        self._handlers[method] = guarded
        return guarded

    async def _serve(self, answering: "_Answering", method: str, requests: AsyncIterator[object], context: Context) -> None:
        try:
            with self._admitted(method, context) as share:
                answer = answering.answer(share, requests, context)
                await (_soon(answer) if method.startswith(_FOR_STRANGERS) and method != _WATCH else answer)
        except NearfarError as error:
            await abort(context, error)
        except grpc.aio.AbortError:
            raise
        except grpc.aio.BaseError:  # what gRPC raises for writing to a call that is over
            logger.debug("the caller of %s left while it was written to", method)
        except NotImplementedError:  # raised by generated services in methods without an implementation, such as the health's List
            await abort(context, Unsupported(f"the server does not answer {method}"))
        except Exception as defect:  # the boundary of a call: its caller learns that it failed, and the log where
            log_defect(logger, f"a call of {method} failed", defect)
            await abort(context, InternalError("the call failed unexpectedly", hint="the server's log has the details"))

    @contextmanager
    def _admitted(self, method: str, context: Context) -> Iterator[Share]:
        """Count the call while it is open. Raise the error with which it is refused."""
        is_stranger = method.startswith(_FOR_STRANGERS)
        key = ("stranger", home_of(context.peer()) or "") if is_stranger else ("caller", self._caller(method, context))
        with self._shares.call(key, CALLS_OF_A_STRANGER if is_stranger else CALLS_OF_A_CALLER) as share:
            yield share

    def _caller(self, method: str, context: Context) -> str:
        credentials = credentials_of(context)
        shown = credentials.authorization
        home = home_of(context.peer()) if shown else None
        if home is None:  # nothing is guessed, or only this machine's own user can
            return self._access.admit(method, credentials).caller
        return self._attempts.identify(home, shown, lambda: self._access.admit(method, credentials)).caller


class _Answering:
    """Runs a handler of any kind in calls that stream in both directions."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        kinds = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
        self._run: Callable[..., Any] = next(behaviour for behaviour in kinds if behaviour is not None)

    async def answer(self, share: Share, requests: AsyncIterator[object], context: Context) -> None:
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
