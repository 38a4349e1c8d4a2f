"""Write transactions: one at a time, with the row of `replica` locked until the end."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ....protocols import StoreCorrupt
from ....protocols.namespaces import ItemAddress
from ..encoding import Sealer
from ..engine import MOST_FORGOTTEN, Change, Forgotten, check_told
from ..item import address_tag
from ..operation import Dot, Operation, VersionVector, tick
from .keyword import words_of
from .rows import INSERT, columns, digest, opened, sealed
from .vectors import Vectors, VectorTable

if TYPE_CHECKING:
    from ...storage.postgres import Connection
    from ..engine import Vector


_OLDEST = ""
"""Stands for a tag: the row has the position of the last entry that was dropped."""
_NOTE = "INSERT INTO forgotten VALUES (%s, %s) ON CONFLICT (tag) DO UPDATE SET position = excluded.position"


def note_forgotten(connection: "Connection", items: Sequence[Forgotten]) -> None:
    """Store forgotten items, and drop the oldest beyond `MOST_FORGOTTEN`."""
    if not items:
        return
    with connection.cursor() as cursor:
        cursor.executemany(_NOTE, items)
    query = "SELECT position FROM forgotten WHERE tag <> %s ORDER BY position DESC LIMIT 1 OFFSET %s"
    dropped = connection.execute(query, [_OLDEST, MOST_FORGOTTEN]).fetchone()
    if dropped is not None:
        connection.execute("DELETE FROM forgotten WHERE position <= %s", dropped)
        connection.execute(_NOTE, [*dropped, _OLDEST])


def read_forgotten(connection: "Connection", after: int, limit: int) -> list[Forgotten]:
    """Return forgotten items, as `Engine.forgotten` does."""
    oldest = connection.execute("SELECT position FROM forgotten WHERE tag = %s", [_OLDEST]).fetchone()
    check_told(after, oldest[0] if oldest else 0)
    query = "SELECT position, tag FROM forgotten WHERE position > %s AND tag <> %s ORDER BY position LIMIT %s"
    return [Forgotten(*columns) for columns in connection.execute(query, [after, _OLDEST, limit])]


_LOCK: Final = "SELECT sequence, clock, position, documents, words FROM replica FOR UPDATE"
_SAVE: Final = "UPDATE replica SET sequence = %s, clock = %s, position = %s, documents = %s, words = %s"
_FORGET: Final = "DELETE FROM items WHERE address = ANY(%s) RETURNING length, address"
_REPLACE_HEADS: Final = """
DELETE FROM operations WHERE address = ANY(%s) AND NOT EXISTS (
  SELECT FROM unnest(%s::text[], %s::bigint[]) AS kept (device, sequence)
  WHERE kept.device = operations.device AND kept.sequence = operations.sequence
)
"""
_INSERT_HEAD: Final = """
INSERT INTO operations (position, device, sequence, address, payload) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (device, sequence) DO UPDATE SET payload = excluded.payload
"""
_LEARN: Final = """
INSERT INTO known (device, sequence) VALUES (%s, %s)
ON CONFLICT (device) DO UPDATE SET sequence = greatest(known.sequence, excluded.sequence)
"""


@dataclass(frozen=True, slots=True)
class _Counters:
    """The row of `replica`, see `schema.py`."""

    sequence: int
    clock: int
    position: int
    documents: int
    words: int


class PostgresTransaction:
    """A write transaction, see `Transaction`; call `finish` before the commit."""

    def __init__(self, connection: "Connection", device: str, sealer: Sealer | None, vectors: Vectors) -> None:
        self._connection = connection
        self._device = device
        self._sealer = sealer
        self._vectors = vectors
        row = connection.execute(_LOCK).fetchone()
        if row is None:
            raise StoreCorrupt(
                "the memory store in Postgres is damaged: its counters are missing", hint="restore the database from a backup"
            )
        self._counters = self._before = _Counters(*row)

    def finish(self) -> None:
        if self._counters != self._before:
            after = self._counters
            self._connection.execute(_SAVE, [after.sequence, after.clock, after.position, after.documents, after.words])

    def reserve(self, count: int, now: float) -> tuple[int, int]:
        sequence, clock = self._counters.sequence + 1, tick(self._counters.clock, now)
        self._counters = replace(self._counters, sequence=sequence + count - 1, clock=clock + count - 1)
        return sequence, clock

    def heads(self, addresses: Sequence[ItemAddress]) -> dict[ItemAddress, tuple[Operation, ...]]:
        wanted = {digest(address): address for address in addresses}
        statement = "SELECT address, device, sequence, payload FROM operations WHERE address = ANY(%s)"
        found: dict[ItemAddress, tuple[Operation, ...]] = {}
        for key, device, sequence, payload in self._connection.execute(statement, [list(wanted)]):
            operation = opened(Dot(device, sequence), payload, self._sealer)
            if operation is not None:
                found[wanted[key]] = (*found.get(wanted[key], ()), operation)
        return found

    def apply(self, changes: Sequence[Change]) -> None:
        kept = [change for change in changes if change.heads]
        table = self._vectors.table_for(self._connection, [(len(one.texts), one.vectors) for one in kept if one.vectors is not None])
        addresses = [digest(change.address) for change in changes]
        dots = [head.dot for change in kept for head in change.heads]
        with self._connection.pipeline():
            removed = self._connection.execute(_FORGET, [addresses])
            self._connection.execute(_REPLACE_HEADS, [addresses, [dot.device for dot in dots], [dot.sequence for dot in dots]])
            self._insert(kept, table)
        gone = {digest(change.address): change.address for change in changes if not change.heads}
        tags: list[str] = []
        for length, key in removed:
            self._count_words(-length)
            tags += [address_tag(gone[key])] if key in gone else []
        note_forgotten(self._connection, [Forgotten(self._next_position(), tag) for tag in sorted(tags)])

    def known(self) -> dict[str, int]:
        known: dict[str, int] = dict(self._connection.execute("SELECT device, sequence FROM known").fetchall())
        return {**known, self._device: self._counters.sequence} if self._counters.sequence else known

    def learn(self, known: VersionVector, clock: int) -> None:
        sequence = max(self._counters.sequence, known.get(self._device, 0))
        self._counters = replace(self._counters, sequence=sequence, clock=max(self._counters.clock, clock))
        others = sorted((device, number) for device, number in known.items() if device != self._device)
        if others:
            with self._connection.cursor() as cursor:
                cursor.executemany(_LEARN, others)

    def setting(self, name: str) -> str | None:
        row = self._connection.execute("SELECT value FROM settings WHERE name = %s", [name]).fetchone()
        return None if row is None else str(row[0])

    def set(self, name: str, value: str | None) -> None:
        self._connection.execute("DELETE FROM settings WHERE name = %s", [name])
        if value is not None:
            self._connection.execute("INSERT INTO settings VALUES (%s, %s)", [name, value])

    def _insert(self, changes: Sequence[Change], table: VectorTable | None) -> None:
        items: list[tuple[object, ...]] = []
        heads: list[tuple[object, ...]] = []
        vectors: list[tuple[int, Sequence[Vector]]] = []
        for change in changes:
            for head in change.heads:
                heads.append((self._next_position(), *head.dot, digest(head.address), sealed(head, self._sealer, change.payload)))
            number, words = self._counters.position, words_of("\n".join(change.texts))
            if change.vectors is not None:
                vectors.append((number, change.vectors))
            items.append(columns(number, change, words, table.number if table is not None and change.vectors is not None else None))
            self._count_words(len(words))
        with self._connection.cursor() as cursor:
            cursor.executemany(INSERT, items)
            cursor.executemany(_INSERT_HEAD, heads)
        if table is not None:
            table.insert(self._connection, vectors)

    def _next_position(self) -> int:
        self._counters = replace(self._counters, position=self._counters.position + 1)
        return self._counters.position

    def _count_words(self, length: int) -> None:
        """Count the words of an added item, or of a removed one as a negative number."""
        documents = self._counters.documents + (length > 0) - (length < 0)
        self._counters = replace(self._counters, documents=documents, words=self._counters.words + length)
