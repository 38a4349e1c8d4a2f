"""How long an agent that another one could stand in for may be silent."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from ...protocols import Stalled, StepEvent
from ..task.sections.resilience import IdleTimeouts


async def heard(events: AsyncIterator[StepEvent], patience: IdleTimeouts | None) -> AsyncGenerator[StepEvent, None]:
    """Yield events, and raise `Stalled` if the next one is late. With None, wait for any length of time."""
    if patience is None:
        async for event in events:
            yield event
        return
    limit = patience.first_token
    while True:
        waiting = asyncio.timeout(limit)
        try:
            async with waiting:
                following = await anext(events, None)
        except TimeoutError:
            if not waiting.expired():
                raise
            raise Stalled(f"nothing was heard for {limit:g} s", hint="[policy.fallback] sets how long an agent may be silent") from None
        if following is None:
            return
        yield following
        limit = patience.idle
