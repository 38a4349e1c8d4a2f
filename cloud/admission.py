"""Let tasks in at a gateway: how many run at once, in which order they wait, and how much each caller may use."""

import math
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from pydantic import Field

from ..protocols import RateLimited, StepRequest, Usage
from ..protocols.steps import Value


class GatewayLimits(Value):
    """Limits of each caller, the `[gateway]` section. Callers are identified by their tokens."""

    requests_per_second: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Steps that a caller may begin, those of one second at once; None: no limit."""
    tokens_per_minute: int | None = Field(default=None, gt=0)
    """Tokens read and written. A prompt counts when it arrives, the rest when it is known; any excess delays the next steps."""
    concurrent: int | None = Field(default=None, gt=0)
    """Steps of one caller at the same time; further ones wait. None: as many as the agent takes."""
    waiting: int = Field(default=1024, ge=0)
    """Steps of one caller that may wait for their turn; further ones are refused."""
    longest_wait: float = Field(default=20.0, gt=0, allow_inf_nan=False)
    """Seconds that a step waits for its turn before it is refused."""


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


class CallerRates:
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


_BYTES_PER_TOKEN = 4
_USUAL_OUTPUT = 512
"""Tokens of output that are assumed for a step when the agent's time is shared out."""


@dataclass(slots=True)
class AdmissionTurn:
    """A step that was admitted."""

    usage: Usage | None = None
    """Tokens that the step took, once known."""


class Admission:
    """Admits steps: each caller within its rates, and all callers in equal shares."""

    def __init__(self, rates: CallerRates, queue: FairQueue) -> None:
        self._rates = rates
        self._queue = queue

    @asynccontextmanager
    async def turn(self, caller: str, request: StepRequest) -> AsyncIterator[AdmissionTurn]:
        """Hold a turn during the step. Raise `RateLimited` if it is refused; the agent is not asked then, and no tokens count."""
        prompt = _prompt_tokens(request)
        self._rates.take(caller, prompt)
        turn: AdmissionTurn | None = None
        try:
            async with self._queue.turn(caller, prompt + min(request.max_output_tokens or _USUAL_OUTPUT, _USUAL_OUTPUT)):
                turn = AdmissionTurn()
                yield turn
        finally:
            if turn is None:
                self._rates.settle(caller, -prompt)
            elif turn.usage is not None:
                self._rates.settle(caller, turn.usage.total_tokens - prompt)


def admissions(
    limits: GatewayLimits, slots: dict[str, int], *, monotonic: Callable[[], float] = anyio.current_time
) -> dict[str, Admission]:
    """Return an admission for each agent, given the steps that it takes at the same time: one queue per agent, behind shared rates."""
    rates = CallerRates(limits, monotonic)
    return {name: Admission(rates, FairQueue(count, limits, monotonic)) for name, count in slots.items()}


def _prompt_tokens(request: StepRequest) -> int:
    """Return the approximate length of the prompt; agents count in their own ways."""
    text = request.model_dump_json(include={"messages", "tools", "output_schema"}, exclude_defaults=True)
    return math.ceil(len(text.encode()) / _BYTES_PER_TOKEN)
