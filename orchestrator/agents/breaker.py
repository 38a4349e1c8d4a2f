"""Circuit breakers: `Health` decides whether an agent may be asked now, with one `Breaker` for each kind of error."""

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Lock
from typing import Final

from ...protocols import (
    AgentError,
    ContentFiltered,
    ContextOverflow,
    DeadlineExceeded,
    InternalError,
    InvalidOutput,
    ModelError,
    NearfarError,
    NoSuchModel,
    ProviderAuthError,
    QuotaExceeded,
    RateLimited,
    RequestRefused,
    Stalled,
    Unavailable,
    WorkerCrashed,
)
from ..task.routing_policy import BreakerConfig

_SPREAD: Final = 0.2
"""Share by which the time that a breaker is open varies, so that those who failed together do not come back together."""
_DOUBLINGS: Final = 30
"""After which no bound is longer anyway."""


ANSWERED: Final = (ContentFiltered, ContextOverflow, InvalidOutput, RequestRefused)
"""Failures of a request, not of the agent, which was there and at work."""
logger = logging.getLogger(__name__)
_LONGEST_PROBE: Final = 10.0
"""Seconds that others wait for a call that finds out; then another one may try."""
_LONGEST_TOLD: Final = 24 * 3600.0
"""Seconds; an agent that asks for a longer pause is tried once a day."""


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


class BreakerState(StrEnum):
    """State of an agent's circuit breakers, the worst of all."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    """The next call finds out whether the agent is back."""


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
        """The call that is finding out and has not answered yet."""
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
            self._extend_open_time(now, failure.retry_after)
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

    def _extend_open_time(self, now: float, retry_after: float | None) -> None:
        """Extend the open time: a call that began before the breaker opened may still learn when to come back."""
        if retry_after is not None and self.open_until is not None:
            self.open_until = max(self.open_until, now + retry_after)

    def _close(self) -> None:
        self._latest.clear()
        self._in_a_row = self._calm = self._successes = 0
        self.open_until = None
        self.reason = ""


@dataclass(frozen=True, slots=True)
class Objection:
    """Why an agent may not be asked now."""

    reason: str
    retry_after: float
    """Seconds until it may be tried again; sooner where another call finds out that it is back."""


@dataclass(slots=True)
class Trial:
    """A call that may say something of its agent's health."""

    began: float
    counts: bool = True
    """The outcome counts. False for an answer that the agent did not compute, or a time-out that no agent could have met."""
    probed: dict[ErrorKind, int] = field(default_factory=dict)
    """The half-open breakers for which it finds out, with how often each had opened."""


class Health:
    """The breakers of one agent. Calls may come from any thread.

    Args:
        name: of the agent.
        monotonic: seconds that never run backwards.
        chance: a number from 0 to 1, another one each time.
    """

    def __init__(self, name: str, *, monotonic: Callable[[], float] = time.monotonic, chance: Callable[[], float] = random.random) -> None:
        self.settings = BreakerConfig()
        """The breakers' configuration, from the policy under which the latest task was routed."""
        self.in_flight = 0
        """Calls under way in this process."""
        self._name = name
        self._monotonic = monotonic
        self._chance = chance
        self._breakers: dict[ErrorKind, Breaker] = {}
        self._lock = Lock()

    def objection(self) -> Objection | None:
        """Return why the agent may not be asked now; None where it may."""
        with self._lock:
            return self._objection(self._monotonic())

    @property
    def note(self) -> str | None:
        """A line that says that the agent is tried again, and after which failures; None while all its breakers are closed."""
        now = self._monotonic()
        with self._lock:
            tried = [f"{kind} ({breaker.reason})" for kind, breaker in self._breakers.items() if breaker.is_half_open(now)]
        return f"retrying {self._name}: circuit breaker half-open after {', '.join(tried)}" if tried else None

    @property
    def state(self) -> BreakerState:
        """Return the state of the breaker that is the furthest from closed."""
        now = self._monotonic()
        with self._lock:
            opened = [breaker for breaker in self._breakers.values() if breaker.open_until is not None]
        if not opened:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if all(breaker.is_half_open(now) for breaker in opened) else BreakerState.OPEN

    @property
    def needs_probe(self) -> bool:
        """True if the agent was unreachable and nothing else, and no call is probing it now."""
        now = self._monotonic()
        with self._lock:
            opened = {kind for kind, breaker in self._breakers.items() if breaker.open_until is not None}
            return opened == {ErrorKind.UNREACHABLE} and self._objection(now) is None

    @contextmanager
    def trying(self, admitted: Trial | None = None) -> Iterator[Trial]:
        """Record the outcome of a call of the agent. Raises what `admit` raises, unless the call was `admitted` before."""
        trial = admitted or self.admit()
        with self._lock:
            self.in_flight += 1
        try:
            yield trial
        except BaseException as error:
            self._note(trial, error)
            raise
        else:
            self._note(trial, None)

    def end_probe(self, trial: Trial) -> None:
        """End the probe of a call that has begun to answer: others need not wait for its end."""
        with self._lock:
            for kind in trial.probed:
                if self._breakers[kind].probe is trial:
                    self._breakers[kind].probe = None

    def _objection(self, now: float) -> Objection | None:
        opened = {kind: breaker for kind, breaker in self._breakers.items() if breaker.open_until is not None}
        waits = [(breaker.open_until or 0.0) - now for breaker in opened.values()]
        if waits and max(waits) > 0:
            last = max(opened, key=lambda kind: opened[kind].open_until or 0.0)
            why = f"circuit breaker open, retrying in {max(waits):.1f} s ({last}: {opened[last].reason})"
            return Objection(why, max(waits))
        probed = [breaker.probe_until - now for breaker in opened.values() if breaker.probe is not None]
        if probed and max(probed) > 0:
            return Objection("circuit breaker half-open, another call is probing the agent", max(probed))
        return None

    def admit(self) -> Trial:
        """Let a call begin, for `trying`. Raises `Unavailable` where the agent may not be asked now."""
        with self._lock:
            now = self._monotonic()
            trial = Trial(began=now)
            objection = self._objection(now)
            if objection is not None:
                hint = "another agent may serve meanwhile; [policy.breakers] configures the circuit breakers"
                raise Unavailable(f"{self._name} was not asked: {objection.reason}", hint=hint, retry_after=objection.retry_after)
            for kind, breaker in self._breakers.items():
                if breaker.open_until is not None:
                    breaker.probe, breaker.probe_until = trial, now + _LONGEST_PROBE
                    trial.probed[kind] = breaker.openings
        return trial

    def _note(self, trial: Trial, error: BaseException | None) -> None:
        kind = None if error is None else kind_of(error)
        with self._lock:
            self.in_flight -= 1
            for breaker in self._breakers.values():
                breaker.probe = None if breaker.probe is trial else breaker.probe
            probed = {known for known, openings in trial.probed.items() if self._breakers[known].is_of(openings)}
            if not trial.counts:
                return
            if error is None or isinstance(error, ANSWERED):
                self._succeeded(probed)
            elif kind is not None:
                self._failed(kind, error, trial, probed)

    def _succeeded(self, probed: set[ErrorKind]) -> None:
        for kind, breaker in self._breakers.items():
            was_open = breaker.open_until is not None
            breaker.succeeded(self.settings, is_probe=kind in probed)
            if was_open and breaker.open_until is None:
                logger.info("circuit breaker closed for %s (%s)", self._name, kind.value)

    def _failed(self, kind: ErrorKind, error: BaseException, trial: Trial, probed: set[ErrorKind]) -> None:
        breaker = self._breakers.setdefault(kind, Breaker())
        before, now = breaker.open_until, self._monotonic()
        was_there = kind is not ErrorKind.UNREACHABLE or isinstance(error, WorkerCrashed)
        failure = Failure(
            why=type(error).__name__,
            is_probe=kind in probed,
            is_costly=not was_there and now - trial.began >= self.settings.costly_seconds,
            retry_after=_bounded_retry(error.retry_after) if isinstance(error, NearfarError) else None,
        )
        breaker.failed(self.settings, failure, now=now, chance=self._chance())
        if breaker.open_until is not None and breaker.open_until != before:
            seconds = breaker.open_until - now
            logger.warning("circuit breaker open for %s: retrying in %.1f s (%s: %s)", self._name, seconds, kind.value, breaker.reason)


def _bounded_retry(retry_after: float | None) -> float | None:
    """When the other side asks to be tried again, where it makes sense; NaN does not."""
    return min(retry_after, _LONGEST_TOLD) if retry_after is not None and retry_after > 0 else None
