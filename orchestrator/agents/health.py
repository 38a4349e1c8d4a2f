"""`Health`: whether an agent may be asked now, by what came of the last calls."""

import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from ...protocols import NearfarError, Unavailable, WorkerCrashed
from ..task.sections.resilience import BreakerConfig
from .breaker import ANSWERED, Breaker, ErrorKind, Failure, kind_of

logger = logging.getLogger(__name__)

_LONGEST_PROBE: Final = 10.0
"""Seconds that others wait for a call that finds out; then another one may try."""
_LONGEST_TOLD: Final = 24 * 3600.0
"""Seconds; what asks to be left alone for longer is tried once a day."""


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
    is_telling: bool = True
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
        return f"{self._name} is tried again: half-open after {', '.join(tried)}" if tried else None

    @property
    def is_worth_a_look(self) -> bool:
        """True if the agent was unreachable and nothing else, and no call is probing it now."""
        now = self._monotonic()
        with self._lock:
            opened = {kind for kind, breaker in self._breakers.items() if breaker.open_until is not None}
            return opened == {ErrorKind.UNREACHABLE} and self._objection(now) is None

    @contextmanager
    def trying(self, admitted: Trial | None = None) -> Iterator[Trial]:
        """Record the outcome of a call of the agent. Raises what `admit` raises, unless the call was `admitted` before."""
        trial = admitted or self.admit()
        try:
            yield trial
        except BaseException as error:
            self._note(trial, error)
            raise
        else:
            self._note(trial, None)

    def heard(self, trial: Trial) -> None:
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
            return Objection(f"its breaker is open for {max(waits):.1f} s more, {last}: {opened[last].reason}", max(waits))
        probed = [breaker.probe_until - now for breaker in opened.values() if breaker.probe is not None]
        if probed and max(probed) > 0:
            return Objection("its breaker is half-open, and another call is finding out whether it is back", max(probed))
        return None

    def admit(self) -> Trial:
        """Let a call begin, for `trying`. Raises `Unavailable` where the agent may not be asked now."""
        with self._lock:
            now = self._monotonic()
            trial = Trial(began=now)
            objection = self._objection(now)
            if objection is not None:
                hint = "another agent may serve meanwhile; [policy.breakers] sets when agents are left alone"
                raise Unavailable(f"{self._name} was not asked: {objection.reason}", hint=hint, retry_after=objection.retry_after)
            for kind, breaker in self._breakers.items():
                if breaker.open_until is not None:
                    breaker.probe, breaker.probe_until = trial, now + _LONGEST_PROBE
                    trial.probed[kind] = breaker.openings
        return trial

    def _note(self, trial: Trial, error: BaseException | None) -> None:
        kind = None if error is None else kind_of(error)
        with self._lock:
            for breaker in self._breakers.values():
                breaker.probe = None if breaker.probe is trial else breaker.probe
            probed = {known for known, openings in trial.probed.items() if self._breakers[known].is_of(openings)}
            if not trial.is_telling:
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
                logger.info("%s is back: its breaker %r is closed", self._name, kind.value)

    def _failed(self, kind: ErrorKind, error: BaseException, trial: Trial, probed: set[ErrorKind]) -> None:
        breaker = self._breakers.setdefault(kind, Breaker())
        before, now = breaker.open_until, self._monotonic()
        was_there = kind is not ErrorKind.UNREACHABLE or isinstance(error, WorkerCrashed)
        failure = Failure(
            why=type(error).__name__,
            is_probe=kind in probed,
            is_costly=not was_there and now - trial.began >= self.settings.costly_seconds,
            retry_after=_told(error.retry_after) if isinstance(error, NearfarError) else None,
        )
        breaker.failed(self.settings, failure, now=now, chance=self._chance())
        if breaker.open_until is not None and breaker.open_until != before:
            logger.warning("%s is left alone for %.1f s, %s: %s", self._name, breaker.open_until - now, kind.value, breaker.reason)


def _told(retry_after: float | None) -> float | None:
    """When the other side asks to be tried again, where it makes sense; NaN does not."""
    return min(retry_after, _LONGEST_TOLD) if retry_after is not None and retry_after > 0 else None
