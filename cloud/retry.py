"""The one retry layer between a step and a provider.

Written out because it is three lines of arithmetic: the loop itself has to live in the stream, which no retry library can wrap.
"""

import random
from dataclasses import dataclass

import anyio

from ..protocols import NearfarError, RateLimited, Unavailable


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When to call a provider again. Only failures before the answer begins are ever retried."""

    calls: int = 3
    """Upstream calls per step, the first one included."""
    first_delay: float = 0.5
    """Seconds; the upper bound of the first random delay, doubled for each further one."""
    longest_delay: float = 20.0
    """Seconds; a provider that asks for a longer pause is not waited for, so that the step can go elsewhere."""

    def delay(self, error: NearfarError, *, calls_made: int, seconds_left: float) -> float | None:
        """Seconds to wait before the next call, or None to give up.

        A stall or a missed deadline is not retried: the provider may have done, and charged, the work.
        """
        if not isinstance(error, Unavailable | RateLimited) or calls_made >= self.calls:
            return None
        delay = self._jittered(calls_made) if error.retry_after is None else error.retry_after
        return delay if delay <= min(self.longest_delay, seconds_left) else None

    def _jittered(self, calls_made: int) -> float:
        # Full jitter: clients that failed together must not come back together.
        return random.uniform(0, min(self.longest_delay, self.first_delay * 2 ** (calls_made - 1)))


_LONGEST_PAUSE = 24 * 3600.0
"""Seconds; a provider that asks for more is asked once a day."""


class Pause:
    """For how long a provider has asked to be left alone, whichever step it told: no other one asks it before."""

    def __init__(self) -> None:
        self._until = float("-inf")

    def note(self, error: NearfarError) -> None:
        """Take in what the provider said with an error, if it said anything."""
        if isinstance(error, Unavailable | RateLimited) and error.retry_after is not None:
            self._until = max(self._until, anyio.current_time() + min(error.retry_after, _LONGEST_PAUSE))

    def left(self, provider: str) -> RateLimited | None:
        """What a step is told that comes too early; None: it may ask."""
        seconds = self._until - anyio.current_time()
        if seconds <= 0:
            return None
        return RateLimited(f"the {provider} asked to be left alone for {seconds:.1f} s more", hint="wait for so long", retry_after=seconds)
