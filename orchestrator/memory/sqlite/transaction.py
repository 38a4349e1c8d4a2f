"""Write transactions, and the forgotten items that the change feed reports."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import orjson

from ....protocols.namespaces import ItemAddress, Namespace
from ...storage.sqlite import Connection
from ..engine import MOST_FORGOTTEN, Change, Forgotten, Unembedded, check_told
from ..item import address_tag
from ..operation import Operation, VersionVector, tick
from .keyword import add_words, remove_words
from .operations import Heads, OperationTable, State
from .rows import decode_row, decode_texts, encode_namespace, encode_row, encode_texts, insert, seed_of
from .vectors import Passages, VectorTable

if TYPE_CHECKING:
    from ..engine import Vector


_OLDEST = ""
"""Stands for a tag: the row has the position of the last entry that was dropped."""


def note_forgotten(connection: Connection, items: Sequence[Forgotten]) -> None:
    """Store forgotten items, and drop the oldest beyond `MOST_FORGOTTEN`."""
    connection.executemany("INSERT OR REPLACE INTO forgotten VALUES (?, ?)", items)
    query = "SELECT position FROM forgotten WHERE tag <> ? ORDER BY position DESC LIMIT 1 OFFSET ?"
    dropped = connection.execute(query, (_OLDEST, MOST_FORGOTTEN)).fetchone()
    if dropped is not None:
        connection.execute("DELETE FROM forgotten WHERE position <= ?", dropped)
        connection.execute("INSERT INTO forgotten VALUES (?, ?)", (*dropped, _OLDEST))


def read_forgotten(connection: Connection, after: int, limit: int) -> list[Forgotten]:
    """Return forgotten items, as `Engine.forgotten` does."""
    oldest = connection.execute("SELECT position FROM forgotten WHERE tag = ?", (_OLDEST,)).fetchone()
    check_told(after, oldest[0] if oldest else 0)
    query = "SELECT position, tag FROM forgotten WHERE position > ? AND tag <> ? ORDER BY position LIMIT ?"
    return [Forgotten(*columns) for columns in connection.execute(query, (after, _OLDEST, limit))]


_FIND: Final = "SELECT item, texts, content FROM items LEFT JOIN contents USING (item) WHERE namespace = ? AND key = ?"
_FIND_ALL: Final = (
    "SELECT key, item, texts, content FROM items LEFT JOIN contents USING (item) "
    "WHERE namespace = ? AND key IN (SELECT value FROM json_each(?))"
)
_COLUMNS: Final = "item, namespace, key, position, conflicts, is_deleted, user, device, tier, trust, updated_at"
_TIMES: Final = "valid_from, invalid_from, ttl, expires_at"
_FOR_EVER: Final = (None, None, None, None)
_UPDATE_REPLICA: Final = "UPDATE replica SET sequence = ?, clock = ?, position = ?, is_dirty = ?"


class SqliteTransaction:
    """A write transaction of a connection. `finish` writes its counters."""

    def __init__(self, connection: Connection, operations: OperationTable, vectors: VectorTable) -> None:
        self._connection = connection
        self._operations = operations
        self._vectors = vectors
        query = "SELECT device, sequence, clock, position, is_dirty FROM replica"
        self._device, *counters = connection.execute(query).fetchone()
        self._sequence, self._clock, self._position, self._is_dirty = self._before = tuple(counters)
        self._found: dict[ItemAddress, tuple[int, bytes | None, bytes] | None] = {}
        """Items that were looked up since the last change."""
        self._searched: dict[int, tuple[str, ...]] = {}
        """Texts of items whose words are indexed at the end: the index writes a segment whenever another table is written in between."""

    def finish(self) -> None:
        counters = (self._sequence, self._clock, self._position, self._is_dirty)
        if counters != self._before:
            self._connection.execute(_UPDATE_REPLICA, counters)
        add_words(self._connection, self._searched.items())

    def reserve(self, count: int, now: float) -> tuple[int, int]:
        first = self._sequence + 1, tick(self._clock, now)
        self._sequence += count
        self._clock = first[1] + count - 1
        return first

    def heads(self, addresses: Sequence[ItemAddress]) -> dict[ItemAddress, tuple[Operation, ...]]:
        self._find_all([address for address in addresses if address not in self._found])
        here = [address for address in addresses if self._found[address] is not None]
        found = {address: tuple(head for head in self._heads(address).values() if head is not None) for address in here}
        return {address: heads for address, heads in found.items() if heads}

    def apply(self, changes: Sequence[Change]) -> None:
        states = [self._state(change) for change in changes]
        self._operations.replace(self._connection, states, self._next_position)
        for change in changes:
            if (found := self._found[change.address]) is not None:
                self._leave(change.address, *found)
        kept = [state for state in states if state.change.heads]
        self._insert_items(kept)
        self._insert_contents(kept)
        self._searched.update([(item, change.texts) for item, _, _, change in kept if change.texts])
        embedded = [(item, len(one.texts), one.vectors) for item, _, _, one in kept if one.texts and one.vectors is not None]
        self._vectors.put(self._connection, [Passages(*one) for one in embedded], self._next_position)
        if len(kept) < len(changes):
            self._forget([change.address for change in changes if not change.heads])
        self._found.clear()

    def known(self) -> dict[str, int]:
        others = dict(self._connection.execute("SELECT device, sequence FROM known"))
        return {**others, self._device: self._sequence} if self._sequence else others

    def learn(self, known: VersionVector, clock: int) -> None:
        self._clock = max(self._clock, clock)
        # If the file was restored from an old copy, other devices know of writes of this device that it has lost.
        self._sequence = max(self._sequence, known.get(self._device, 0))
        others = [(device, sequence) for device, sequence in known.items() if device != self._device]
        raise_known = "INSERT INTO known VALUES (?, ?) ON CONFLICT DO UPDATE SET sequence = max(sequence, excluded.sequence)"
        self._connection.executemany(raise_known, others)

    def setting(self, name: str) -> str | None:
        found = self._connection.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
        return found[0] if found else None

    def set(self, name: str, value: str | None) -> None:
        if value is None:
            self._connection.execute("DELETE FROM settings WHERE name = ?", (name,))
        else:
            self._connection.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))

    def embed(self, row: Unembedded, vectors: "Sequence[Vector]") -> None:
        """Add the vectors of a row, if it still is at the version from which they were made."""
        query = "SELECT namespace, key, content, expires_at FROM items JOIN contents USING (item) WHERE item = ?"
        found = self._connection.execute(query, (row.row,)).fetchone()
        if found is None:
            return
        namespace, key, content, expires_at = found
        if decode_row(namespace, key, content, expires_at).version == row.version:
            if self._vectors.remove(self._connection, row.row):
                self._note_removal(row.row)
            self._vectors.put(self._connection, [Passages(row.row, len(row.texts), vectors)], self._next_position)

    def _next_position(self) -> int:
        self._position += 1
        return int(self._position)

    def _find_all(self, addresses: Sequence[ItemAddress]) -> None:
        """Find the stored items at the addresses, with one query per namespace."""
        keys: dict[Namespace, list[str]] = {}
        for namespace, key in addresses:
            keys.setdefault(namespace, []).append(key)
        self._found.update(dict.fromkeys(addresses))
        for namespace, some in keys.items():
            for key, *found in self._connection.execute(_FIND_ALL, (encode_namespace(namespace), orjson.dumps(some).decode())):
                self._found[ItemAddress(namespace, key)] = tuple(found)

    def _find(self, address: ItemAddress) -> tuple[int, bytes | None, bytes] | None:
        """Return the number of a stored item, its texts and its row, packed; None if there is none."""
        if address not in self._found:
            self._found[address] = self._connection.execute(_FIND, (encode_namespace(address.namespace), address.key)).fetchone()
        found: tuple[int, bytes | None, bytes] | None = self._found[address]
        return found

    def _heads(self, address: ItemAddress) -> Heads:
        found = self._find(address)
        return self._operations.of_item(self._connection, address, found[0]) if found else {}

    def _state(self, change: Change) -> State:
        """Return the stored state of an item with its change. A new item is numbered by its first position."""
        found, seed = self._find(change.address), seed_of(change.address)
        if found is None:
            return State(self._next_position(), seed, {}, change)
        return State(found[0], seed, self._operations.of_item(self._connection, change.address, found[0]), change)

    def _leave(self, address: ItemAddress, item: int, texts: bytes | None, content: bytes) -> None:
        """Remove all data of the item but its heads."""
        if self._searched.pop(item, None) is None and texts is not None:
            remove_words(self._connection, item, decode_texts(address, texts, content))
        if self._connection.execute("DELETE FROM vectors WHERE item = ?", (item,)).rowcount:
            self._note_removal(item)
        self._connection.execute("DELETE FROM items WHERE item = ?", (item,))
        self._connection.execute("DELETE FROM contents WHERE item = ?", (item,))

    def _note_removal(self, item: int) -> None:
        """Tell processes that keep vectors in memory to drop the item's."""
        self._connection.execute("INSERT INTO removals VALUES (?, ?)", (self._next_position(), item))

    def _forget(self, addresses: Sequence[ItemAddress]) -> None:
        """Report the items as forgotten."""
        gone = [address for address in addresses if self._found[address] is not None]
        note_forgotten(self._connection, [Forgotten(self._next_position(), address_tag(address)) for address in gone])
        self._is_dirty = 1

    def _insert_items(self, states: Sequence[State]) -> None:
        lasting: list[tuple[int | float | str, ...]] = []
        others: list[tuple[int | float | str | None, ...]] = []
        for item, _, _, change in states:
            (namespace, key), row, position = change.address, change.row, self._next_position()
            place = (item, encode_namespace(namespace), key, position, change.conflicts)
            if row is None:
                others.append((*place, 1, None, None, None, None, None, None, None, None, None))
                continue
            meta = row.meta
            parts = (*place, 0, meta.user, row.device, meta.tier.value, meta.trust, row.updated_at)
            times = (meta.valid_from, meta.invalid_from, meta.ttl, row.expires_at)
            if times == _FOR_EVER:
                lasting.append(parts)
            else:
                others.append((*parts, *times))
        insert(self._connection, f"items ({_COLUMNS})", lasting)
        insert(self._connection, f"items ({_COLUMNS}, {_TIMES})", others)

    def _insert_contents(self, states: Sequence[State]) -> None:
        searched: list[tuple[int, bytearray, bytearray]] = []
        others: list[tuple[int, bytearray]] = []
        for item, seed, _, change in states:
            if change.row is None:
                continue
            content = encode_row(change.row, seed)
            texts = encode_texts(change.texts, seed, change.row.value, content)
            if texts is None:
                others.append((item, bytearray(content)))
            else:
                searched.append((item, bytearray(content), bytearray(texts)))
        insert(self._connection, "contents (item, content, texts)", searched)
        insert(self._connection, "contents (item, content)", others)
