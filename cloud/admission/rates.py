"""`Rates`: the requests and tokens that each caller may still use in this second and this minute."""

from collections.abc import Callable
from dataclasses import dataclass

from ...protocols import RateLimited
from .settings import GatewayLimits


@dataclass(slots=True)
class Bucket:
    """A token bucket: fills at a steady rate up to its capacity. Its level may be negative, and the debt has to be filled first."""

    capacity: float
    per_second: float
    level: float
    looked_at: float

    def look(self, now: float) -> None:
        """Add the tokens that have come in since the last look."""
        self.level = min(self.level + (now - self.looked_at) * self.per_second, self.capacity)
        self.looked_at = now

    def wait_for(self, amount: float) -> float:
        """Return the seconds until `amount` is there, or the bucket is full."""
        return max(min(amount, self.capacity) - self.level, 0.0) / self.per_second


class Rates:
    """The buckets of all callers of one gateway.

    Args:
        limits: limits of each caller.
        monotonic: seconds that never run backwards.
    """

    def __init__(self, limits: GatewayLimits, monotonic: Callable[[], float]) -> None:
        self._limits = limits
        self._monotonic = monotonic
        self._requests: dict[str, Bucket] = {}
        self._tokens: dict[str, Bucket] = {}

    def take(self, caller: str, tokens: int) -> None:
        """Count a step with this length of prompt. Raise `RateLimited`, and count nothing, if it comes too early."""
        requests, used = self._of(caller)
        for bucket, amount, unit in ((requests, 1, "requests per second"), (used, tokens, "tokens per minute")):
            wait = 0.0 if bucket is None else bucket.wait_for(amount)
            if wait > 0:
                raise RateLimited(f"the caller has used up its {unit}", hint="its operator sets the limit", retry_after=wait)
        for bucket, amount in ((requests, 1), (used, tokens)):
            if bucket is not None:
                bucket.level -= amount

    def settle(self, caller: str, tokens: int) -> None:
        """Count the tokens that a step took beyond those given to `take`; a negative number gives tokens back."""
        _, used = self._of(caller)
        if used is not None:
            used.level = min(used.level - tokens, used.capacity)

    def _of(self, caller: str) -> tuple[Bucket | None, Bucket | None]:
        limits, now = self._limits, self._monotonic()
        requests = _bucket(self._requests, caller, limits.requests_per_second, now, seconds=1.0, least=1.0)
        minute = None if limits.tokens_per_minute is None else limits.tokens_per_minute / 60
        return requests, _bucket(self._tokens, caller, minute, now, seconds=60.0, least=1.0)


def _bucket(
    buckets: dict[str, Bucket], caller: str, per_second: float | None, now: float, *, seconds: float, least: float
) -> Bucket | None:
    """Return the caller's bucket, which holds the inflow of so many seconds; None if there is no limit."""
    if per_second is None:
        return None
    capacity = max(per_second * seconds, least)
    bucket = buckets.setdefault(caller, Bucket(capacity, per_second, capacity, now))
    bucket.look(now)
    return bucket
