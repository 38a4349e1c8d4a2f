"""`FairQueue`: serves callers in equal shares, so that a caller with many steps delays only itself."""

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from ...protocols import RateLimited
from .settings import GatewayLimits

_SMOOTHING = 0.1
"""Weight of the latest step in the average length of a step."""
_LEAST_WAIT = 1.0
"""Shortest time in seconds after which a refused caller is told to try again."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A step that waits for its turn."""

    start: float
    """Start time on the queue's own clock, which counts the work that is given out; the earliest is served first."""
    turn: anyio.Event = field(default_factory=anyio.Event)


@dataclass(slots=True)
class _Caller:
    """The steps of one caller that wait or run."""

    waiting: deque[_Waiting] = field(default_factory=deque)
    running: int = 0
    finish: float = 0.0
    """Time on the queue's clock at which all of the caller's steps would be done if it had its equal share."""


class FairQueue:
    """Gives out `slots` turns at a time, in equal shares of work to all waiting callers (start-time fair queueing: Goyal, Vin and Cheng,
    1996).

    A caller's steps are spaced by their cost, and the step with the earliest start in this schedule is next.

    Args:
        slots: steps at the same time, of all callers.
        limits: limits of each caller.
        monotonic: seconds that never run backwards.
    """

    def __init__(self, slots: int, limits: GatewayLimits, monotonic: Callable[[], float]) -> None:
        self._free = slots
        self._slots = slots
        self._limits = limits
        self._monotonic = monotonic
        self._callers: dict[str, _Caller] = {}
        self._now = 0.0
        """Start time of the step that was admitted last."""
        self._usual_seconds = _LEAST_WAIT

    @asynccontextmanager
    async def turn(self, caller: str, cost: float) -> AsyncIterator[None]:
        """Wait for a turn, and hold it until the context ends. `cost` is the expected work of the step, in any unit.

        Raise `RateLimited` if too many steps of the caller wait already, or its turn does not come in time.
        """
        own = self._callers.setdefault(caller, _Caller())
        step = self._line_up(own, cost)
        try:
            await self._wait(own, step)
            began = self._monotonic()
            yield
        finally:
            if step.turn.is_set():
                self._give_back(own)
            else:
                own.waiting.remove(step)
            self._forget_idle(caller, own)
        self._usual_seconds += _SMOOTHING * (self._monotonic() - began - self._usual_seconds)

    def _line_up(self, own: _Caller, cost: float) -> _Waiting:
        start = max(self._now, own.finish)
        step = _Waiting(start)
        own.waiting.append(step)
        self._let_in()
        if not step.turn.is_set() and len(own.waiting) > self._limits.waiting:
            own.waiting.remove(step)
            raise self._refusal(f"{self._limits.waiting} steps of this caller are waiting already")
        own.finish = start + cost
        return step

    async def _wait(self, own: _Caller, step: _Waiting) -> None:
        with anyio.move_on_after(self._limits.longest_wait):
            await step.turn.wait()
        if not step.turn.is_set():
            raise self._refusal(f"the step's turn did not arrive within {self._limits.longest_wait:g} s")

    def _let_in(self) -> None:
        """Give free turns to the next callers."""
        while self._free and (ready := [each for each in self._callers.values() if self._may_begin(each)]):
            own = min(ready, key=lambda each: each.waiting[0].start)
            step = own.waiting.popleft()
            self._now = max(self._now, step.start)
            self._free -= 1
            own.running += 1
            step.turn.set()

    def _may_begin(self, own: _Caller) -> bool:
        return bool(own.waiting) and (self._limits.concurrent is None or own.running < self._limits.concurrent)

    def _give_back(self, own: _Caller) -> None:
        self._free += 1
        own.running -= 1
        self._let_in()

    def _forget_idle(self, caller: str, own: _Caller) -> None:
        if not own.waiting and not own.running and own.finish <= self._now:
            self._callers.pop(caller, None)

    def _refusal(self, why: str) -> RateLimited:
        waiting = sum(len(each.waiting) for each in self._callers.values())
        seconds = max(self._usual_seconds * waiting / self._slots, _LEAST_WAIT)
        return RateLimited(f"the gateway is busy: {why}", hint="ask again later, or another agent", retry_after=seconds)
