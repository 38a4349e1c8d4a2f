"""The change feed: which items changed, in order, for whoever keeps something in step with the store."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

import anyio

from ..threads import in_thread
from .item import Address, Namespace, within
from .memory_item import MemoryItem
from .reading import Reader
from .watching import Watchers

_BATCH: Final = 200
_POLL: Final = 0.25
"""Seconds after which a watcher looks for what other processes have written."""


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """An item that changed. Of several changes of one item, the last is told."""

    position: int
    """Where to go on from, with `MemoryStore.changes`."""
    address: Address
    item: MemoryItem | None
    """None: it was deleted, or has expired meanwhile."""


def changes_after(reader: Reader, position: int, *, prefix: Namespace = (), limit: int = _BATCH) -> tuple[list[MemoryChange], int]:
    """Changes of items that are there for the reader, in order, and the position up to which they were looked for."""
    found = reader.engine.changes(position, limit=limit)
    inside = [one for one in found if within(one.address.namespace, prefix)]
    items = dict(zip(inside, reader.get([one.address for one in inside], []), strict=True))
    gone = set(reader.known([one.address for one, item in items.items() if item is None]))
    told = [MemoryChange(one.position, one.address, item) for one, item in items.items() if item is not None or one.address in gone]
    return told, found[-1].position if found else position


async def watched(reader: Reader, watchers: Watchers, *, prefix: Namespace, since: int | None) -> AsyncGenerator[MemoryChange]:
    """Changes behind `since`, or from now on, as they happen."""
    loop, woken = asyncio.get_running_loop(), asyncio.Event()
    position = await in_thread(reader.engine.position) if since is None else since

    def wake() -> None:
        loop.call_soon_threadsafe(woken.set)

    with watchers.calling(wake):
        while True:
            woken.clear()
            told, reached = await in_thread(changes_after, reader, position, prefix=prefix)
            for change in told:
                yield change
            if reached == position:
                with anyio.move_on_after(_POLL):
                    await woken.wait()
            position = reached
