"""Failed attempts to show a token, by the address that they come from: who guesses has to wait ever longer."""

import ipaddress
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import TypeVar
from urllib.parse import unquote

from .errors import RateLimited
from .limits import ADDRESSES, FAILURES_KEPT_SECONDS, FREE_FAILURES, LONGEST_WAIT_SECONDS

_HOMES_BITS = 64
"""Of an IPv6 address: below, whoever has one has all."""
_MOST_DOUBLINGS = 30

_Key = TypeVar("_Key")
_Entry = TypeVar("_Entry")


@dataclass(slots=True)
class _Failures:
    count: int
    latest: float
    """When the last one was, by the monotonic clock."""

    @property
    def wait(self) -> float:
        """Seconds from the last failure to the next attempt that is looked at."""
        doublings = self.count - FREE_FAILURES
        return 0.0 if doublings < 0 else min(2.0 ** min(doublings, _MOST_DOUBLINGS), LONGEST_WAIT_SECONDS)


class FailedAttempts:
    """Those of all addresses that call a server.

    While an address has to wait, no token from there is looked at, but for those that were right from there before: whoever shares an
    address with somebody who guesses goes on undisturbed. Against those, guesses are not slowed down, which is why tokens are random.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        """`monotonic` gives seconds that never run backwards."""
        self._monotonic = monotonic
        self._failures: OrderedDict[str, _Failures] = OrderedDict()
        self._right: OrderedDict[tuple[str, bytes], None] = OrderedDict()
        """Digests of tokens that were right, with the address."""

    def check(self, address: str, token: str) -> None:
        """Raises `RateLimited` where this address has to wait before another token is looked at."""
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
        """A token was wrong; returns how many were."""
        failures = self._failures.pop(address, None)
        count = 1 if failures is None else failures.count + 1
        _keep(self._failures, address, _Failures(count, self._monotonic()))
        return count

    def succeeded(self, address: str, token: str) -> None:
        """A token was right. That changes nothing for others: who has a token of their own may guess somebody else's."""
        _keep(self._right, (address, _digest(token)), None)


@lru_cache(maxsize=ADDRESSES)
def home_of(peer: str) -> str | None:
    """The part of gRPC's name for a peer that its owner cannot change at will; None for this machine's own sockets.

    An IPv4 address, or the first half of an IPv6 address: a home gets that many, and may use any of them.
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
