"""The gateway: far agents behind one gRPC address, with the provider keys and a log line for every step.

Steps are let in one by one: how many run at once, in which order they wait, and how much each caller may use.
"""

import json
import logging
import math
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from ..protocols import (
    Agent,
    AgentCard,
    ConfigError,
    Finished,
    InternalError,
    NearfarError,
    RateLimited,
    StepEvent,
    StepRequest,
    Usage,
    stream,
)
from ..protocols.security import IDENTITY, Tokens, token_records
from ..protocols.server import Retention, Server, ServerTls, serve
from ..protocols.token_file import CALLER_NAME
from .config import GatewayLimits

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
            await self._wait(step)
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

    async def _wait(self, step: _Waiting) -> None:
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


_logger = logging.getLogger(__name__)


@asynccontextmanager
async def serve_gateway(
    agents: Mapping[str, Agent],
    address: str = "localhost:0",
    *,
    tokens: Tokens | None = None,
    tls: ServerTls | None = None,
    insecure: bool = False,
    retention: Retention | None = None,
    limits: GatewayLimits | None = None,
) -> AsyncIterator[Server]:
    """Serve `agents` by name, as `protocols.server.serve` does, with one log line per step; see `AccountedAgent`.

    `limits` applies to each caller; every agent's turns are shared equally among the waiting callers, as many at a time as its card
    says. `tokens` maps each caller's name to its bearer token, or holds the records of a token file. The agents stay open: the caller
    closes them.

    Raise `ConfigError` if the address is malformed, taken or too exposed.
    """
    admission = admissions(limits or GatewayLimits(), {name: agent.card.limits.concurrency for name, agent in agents.items()})
    accounted = {name: AccountedAgent(agent, name=name, admission=admission[name]) for name, agent in agents.items()}
    async with serve(accounted, address, tokens=tokens, tls=tls, insecure=insecure, retention=retention) as server:
        yield server


class AccountedAgent:
    """An agent that writes one line of JSON per step to the log `nearfar.cloud.gateway`.

    Fields: caller, agent, model, outcome (a finish reason, an error's class or "cancelled"), input_tokens, output_tokens, cached_tokens,
    cache_write_tokens (null if the step failed, 0 if it was refused or left before its turn), dollars (a decimal string, or "unknown"),
    seconds. Never content, never a key.
    """

    def __init__(self, agent: Agent, *, name: str, admission: Admission) -> None:
        self._agent = agent
        self._name = name
        self._admission = admission

    @property
    def card(self) -> AgentCard:
        return self._agent.card

    async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
        """Run the agent's step; write the log line when it ends, in any way."""
        began, outcome, finished, was_asked = anyio.current_time(), "cancelled", None, False
        try:
            async with self._admission.turn(IDENTITY.get().caller, request) as turn, stream(self._agent, request) as events:
                was_asked = True
                async for event in events:
                    if isinstance(event, Finished):
                        outcome, finished, turn.usage = event.reason.value, event, event.usage
                    yield event
        except NearfarError as error:
            outcome = type(error).__name__
            raise
        except Exception:  # a defect, which the caller of the step logs
            outcome = InternalError.__name__
            raise
        finally:
            self._write(outcome, finished, anyio.current_time() - began, was_asked=was_asked)

    async def aclose(self) -> None:
        await self._agent.aclose()

    def _write(self, outcome: str, finished: Finished | None, seconds: float, *, was_asked: bool) -> None:
        usage = (finished.usage if finished else None) if was_asked else Usage()
        prices = self.card.prices
        line = {
            "caller": IDENTITY.get().caller or "anonymous",
            "agent": self._name,
            "model": finished.model if finished else self.card.model,
            "outcome": outcome,
            "input_tokens": usage.input_tokens if usage else None,
            "output_tokens": usage.output_tokens if usage else None,
            "cached_tokens": usage.cached_tokens if usage else None,
            "cache_write_tokens": usage.cache_write_tokens if usage else None,
            "dollars": "0" if not was_asked else f"{prices.dollars(usage):f}" if prices and usage else "unknown",
            "seconds": round(seconds, 3),
        }
        _logger.info("%s", json.dumps(line))


TOKENS_VARIABLE = "NEARFAR_GATEWAY_TOKENS"
"""Bearer tokens of callers, as a simple alternative to a token file."""
_SHORTEST = 16
"""Minimum length, in characters, of a token chosen by a person."""


def environment_tokens() -> dict[str, str]:
    """Return the tokens in NEARFAR_GATEWAY_TOKENS (`laptop=token,phone=token`), by caller; empty if it is not set.

    Raise `ConfigError`, which names entries by position: a token may stand where the name should be.
    """
    pairs = [pair.partition("=") for pair in os.environ.get(TOKENS_VARIABLE, "").split(",") if pair.strip()]
    tokens = {caller.strip(): token.strip() for caller, _, token in pairs}
    if len(tokens) != len(pairs):
        raise ConfigError(f"{TOKENS_VARIABLE}: a caller is named twice", hint="give each caller one token")
    for position, (caller, token) in enumerate(tokens.items(), 1):
        if not CALLER_NAME.fullmatch(caller):
            raise ConfigError(f"{TOKENS_VARIABLE}: entry {position} does not begin with a caller's name", hint="write caller=token")
        if len(token) < _SHORTEST:
            raise ConfigError(f"{TOKENS_VARIABLE}: the token of entry {position} is too short", hint="use 64 random hex digits")
    token_records(tokens)
    return tokens
