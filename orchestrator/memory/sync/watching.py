"""Hearing that a replica has something new for its peers."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import anyio

from ...util.threads import in_thread
from ..watching import Watchers
from .replica import Replica

_LOOK_EVERY: Final = 1.0
"""Seconds after which is heard what other processes have written."""


async def moves(replica: Replica, watchers: Watchers) -> AsyncGenerator[int]:
    """Up to where the replica's log goes: at once, and whenever that, or what it knows beside the items, changes. Close it when done."""
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
