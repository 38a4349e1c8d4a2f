"""Detect that a replica has news for its peers."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import anyio

from ...util.threads import in_thread
from ..watching import Watchers
from .replica import Replica

_LOOK_EVERY: Final = 1.0
"""Seconds after which writes by other processes are noticed."""


async def moves(replica: Replica, watchers: Watchers) -> AsyncGenerator[int]:
    """Yield the end of the replica's log: at once, and whenever that, or the facts, change. Close it when done."""
    loop, woken = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        loop.call_soon_threadsafe(woken.set)

    told = None
    with watchers.calling(wake):
        while True:
            woken.clear()
            position, facts = await in_thread(replica.state)
            if (position, facts) != told:
                told = position, facts
                yield position
            with anyio.move_on_after(_LOOK_EVERY):
                await woken.wait()
