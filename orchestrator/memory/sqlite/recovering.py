"""Recover all readable data of a damaged database."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from ....protocols import StoreCorrupt
from ....protocols.items import ItemAddress
from ...storage import sqlite_files
from ...storage.sqlite import Connection
from ...storage.sqlite_files import Driver
from ..engine import Change, ItemRow, Transaction
from ..merge import merge, succeed
from ..operation import Dot, Operation, Sealer
from ..vectors import WHOLE, change_of
from . import SqliteEngine
from .tables import APPLICATION, STORE, decode_address, decode_row, decode_texts, encode_namespace
from .transaction import OperationTable

LEAP: Final = 1_000_000
"""Numbers of this device's writes to skip, since that many may be lost: other devices that have them would take new writes for those."""
_AT_ONCE: Final = 1000
"""Rows per query."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The result of recovering a damaged store."""

    items: int
    """Number of recovered items, deleted ones included."""
    remade: int
    """Number of items of which one part was lost and restored from the other: they may be back in an older state."""
    unreadable: int
    """Number of places in the file that could not be read: at most that many items are lost, or their latest writes."""
    is_same_device: bool
    """False: the store has a new name, and writes under the old one count as another device's."""
    damaged: str
    """The new path of the old file. It keeps all its data, also those that are erased later: delete it when it is not needed."""


def recover(
    path: str | os.PathLike[str],
    *,
    key: Callable[[], str] | None = None,
    sealer: Sealer | None = None,
    now: Callable[[], float] = time.time,
) -> Recovery:
    """Replace a damaged store by a new one with all its readable data. No process may have it open. Vectors are made again later.

    Raises `StoreCorrupt` if nothing can be read, and then changes nothing.
    """
    place = os.path.abspath(path)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(place), prefix=".recovering-") as workshop:
        copy, new = os.path.join(workshop, "copy.db"), os.path.join(workshop, "new.db")
        for suffix in ("", sqlite_files.LOG):
            if os.path.exists(place + suffix):
                shutil.copyfile(place + suffix, copy + suffix)
        salvage = _Salvage(sqlite_files.driver_for(key, APPLICATION), copy, OperationTable(sealer))
        with contextlib.closing(SqliteEngine(new, key=key, sealer=sealer, device=salvage.device)) as engine:
            remade = _write(engine, salvage, now())
        aside = f"{place}.damaged-{int(now())}"
        for suffix in sqlite_files.SUFFIXES:
            with contextlib.suppress(FileNotFoundError):
                os.rename(place + suffix, aside + suffix)
        os.rename(new, place)
    return Recovery(len(salvage.items), remade, salvage.unreadable, engine.device == salvage.device, aside)


@dataclass(slots=True)
class _Remains:
    """The recovered parts of an item."""

    row: ItemRow | None = None
    texts: tuple[str, ...] = ()
    heads: list[Operation] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """True if the row (None for a deleted item) is the merged state of the heads."""
        if not self.heads:
            return False
        state = merge(self.heads)
        return state.value is None if self.row is None else self.row.version == state.version


class _Salvage:
    """The readable data of a damaged database."""

    def __init__(self, opened: Driver, path: str, operations: OperationTable) -> None:
        self.device: str | None = None
        self.sequence = 0
        self.clock = 0
        self.known: dict[str, int] = {}
        self.settings: dict[str, str] = {}
        self.items: dict[ItemAddress, _Remains] = {}
        self.unreadable = 0
        self._driver = opened
        self._operations = operations
        with STORE.translated(path, opened.errors), contextlib.closing(opened.connect(path)) as connection:
            self._read(connection)

    def _read(self, connection: Connection) -> None:
        for device, sequence, clock in self._all(connection, "SELECT device, sequence, clock FROM replica"):
            self.device, self.sequence, self.clock = device, sequence, clock
        self.known = dict(self._all(connection, "SELECT device, sequence FROM known"))
        self.settings = dict(self._all(connection, "SELECT name, value FROM settings"))
        addresses: dict[int, ItemAddress] = {}
        expiries: dict[int, float | None] = {}
        for item, namespace, key, expires_at in self._by_number(connection, "items", "item", "item, namespace, key, expires_at"):
            address = self._decoded(decode_address, namespace, key)
            if address is not None:
                addresses[item] = address
                expiries[item] = expires_at
                self.items[address] = _Remains()
        for item, *columns in self._by_number(connection, "contents", "item", "item, content, texts"):
            if item in addresses:
                self._decoded(self._add_content, addresses[item], expiries[item], *columns)
            else:
                self.unreadable += 1
        for device, sequence, packed in self._by_number(connection, "operations", "position", "device, sequence, payload"):
            self._decoded(self._add_head, device, sequence, packed)
        self.items = {address: remains for address, remains in self.items.items() if remains.row is not None or remains.heads}

    def _add_content(self, address: ItemAddress, expires_at: float | None, content: bytes, texts: bytes | None) -> None:
        remains = self.items[address]
        row = decode_row(encode_namespace(address.namespace), address.key, content, expires_at)
        remains.texts = () if texts is None else decode_texts(address, texts, content)
        remains.row = row

    def _add_head(self, device: str, sequence: int, packed: bytes) -> None:
        head = self._operations.decode_alone(Dot(device, sequence), packed)
        if head is not None:
            self.items.setdefault(head.address, _Remains()).heads.append(head)

    def _decoded(self, decode: Callable[..., Any], *columns: object) -> Any:  # noqa: ANN401  # what `decode` returns, or None
        try:
            return decode(*columns)
        except StoreCorrupt:
            self.unreadable += 1
            return None

    def _all(self, connection: Connection, query: str) -> list[tuple[Any, ...]]:
        try:
            return connection.execute(query).fetchall()
        except self._driver.errors:
            self.unreadable += 1
            return []

    def _by_number(self, connection: Connection, table: str, number: str, columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield all readable rows. Around unreadable ones, ever smaller ranges of numbers are tried."""
        query = f"SELECT {columns} FROM {table} WHERE {number} BETWEEN ? AND ?"
        (last,) = next(iter(self._all(connection, f"SELECT max({number}) FROM {table}")), (None,))
        ranges = [(first, first + _AT_ONCE - 1) for first in range(1, (last or 0) + 1, _AT_ONCE)]
        while ranges:
            first, end = ranges.pop(0)
            try:
                rows = connection.execute(query, (first, end)).fetchall()
            except self._driver.errors:
                middle = (first + end) // 2
                if first < end:
                    ranges[:0] = [(first, middle), (middle + 1, end)]
                else:
                    self.unreadable += 1
            else:
                yield from rows


def _write(engine: SqliteEngine, salvage: _Salvage, now: float) -> int:
    """Write the recovered data into an empty store. Returns how many items had to be restored from one part."""
    remade = 0
    with engine.transaction() as transaction:
        known = {**salvage.known, **({salvage.device: salvage.sequence + LEAP} if salvage.device else {})}
        transaction.learn(known, salvage.clock)
        for name, value in salvage.settings.items():
            transaction.set(name, value)
    remains = iter(salvage.items.items())
    while batch := list(islice(remains, _AT_ONCE)):
        with engine.transaction() as transaction:
            transaction.apply([_change(transaction, engine.device, address, left, now) for address, left in batch])
        remade += sum(not left.is_whole for _, left in batch)
    return remade


def _change(transaction: Transaction, device: str, address: ItemAddress, left: _Remains, now: float) -> Change:
    if left.is_whole:
        conflicts = len(merge(left.heads).siblings)
        return Change(address, tuple(left.heads), left.row, left.texts, conflicts=conflicts)
    heads = left.heads
    if not heads and left.row is not None:
        sequence, clock = transaction.reserve(1, now)
        heads = [succeed((), dot=Dot(device, sequence), clock=clock, address=address, value=left.row.value, meta=left.row.meta)]
    return change_of(address, heads, now=now, fields=(WHOLE,))
