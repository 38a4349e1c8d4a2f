"""The only retry layer between a step and a provider.

No library is used: the loop has to be inside the stream, which no retry library can wrap, and the rest is three lines of arithmetic.
"""

import random
from dataclasses import dataclass

import anyio

from ..protocols import NearfarError, RateLimited, Unavailable


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The limits of retries. Only failures before the answer begins are ever retried."""

    calls: int = 3
    """Upstream calls per step, the first one included."""
    first_delay: float = 0.5
    """Seconds; the upper bound of the first random delay, doubled for each further one."""
    longest_delay: float = 20.0
    """Seconds. If a provider asks for a longer pause, the step fails at once, so that another agent can take it."""

    def delay(self, error: NearfarError, *, calls_made: int, seconds_left: float) -> float | None:
        """Return the seconds to wait before the next call, or None to give up.

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
"""Seconds. A provider that asks for a longer pause is tried once a day."""


class Pause:
    """The pause that a provider has asked for, shared by all steps of an agent."""

    def __init__(self) -> None:
        self._until = float("-inf")

    def note(self, error: NearfarError) -> None:
        """Record the pause that an error asks for, if any."""
        if isinstance(error, Unavailable | RateLimited) and error.retry_after is not None:
            self._until = max(self._until, anyio.current_time() + min(error.retry_after, _LONGEST_PAUSE))

    def left(self, provider: str) -> RateLimited | None:
        """Return the error for a step during the pause, or None if the pause is over."""
        seconds = self._until - anyio.current_time()
        if seconds <= 0:
            return None
        return RateLimited(
            f"the {provider} asked for a pause: retry in {seconds:.1f} s", hint="wait, or ask another agent", retry_after=seconds
        )
