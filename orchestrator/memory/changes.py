"""Follow a store: the change feed, callbacks after writes, conflicts to resolve, and counts."""

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count, islice
from typing import Any, Final

import anyio
import orjson

from ...protocols import NotFound
from ...protocols.items import ItemAddress, Namespace, Source, Tier, within
from ..util.runtime import call_in_loop, in_thread
from .engine import Engine, Forgotten, Position
from .merge import merge
from .operation import Principal, Sibling, address_tag, seconds
from .reading import MemoryItem, Reader
from .writing import ABSENT


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

    async def looks(self, pause: float) -> AsyncGenerator[None]:
        """Yield at once, then after each write here, and every `pause` seconds for writes by other processes. Close it when done."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            call_in_loop(loop, woken.set)

        with self.calling(wake):
            while True:
                woken.clear()
                yield
                with anyio.move_on_after(pause):
                    await woken.wait()

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


async def watch_changes(reader: Reader, watchers: Watchers, *, prefix: Namespace, since: int | None) -> AsyncGenerator[MemoryChange]:
    """Yield changes after `since`, or from now on, as they happen."""
    position = await in_thread(reader.engine.position) if since is None else since
    async with aclosing(watchers.looks(_POLL)) as looks:
        async for _ in looks:
            before = None
            while position != before:  # a part of the changes at a time
                told, reached = await in_thread(changes_after, reader, position, prefix=prefix)
                for change in told:
                    yield change
                before, position = position, reached


@dataclass(frozen=True, slots=True)
class LostValue:
    """A value that an item had on another device, or in another process, before both were merged."""

    name: str
    """The name to pass to `MemoryStore.resolve`."""
    value: Mapping[str, Any]
    """The whole value that the item had there."""
    fields: tuple[str, ...]
    """The fields of the value that lost; a field that is not in `value` was removed there."""
    user: str
    """User on whose behalf it was written."""
    agent: str
    """Agent that wrote it."""
    device: str
    """Device that it was written on."""
    source: Source
    """Source of its words."""
    trust: float
    """Trust in it, 0 to 1."""
    tier: Tier
    """Devices that it may travel to."""
    written_at: datetime
    """When it was written."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """An item with values that lost, as a whole or in some fields. It can be read and written like any other until the conflict is
    resolved."""

    address: ItemAddress
    """Namespace and key of the item."""
    item: MemoryItem | None
    """The present item; None: it is deleted."""
    version: str
    """Version of its present value."""
    lost: tuple[LostValue, ...]
    """Values that lost."""


def conflicts(reader: Reader, limit: int, offset: int) -> list[Conflict]:
    """Return the conflicts of items that the reader's principal may see, by address."""
    found = (conflict for address in _addresses(reader.engine) for conflict in _conflict(reader, address))
    return list(islice(found, offset, offset + limit))


def read_conflict(reader: Reader, address: ItemAddress) -> tuple[str, tuple[Sibling, ...]]:
    """Return the version of an item, for `if_version`, and its siblings. Raises `NotFound` if it has no conflict."""
    with reader.engine.transaction() as transaction:
        heads = transaction.heads([address]).get(address, ())
    state = merge(heads) if heads else None
    siblings = () if state is None else state.siblings
    # A principal who may not see all of a conflict cannot resolve it.
    if state is None or not siblings or not all(_is_for(reader.principal, address, one) for one in siblings):
        raise NotFound(f"item {address.key!r} in {'/'.join(address.namespace)} has no conflict")
    return (ABSENT if reader.get([address], [])[0] is None else state.version), siblings


def name_of(sibling: Sibling) -> str:
    """Return the name by which a lost value is chosen."""
    return f"{sibling.dot.device}:{sibling.dot.sequence}"


def _conflict(reader: Reader, address: ItemAddress) -> Iterator[Conflict]:
    try:
        version, siblings = read_conflict(reader, address)
    except NotFound:  # resolved meanwhile, or not the principal's
        return
    yield Conflict(address, reader.get([address], [])[0], version, tuple(map(_lost, siblings)))


def _addresses(engine: Engine) -> Iterator[ItemAddress]:
    for offset in count(0, _BATCH):
        batch = engine.conflicts(limit=_BATCH, offset=offset)
        yield from batch
        if len(batch) < _BATCH:
            return


def _is_for(principal: Principal | None, address: ItemAddress, sibling: Sibling) -> bool:
    return principal is None or principal.sees(address, sibling.meta, sibling.dot.device)


def _lost(sibling: Sibling) -> LostValue:
    meta = sibling.meta
    written_at = datetime.fromtimestamp(seconds(sibling.clock), UTC)
    place = meta.user, meta.agent, sibling.dot.device
    return LostValue(name_of(sibling), sibling.value, tuple(sibling.lost), *place, meta.source, meta.trust, meta.tier, written_at)


def count_visible(reader: Reader) -> dict[str, int]:
    """Return the numbers of items, deleted items and conflicts, and the bytes of values, of what the reader may see."""
    counted = dict.fromkeys(("items", "deleted", "bytes"), 0)
    position = 0
    while found := reader.engine.changes(position, limit=_BATCH):
        position = found[-1].position
        rows = reader.engine.rows([one.address for one in found if not one.is_deleted], reader.selection())
        counted["items"] += len(rows)
        counted["deleted"] += len(reader.known([one.address for one in found if one.is_deleted]))
        counted["bytes"] += sum(len(orjson.dumps(row.value)) for row in rows.values())
    return {**counted, "conflicts": len(conflicts(reader, sys.maxsize, 0))}
