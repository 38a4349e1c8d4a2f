"""How long an agent that another one could stand in for may be silent."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from ...protocols import Stalled, StepEvent
from .settings import Patience


async def heard(events: AsyncIterator[StepEvent], patience: Patience | None) -> AsyncGenerator[StepEvent, None]:
    """The events as they come. Raises `Stalled` where the next one takes too long; None waits for as long as it takes."""
    limit = None if patience is None else patience.first_token
    while True:
        waiting = asyncio.timeout(limit)
        try:
            async with waiting:
                event = await anext(events, None)
        except TimeoutError:
            if not waiting.expired():
                raise
            raise Stalled(f"nothing was heard for {limit:g} s", hint="[policy.fallback] sets how long an agent may be silent") from None
        if event is None:
            return
        yield event
        limit = None if patience is None else patience.idle
