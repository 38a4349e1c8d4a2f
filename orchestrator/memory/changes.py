"""The change feed, and callbacks after writes, for code that mirrors the store."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import anyio

from ...protocols.namespaces import ItemAddress, Namespace, within
from ..util.runtime import in_thread
from .engine import Forgotten, Position
from .item import address_tag
from .reading import MemoryItem, Reader


class Watchers:
    """Callbacks that run when this process has written. Calls come from the thread that wrote, and must be quick."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._called: list[Callable[[], object]] = []

    @property
    def count(self) -> int:
        return len(self._called)

    @contextmanager
    def calling(self, call: Callable[[], object]) -> Iterator[None]:
        """Call `call` after each write within this block."""
        with self._lock:
            self._called.append(call)
        try:
            yield
        finally:
            with self._lock:
                self._called.remove(call)

    def notify(self) -> None:
        with self._lock:
            called = list(self._called)
        for call in called:
            call()


_BATCH: Final = 200
_POLL: Final = 0.25
"""Seconds after which a watcher looks for writes by other processes."""


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """An item that changed. Of several changes of one item, only the last is reported."""

    position: int
    """The position to continue from, with `MemoryStore.changes`."""
    address: ItemAddress | None
    """None: the whole item was forgotten, its name too, because it was erased or expired."""
    item: MemoryItem | None
    """None: the item is gone."""
    tag: str
    """A digest of the address, also if `address` is None: the same for the same item."""


def changes_after(reader: Reader, position: int, *, prefix: Namespace = (), limit: int = _BATCH) -> tuple[list[MemoryChange], int]:
    """Return the changes of items that the reader may see, in order, and the position up to which the feed was read.

    A forgotten item has no owner or namespace any more: a principal gets no report of it, all other readers do.
    """
    end = reader.engine.position()  # changes between the two queries below are for the next call
    everything: list[Position | Forgotten] = [*reader.engine.changes(position, limit=limit)]
    everything += reader.engine.forgotten(position, limit=limit)
    due = sorted((one for one in everything if one.position <= end), key=lambda one: one.position)[:limit]
    told = _told(reader, [one for one in due if isinstance(one, Position)], prefix)
    if reader.principal is None:
        told += [MemoryChange(one.position, None, None, one.tag) for one in due if isinstance(one, Forgotten)]
    return sorted(told, key=lambda one: one.position), due[-1].position if due else position


def _told(reader: Reader, found: Sequence[Position], prefix: Namespace) -> list[MemoryChange]:
    inside = [one for one in found if within(one.address.namespace, prefix)]
    items = dict(zip(inside, reader.get([one.address for one in inside], []), strict=True))
    gone = set(reader.known([one.address for one, item in items.items() if item is None]))
    told = ((one, item) for one, item in items.items() if item is not None or one.address in gone)
    return [MemoryChange(one.position, one.address, item, address_tag(one.address)) for one, item in told]


async def watched(reader: Reader, watchers: Watchers, *, prefix: Namespace, since: int | None) -> AsyncGenerator[MemoryChange]:
    """Yield changes after `since`, or from now on, as they happen."""
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
