"""The steps that a server runs or has recently finished, with their events, so that a client can join or resume one."""

import asyncio
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from .errors import Cancelled, IdempotencyConflict, InvalidOutput, InvalidRequest, NearfarError, RateLimited, ResumeLost
from .limits import KEPT_BYTES, STEPS, STEPS_OF_A_CALLER

logger = logging.getLogger(__name__)

StepKey: TypeAlias = tuple[str, str]
"""Caller and idempotency key: callers cannot reach each other's steps."""


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Limits on the steps that a server keeps, in time and memory."""

    resume_window: float = 60.0
    """Seconds that a finished step is kept."""
    resume_grace: float = 5.0
    """Seconds that a step runs on after its last reader was lost."""
    max_steps: int = STEPS
    """Finished steps that are kept."""
    max_steps_of_a_caller: int = STEPS_OF_A_CALLER
    """Finished steps that are kept for one caller."""
    max_bytes: int = KEPT_BYTES
    """Size of all kept events."""


class LoggedStep:
    """One step: its events so far in their wire form, and its end."""

    __slots__ = ("_sleepers", "done", "error", "events", "fingerprint", "grace", "key", "readers", "size", "task", "tokens")

    def __init__(self, key: StepKey, fingerprint: bytes) -> None:
        self.key = key
        self.fingerprint = fingerprint
        self.events: list[bytes] = []
        self.size = 0
        """Bytes of all events."""
        self.error: NearfarError | None = None
        self.done = False
        self.task: asyncio.Task[None] | None = None
        self.readers: dict[str, int] = {}
        """Calls that read the step now, by reader; a reader that reconnects may have two for a while."""
        self.grace: asyncio.TimerHandle | None = None
        """Runs while the step has no reader."""
        self.tokens: set[str] = set()
        """Ids of the tokens with which the step was requested."""
        self._sleepers: list[asyncio.Future[None]] = []

    def finish(self, error: NearfarError | None = None) -> None:
        """End the step, unless it has ended already."""
        if not self.done:
            self.done, self.error = True, error
            self.wake()

    def cancel(self, error: NearfarError) -> None:
        """End the step for its readers now, and stop its compute."""
        self.finish(error)
        if self.task is not None:
            self.task.cancel()

    def wake(self) -> None:
        """Wake every reader that waits for a change."""
        for sleeper in self._sleepers:
            if not sleeper.done():
                sleeper.set_result(None)
        self._sleepers.clear()

    async def change(self) -> None:
        """Wait for the next event, or for the end."""
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append(sleeper)
        await sleeper


class StepLog:
    """All steps of one server, within the limits of its `Retention`."""

    def __init__(self, retention: Retention) -> None:
        self._retention = retention
        self._steps: dict[StepKey, LoggedStep] = {}
        self._finished: dict[StepKey, float] = {}
        """Loop time of the end, oldest first."""
        self._bytes = 0
        self._sweep: asyncio.TimerHandle | None = None
        self.refusal: NearfarError | None = None
        """Raised for every new step, while existing steps may still be joined; None: new steps are accepted."""

    def join(self, key: StepKey, fingerprint: bytes, *, resume_from: int | None = None) -> tuple[LoggedStep, bool]:
        """Return the step with this key and True if it is new and must be started; with `resume_from`, it never is.

        Raise `IdempotencyConflict` if the key belongs to another request, `ResumeLost` if there is nothing to resume, `RateLimited` if
        there is no room for a new step, and `refusal` if it is set.
        """
        step = self._steps.get(key)
        if step is not None and step.fingerprint != fingerprint:
            raise IdempotencyConflict("the idempotency key belongs to a different request", hint="use a fresh key for every request")
        if step is not None and (resume_from or 0) > len(step.events):
            raise InvalidRequest(f"resume_from is {resume_from}, and the step has {len(step.events)} events")
        # A failure is replayed to those who resume. Who asks again from the start wants another try.
        if step is not None and not (step.error is not None and resume_from is None):
            return step, False
        if resume_from is not None:
            raise ResumeLost("the server no longer holds this step", hint="ask again from the start with a fresh key")
        if self.refusal is not None:
            raise self.refusal
        if step is not None:
            self._forget(step)
        self._make_room(key[0])
        step = self._steps[key] = LoggedStep(key, fingerprint)
        return step, True

    def append(self, step: LoggedStep, event: bytes) -> None:
        """Add an event, unless the step has ended. If the running steps alone exceed the log's limit, the largest one ends."""
        if step.done:
            return
        if self._steps.get(step.key) is step:
            self._bytes += len(event)
        step.size += len(event)
        step.events.append(event)
        step.wake()
        if self._bytes > self._retention.max_bytes:
            self._shrink(self._retention.max_bytes)

    def finish(self, step: LoggedStep, error: NearfarError | None = None) -> None:
        """End a step and keep it for the resume window."""
        step.finish(error)
        if self._steps.get(step.key) is not step:
            return
        loop = asyncio.get_running_loop()
        self._finished[step.key] = loop.time()
        if self._sweep is None:
            self._sweep = loop.call_later(self._retention.resume_window, self._expire)

    def leave(self, key: StepKey, *, reader: str = "") -> None:
        """Remove `reader` from a running step; if no other reader is left, stop the step at once and forget it."""
        step = self._steps.get(key)
        if step is None or step.done:
            return
        step.readers.pop(reader, None)
        if not step.readers:
            self._stop(step, Cancelled("the step was cancelled by its caller"))

    def shut_out(self, tokens: Collection[str], error: NearfarError) -> None:
        """Stop the steps that were requested with these tokens only, and forget them."""
        for step in [step for step in self._steps.values() if not step.tokens.isdisjoint(tokens)]:
            step.tokens.difference_update(tokens)
            if not step.tokens:
                self._stop(step, error)

    def close(self, error: NearfarError) -> None:
        """Stop all steps with `error` and forget them."""
        if self._sweep is not None:
            self._sweep.cancel()
        for step in tuple(self._steps.values()):
            self._stop(step, error)

    @contextmanager
    def reading(self, step: LoggedStep, *, reader: str = "", may_return: bool = True) -> Iterator[None]:
        """Count as a reader of `step`. When the last reader is lost before the end, the step has `resume_grace` seconds left.

        With `may_return=False`, as for a reader on the same machine, the step ends at once.
        """
        step.readers[reader] = step.readers.get(reader, 0) + 1
        if step.grace is not None:
            step.grace.cancel()
        try:
            yield
        finally:
            if (others := step.readers.pop(reader, 1) - 1) > 0:
                step.readers[reader] = others
            if not step.readers and not step.done:
                grace = self._retention.resume_grace if may_return else 0.0
                step.grace = asyncio.get_running_loop().call_later(grace, self._abandon, step)

    def _abandon(self, step: LoggedStep) -> None:
        if not step.done:
            logger.info("a step lost its reader and is cancelled")
            self._stop(step, Cancelled("the step lost its reader"))

    def _stop(self, step: LoggedStep, error: NearfarError) -> None:
        self._forget(step)
        step.cancel(error)

    def _forget(self, step: LoggedStep) -> None:
        if self._steps.get(step.key) is step:
            del self._steps[step.key]
            self._finished.pop(step.key, None)
            self._bytes -= step.size

    def _make_room(self, caller: str) -> None:
        if len(self._steps) - len(self._finished) >= self._retention.max_steps_of_a_caller:  # else it cannot have so many
            running = sum(owner == caller and not step.done for (owner, _), step in self._steps.items())
            if running >= self._retention.max_steps_of_a_caller:
                raise RateLimited(f"{running} steps of this caller are running", hint="wait for some of them", retry_after=1.0)
        if len(self._steps) < self._retention.max_steps:
            return
        if not self._finished:
            raise RateLimited("the server is busy: too many steps are running", hint="try again shortly", retry_after=1.0)
        self._forget_oldest()

    def _shrink(self, limit: int) -> None:
        while self._finished and self._bytes > limit:
            self._forget_oldest()
        if self._bytes > limit:
            # Not the one that happens to add the last event: it may be another caller's.
            largest = max(self._steps.values(), key=lambda step: step.size)
            self._stop(largest, InvalidOutput(f"the running steps produced more than {limit} bytes, and this step the most"))

    def _forget_oldest(self) -> None:
        self._forget(self._steps[next(iter(self._finished))])

    def _expire(self) -> None:
        """Forget the steps beyond the window, and schedule the next run."""
        loop = asyncio.get_running_loop()
        horizon = loop.time() - self._retention.resume_window
        for key, ended in tuple(self._finished.items()):
            if ended > horizon:
                self._sweep = loop.call_at(ended + self._retention.resume_window, self._expire)
                return
            self._forget(self._steps[key])
        self._sweep = None
