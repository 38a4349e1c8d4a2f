"""Access control of a server: each call is admitted by the scope of its token, and ended when the token expires or is revoked.

Each caller has limits: wrong tokens by address, and the calls and memory in use at once.
"""

import asyncio
import ipaddress
import logging
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar
from urllib.parse import unquote

import anyio

from .errors import NearfarError, PermissionDenied, RateLimited, Unauthenticated
from .limits import (
    ADDRESSES,
    FAILURES_KEPT_SECONDS,
    FREE_FAILURES,
    LONGEST_WAIT_SECONDS,
    READS_OF_A_CALLER,
    REQUEST_BYTES_OF_A_CALLER,
)
from .security import IDENTITY, OWNER_HINT, Authenticator, Credentials, Identity, Scope, Tokens, credentials_of, system_time

if TYPE_CHECKING:
    import grpc  # which a server of HTTP does without

Answer = TypeVar("Answer")
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

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
        self._calls: set[OpenCall] = set()
        self._endings: list[Ending] = []

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
        call = OpenCall(identity)
        CALL.set(call)
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


class OpenCall:
    """A call that is being answered."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.limit = asyncio.timeout(None)
        """The timeout that ends the call; it has no time until then. `asyncio.timeout` is used because it is faster than a scope of
        anyio's."""
        self.error: NearfarError | None = None
        """The error that the call ends with."""
        self._is_beginning = False

    def end(self, error: NearfarError) -> None:
        """End the call with `error`, unless it is ending already."""
        if self.error is None:
            self.error = error
            self.limit.reschedule(asyncio.get_running_loop().time() + _BEGINNING_SECONDS if self._is_beginning else 0)

    async def begin(self, operation: Awaitable[Answer]) -> Answer:
        """Wait for the operation that begins a reply, its metadata or its first message, and return its result.

        gRPC accepts no status during that operation, so a call that ended just then would end for its client only at its deadline. An
        end waits for the operation, for a second at most.
        """
        self._is_beginning = True
        result = await operation
        self._is_beginning = False
        if self.error is not None:
            raise self.error
        return result


CALL: Final[ContextVar[OpenCall]] = ContextVar("nearfar_call")
"""The call that is being answered."""

logger = logging.getLogger(__name__)

_RETRY_AFTER: Final = 1.0
_BEGINNING_SECONDS: Final = 1.0
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


class Share:
    """The calls and memory that one caller uses now. Entered once for each call."""

    def __init__(self, forget: Callable[[], object]) -> None:
        """Call `forget` when no call is open any more."""
        self._forget = forget
        self.calls = 0
        self.reading = asyncio.Semaphore(READS_OF_A_CALLER)
        self._bytes = 0

    def __enter__(self) -> Self:
        self.calls += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.calls -= 1
        if not self.calls:
            self._forget()

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

    def call(self, key: tuple[str, str], most: int) -> Share:
        """Return the share of the caller known by `key`, which counts a call within a `with` block. Raise `RateLimited` if `most` of them
        are open already."""
        share = self._shares.get(key)
        if share is None:
            share = self._shares[key] = Share(partial(self._shares.pop, key, None))
        if share.calls >= most:
            raise RateLimited(f"{most} calls of this caller are open", hint="close some of them", retry_after=_RETRY_AFTER)
        return share
