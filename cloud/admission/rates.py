"""`Rates`: how much each caller may still ask in this second and this minute."""

from collections.abc import Callable
from dataclasses import dataclass

from ...protocols import RateLimited
from .settings import GatewayLimits


@dataclass(slots=True)
class Bucket:
    """Fills at a steady rate up to its capacity. What is taken may leave it in debt, which has to be made up for first."""

    capacity: float
    per_second: float
    level: float
    looked_at: float

    def look(self, now: float) -> None:
        """Let in what has come since the last look."""
        self.level = min(self.level + (now - self.looked_at) * self.per_second, self.capacity)
        self.looked_at = now

    def wait_for(self, amount: float) -> float:
        """Seconds until so much is there, or as much as ever will be."""
        return max(min(amount, self.capacity) - self.level, 0.0) / self.per_second


class Rates:
    """The buckets of all callers of one gateway.

    Args:
        limits: of each caller.
        monotonic: seconds that never run backwards.
    """

    def __init__(self, limits: GatewayLimits, monotonic: Callable[[], float]) -> None:
        self._limits = limits
        self._monotonic = monotonic
        self._requests: dict[str, Bucket] = {}
        self._tokens: dict[str, Bucket] = {}

    def take(self, caller: str, tokens: int) -> None:
        """Count a step whose prompt is about so long. Raises `RateLimited`, and counts nothing, where it is too early for it."""
        requests, used = self._of(caller)
        for bucket, amount, unit in ((requests, 1, "requests per second"), (used, tokens, "tokens per minute")):
            wait = 0.0 if bucket is None else bucket.wait_for(amount)
            if wait > 0:
                raise RateLimited(f"the gateway lets this caller have no more {unit}", hint="its operator sets the limit", retry_after=wait)
        for bucket, amount in ((requests, 1), (used, tokens)):
            if bucket is not None:
                bucket.level -= amount

    def settle(self, caller: str, tokens: int) -> None:
        """Count what a step took beyond what `take` was told; less where it is negative."""
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
    """The caller's bucket, which holds what comes in so many seconds; None where there is no limit."""
    if per_second is None:
        return None
    capacity = max(per_second * seconds, least)
    bucket = buckets.setdefault(caller, Bucket(capacity, per_second, capacity, now))
    bucket.look(now)
    return bucket
