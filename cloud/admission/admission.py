"""`Admission`: the rate limits and the queue in front of one agent of a gateway."""

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
"""Tokens of output that are assumed for a step when the agent's time is shared out."""


@dataclass(slots=True)
class Turn:
    """A step that was admitted."""

    usage: Usage | None = None
    """Tokens that the step took, once known."""


class Admission:
    """Admits steps: each caller within its rates, and all callers in equal shares."""

    def __init__(self, rates: Rates, queue: FairQueue) -> None:
        self._rates = rates
        self._queue = queue

    @asynccontextmanager
    async def turn(self, caller: str, request: StepRequest) -> AsyncIterator[Turn]:
        """Hold a turn during the step. Raise `RateLimited` if it is refused; the agent is not asked then, and no tokens count."""
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
    """Return an admission for each agent, given the steps that it takes at the same time: one queue per agent, behind shared rates."""
    rates = Rates(limits, monotonic)
    return {name: Admission(rates, FairQueue(count, limits, monotonic)) for name, count in slots.items()}


def _prompt_tokens(request: StepRequest) -> int:
    """Return the approximate length of the prompt; agents count in their own ways."""
    text = request.model_dump_json(include={"messages", "tools", "output_schema"}, exclude_defaults=True)
    return math.ceil(len(text.encode()) / _BYTES_PER_TOKEN)
