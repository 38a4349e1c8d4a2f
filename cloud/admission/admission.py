"""`Admission`: the rates and the queue in front of one agent of a gateway."""

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from ...protocols import StepRequest, Usage
from .fair_queue import FairQueue
from .rates import Rates
from .settings import GatewayLimits

_BYTES_PER_TOKEN = 4
_USUAL_OUTPUT = 512
"""Tokens that a step is taken to write when its share of the agent is reckoned."""


@dataclass(slots=True)
class Turn:
    """A step that was let in."""

    usage: Usage | None = None
    """What it took, once that is known."""


class Admission:
    """Lets steps in: each caller at its rates, and all in equal shares."""

    def __init__(self, rates: Rates, queue: FairQueue) -> None:
        self._rates = rates
        self._queue = queue

    @asynccontextmanager
    async def turn(self, caller: str, request: StepRequest) -> AsyncIterator[Turn]:
        """Around the step. Raises `RateLimited`, in which case nothing was asked of anybody, and no tokens count."""
        prompt = _prompt_tokens(request)
        self._rates.take(caller, prompt)
        turn: Turn | None = None
        try:
            async with self._queue.turn(caller, prompt + min(request.max_output_tokens or _USUAL_OUTPUT, _USUAL_OUTPUT)):
                turn = Turn()
                yield turn
        finally:
            if turn is None:
                self._rates.settle(caller, -prompt)
            elif turn.usage is not None:
                self._rates.settle(caller, turn.usage.total_tokens - prompt)


def admissions(
    limits: GatewayLimits, slots: dict[str, int], *, monotonic: Callable[[], float] = anyio.current_time
) -> dict[str, Admission]:
    """For each agent by name, of which each takes so many steps at the same time: a queue of its own behind the rates of all."""
    rates = Rates(limits, monotonic)
    return {name: Admission(rates, FairQueue(count, limits, monotonic)) for name, count in slots.items()}


def _prompt_tokens(request: StepRequest) -> int:
    """About how long the prompt is; agents count in their own ways."""
    text = request.model_dump_json(include={"messages", "tools", "output_schema"}, exclude_defaults=True)
    return math.ceil(len(text.encode()) / _BYTES_PER_TOKEN)
