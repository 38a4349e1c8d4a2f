"""`Breaker`: the circuit breaker for one agent and one kind of error: closed, open, or half-open while one call probes the agent."""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ...protocols import (
    AgentError,
    ContentFiltered,
    ContextOverflow,
    DeadlineExceeded,
    InternalError,
    InvalidOutput,
    ModelError,
    NoSuchModel,
    ProviderAuthError,
    QuotaExceeded,
    RateLimited,
    RequestRefused,
    Stalled,
    Unavailable,
)
from ..task.sections.resilience import BreakerConfig

_SPREAD: Final = 0.2
"""Share by which the time that a breaker is open varies, so that those who failed together do not come back together."""
_DOUBLINGS: Final = 30
"""After which no bound is longer anyway."""


class ErrorKind(StrEnum):
    """A kind of failure of an agent, with a breaker of its own: a provider out of credit can still be reached."""

    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    STALL = "stall"
    RATE = "rate"
    QUOTA = "quota"
    KEY = "key"
    """The provider refuses the gateway's key."""
    DEFECT = "defect"


_KINDS: Final[tuple[tuple[type[AgentError], ErrorKind], ...]] = (
    (Unavailable, ErrorKind.UNREACHABLE),
    (DeadlineExceeded, ErrorKind.TIMEOUT),
    (Stalled, ErrorKind.STALL),
    (RateLimited, ErrorKind.RATE),
    (QuotaExceeded, ErrorKind.QUOTA),
    (ProviderAuthError, ErrorKind.KEY),
    (NoSuchModel, ErrorKind.DEFECT),
    (ModelError, ErrorKind.DEFECT),
    (InternalError, ErrorKind.DEFECT),
)
ANSWERED: Final = (ContentFiltered, ContextOverflow, InvalidOutput, RequestRefused)
"""Failures of a request, not of the agent, which was there and at work."""


def kind_of(error: BaseException) -> ErrorKind | None:
    """Return the kind of an error; None for errors that say nothing about the agent's health."""
    return next((kind for cls, kind in _KINDS if isinstance(error, cls)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A call that failed."""

    why: str
    is_probe: bool
    is_costly: bool
    """The call took so long that the next one must not wait for the same."""
    retry_after: float | None
    """Seconds, where the other side has said when to come back."""

    @property
    def is_enough(self) -> bool:
        """It opens the breaker by itself."""
        return self.is_probe or self.is_costly or self.retry_after is not None


class Breaker:
    """The state of one circuit breaker. Times are seconds of a monotonic clock. Not thread-safe: the caller holds a lock."""

    def __init__(self) -> None:
        self._latest: deque[bool] = deque()
        """For each of the latest calls, True if it failed."""
        self._in_a_row = 0
        self._level = 0
        """How often it has opened without a long time of calm in between."""
        self._calm = 0
        """Successes since it closed."""
        self._successes = 0
        """Successful probes since the breaker is half-open."""
        self.open_until: float | None = None
        """None while it is closed; once the time is over, it is half-open."""
        self.openings = 0
        """Tells probes of this time from those of earlier ones, which say nothing any more."""
        self.probe: object | None = None
        """The call that is finding out, and of which nothing was heard yet."""
        self.probe_until = 0.0
        """How long others wait for it."""
        self.reason = ""
        """Why it opened."""

    def is_half_open(self, now: float) -> bool:
        return self.open_until is not None and now >= self.open_until

    def is_of(self, openings: int) -> bool:
        """Return whether the breaker is still half-open after that opening, so that the result of a probe from then counts."""
        return self.open_until is not None and self.openings == openings

    def succeeded(self, settings: BreakerConfig, *, is_probe: bool) -> None:
        """Take in a call that went well. While the breaker is not closed, only that of a probe says anything."""
        if self.open_until is None:
            self._count(False, settings)
            self._in_a_row = 0
            self._calm += 1
            self._level = 0 if self._calm >= settings.window else self._level
        elif is_probe:
            self._successes += 1
            if self._successes >= settings.successes_to_close:
                self._close()

    def failed(self, settings: BreakerConfig, failure: Failure, *, now: float, chance: float) -> None:
        """Take in a failure. `chance`, 0 to 1, spreads the time that the breaker is open."""
        if self.open_until is None:
            self._count(True, settings)
            self._in_a_row += 1
        if self.open_until is not None and not failure.is_probe:
            self._wait_as_told(now, failure.retry_after)
        elif failure.is_enough or self._has_failed_enough(settings):
            self.reason = failure.why if failure.is_enough else f"{self._extent(settings)}: {failure.why}"
            self._open(settings, now=now, retry_after=failure.retry_after, chance=chance)

    def _count(self, failed: bool, settings: BreakerConfig) -> None:
        self._latest.append(failed)
        while len(self._latest) > settings.window:
            self._latest.popleft()

    def _has_failed_enough(self, settings: BreakerConfig) -> bool:
        return self._in_a_row >= settings.failures_in_a_row or self._has_failed_often(settings)

    def _has_failed_often(self, settings: BreakerConfig) -> bool:
        calls = len(self._latest)
        return 2 * calls >= settings.window and sum(self._latest) >= settings.failure_share * calls

    def _extent(self, settings: BreakerConfig) -> str:
        if self._in_a_row >= settings.failures_in_a_row:
            return f"{self._in_a_row} failures in a row"
        return f"{sum(self._latest)} failures in {len(self._latest)} calls"

    def _open(self, settings: BreakerConfig, *, now: float, retry_after: float | None, chance: float) -> None:
        seconds = min(settings.open_seconds * 2 ** min(self._level, _DOUBLINGS), settings.longest_open_seconds)
        spread = 1 - _SPREAD + 2 * _SPREAD * chance
        self.open_until = now + (min(seconds * spread, settings.longest_open_seconds) if retry_after is None else retry_after)
        self._level += retry_after is None
        self._successes = 0
        self.openings += 1
        self.probe = None

    def _wait_as_told(self, now: float, retry_after: float | None) -> None:
        """Extend the open time: a call that began before the breaker opened may still learn when to come back."""
        if retry_after is not None and self.open_until is not None:
            self.open_until = max(self.open_until, now + retry_after)

    def _close(self) -> None:
        self._latest.clear()
        self._in_a_row = self._calm = self._successes = 0
        self.open_until = None
        self.reason = ""
