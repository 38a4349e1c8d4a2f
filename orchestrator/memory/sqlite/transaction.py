"""A write transaction, with the tables of operations and of vectors: a few passages of an item in each row, one byte per number."""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from ....protocols import InvalidRequest
from ....protocols.items import ItemAddress, Namespace
from ...storage.sqlite import Connection
from ..engine import MOST_FORGOTTEN, Change, Forgotten, Logged, Unembedded, check_told
from ..operation import Dot, Operation, OwnedSubject, Sealer, VersionVector, address_tag, decode, encode, subjects_of, tick
from .search import add_words, remove_words
from .tables import damaged, decode_row, decode_texts, encode_namespace, encode_row, encode_texts, insert, pack, payload_of, seed_of, unpack

if TYPE_CHECKING:
    import numpy

    from ..engine import Vector
    from .nearest import Codes


_OF_ITEM: Final = "SELECT position, device, sequence, payload FROM operations WHERE item = ? ORDER BY position"

Heads = dict[int, Operation | None]
"""The heads of an item, by position; None: the head was erased, and its key destroyed."""


class Slot(NamedTuple):
    """The place of an item in the tables."""

    item: int
    seed: int
    """Seed of the item's address, see `seed_of`."""
    present: Heads


class OperationTable:
    """Stores operations. With a sealer, those about a subject cannot be read without the subject's key."""

    def __init__(self, sealer: Sealer | None) -> None:
        self._sealer = sealer

    def decode(self, address: ItemAddress, dot: Dot, packed: bytes) -> Operation | None:
        """Return a stored operation; None as in `Heads`."""
        logged = self.logged(address, dot, 0, packed)
        return None if logged is None else logged.operation

    def decode_alone(self, dot: Dot, packed: bytes) -> Operation | None:
        """Return a stored operation whose item is not known for certain: the operation names it itself."""
        logged = self._opened(dot, 0, payload_of(packed))
        if logged is None:
            return None
        unpack(logged.operation.address, packed)
        return logged.operation

    def logged(self, address: ItemAddress, dot: Dot, position: int, packed: bytes) -> Logged | None:
        """Return a stored operation with its unsealed payload; None as in `Heads`."""
        return self._opened(dot, position, unpack(address, packed))

    def of_item(self, connection: Connection, address: ItemAddress, item: int) -> Heads:
        found = connection.execute(_OF_ITEM, (item,)).fetchall()
        return {position: self.decode(address, Dot(device, sequence), packed) for position, device, sequence, packed in found}

    def replace(self, connection: Connection, slots: Iterable[tuple[Slot, Change]], next_position: Callable[[], int]) -> None:
        """Replace the heads of items. A head that is stored already keeps its position."""
        left: list[tuple[int]] = []
        kept: list[tuple[bytes, int]] = []
        added: list[tuple[int, int, str, int, bytearray]] = []
        for (item, seed, present), change in slots:
            heads = change.heads
            for position, head in present.items():
                if head not in heads:
                    left.append((position,))
                elif head is not None and self._subjects(head):
                    kept.append((self._packed(head, seed), position))
            for head in heads:
                if not present or head not in present.values():
                    added.append((next_position(), item, *head.dot, bytearray(self._packed(head, seed, change.payload))))
        if left:
            connection.executemany("DELETE FROM operations WHERE position = ?", left)
        if kept:  # sealed again: their key may be one that is destroyed next
            connection.executemany("UPDATE operations SET payload = ? WHERE position = ?", kept)
        insert(connection, "operations (position, item, device, sequence, payload)", added)

    def _packed(self, head: Operation, seed: int, payload: bytes | None = None) -> bytes:
        payload = payload or encode(head)
        subjects = self._subjects(head)
        if self._sealer is not None and subjects:
            payload = self._sealer.seal(head.dot, subjects, payload)
        return pack(seed, payload)

    def _subjects(self, head: Operation) -> frozenset[OwnedSubject]:
        """Return the subjects with whose keys an operation is sealed."""
        return frozenset() if self._sealer is None else subjects_of(head)

    def _opened(self, dot: Dot, position: int, payload: bytes) -> Logged | None:
        try:
            unsealed = payload if self._sealer is None else self._sealer.unseal(dot, payload)
            return None if unsealed is None else Logged(position, decode(dot, unsealed), unsealed)
        except ValueError as error:
            raise damaged(str(error)) from error


_ROW_PASSAGES: Final = 2
"""Passages per row: rows of two passages of the shipped embedder fill pages of 4 KiB; longer rows leave up to half of a page empty."""


def pack_vectors(vectors: "Sequence[Vector]") -> bytes:
    """Return the vectors as they are stored."""
    import numpy

    from .nearest import encode_vectors

    made = encode_vectors(numpy.array(vectors))
    scales = made.scales.astype("<f4")
    return b"".join([scale.tobytes() + codes.tobytes() for scale, codes in zip(scales, made.codes, strict=True)])


def unpack_vectors(passages: Sequence[bytes], width: int) -> "tuple[Codes, list[int]]":
    """Return the vectors of several rows, and how many each row has. Raises `StoreCorrupt` for bytes that `pack_vectors` never makes."""
    import numpy

    from .nearest import Codes

    passage = _passage(width)
    if any(not isinstance(one, bytes) or len(one) % passage.itemsize for one in passages):
        raise damaged("the size of a vector")
    kept = numpy.frombuffer(b"".join(passages), passage)
    scales = kept["scale"].astype(numpy.float32)
    if not (numpy.isfinite(scales).all() and (scales >= 0).all()):
        raise damaged("a vector")
    codes = kept["codes"].reshape(-1, width)
    lengths = numpy.linalg.norm(codes.astype(numpy.float32), axis=1) * scales
    return Codes(codes, scales, float(lengths.max(initial=0.0))), [len(one) // passage.itemsize for one in passages]


@lru_cache(maxsize=4)
def _passage(width: int) -> "numpy.dtype[Any]":
    import numpy

    return numpy.dtype([("scale", "<f4"), ("codes", "i1", (width,))])


class PassageTable:
    """The vectors of one embedder. Without one, there are none."""

    def __init__(self, embedder: str | None) -> None:
        self._name = embedder

    @property
    def is_named(self) -> bool:
        return self._name is not None

    def registered(self, connection: Connection) -> tuple[int, int] | None:
        """Return the embedder's number and the width of its vectors; None if it has made none so far."""
        found: tuple[int, int] | None = connection.execute("SELECT embedder, width FROM embedders WHERE name = ?", (self._name,)).fetchone()
        return found

    def put(
        self, connection: Connection, rows: "Sequence[tuple[int, Sequence[str], Sequence[Vector]]]", next_position: Callable[[], int]
    ) -> None:
        """Add vectors to items, named by their numbers and with their texts, that have none of this embedder.

        Raises `InvalidRequest` if they are of another width than those of the same embedder, or not one for each text.
        """
        if not rows:
            return
        embedder, width = self.registered(connection) or self._register(connection, rows[0][2])
        kept = [
            (next_position(), item, embedder, bytearray(some))
            for item, texts, vectors in rows
            for some in self._packed(len(texts), vectors, width)
        ]
        insert(connection, "vectors (position, item, embedder, passages)", kept)

    def remove(self, connection: Connection, item: int) -> bool:
        """Remove the vectors of this embedder before others are put, and return whether there were any."""
        delete = "DELETE FROM vectors WHERE item = ? AND embedder = (SELECT embedder FROM embedders WHERE name = ?)"
        return connection.execute(delete, (item, self._name)).rowcount > 0

    def _packed(self, texts: int, vectors: "Sequence[Vector]", width: int) -> list[bytes]:
        if len(vectors) != texts:
            raise InvalidRequest(f"an item with {texts} texts cannot have {len(vectors)} vectors")
        for vector in vectors:
            self.check(vector, width)
        return [pack_vectors(vectors[start : start + _ROW_PASSAGES]) for start in range(0, texts, _ROW_PASSAGES)]

    def check(self, vector: "Vector", width: int) -> None:
        """Raise `InvalidRequest` if a vector is not of the embedder's width."""
        if vector.shape != (width,):
            message = f"a vector of shape {vector.shape} is not from embedder {self._name}, whose vectors have width {width}"
            raise InvalidRequest(message, hint="give every embedder, and every version of one, a name of its own")

    def _register(self, connection: Connection, first: "Sequence[Vector]") -> tuple[int, int]:
        if self._name is None:
            raise InvalidRequest("vectors need an embedder", hint="name the embedder when the store is opened")
        insert = "INSERT INTO embedders (name, width) VALUES (?, ?) RETURNING embedder, width"
        width = len(first[0]) if first else 0
        registered: tuple[int, int] = connection.execute(insert, (self._name, width)).fetchone()
        return registered


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

    def __init__(self, connection: Connection, operations: OperationTable, vectors: PassageTable) -> None:
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
        if len(addresses) > 1:
            self._find_all([address for address in addresses if address not in self._found])
        here = [address for address in addresses if self._find(address) is not None]
        found = {address: tuple(head for head in self._heads(address).values() if head is not None) for address in here}
        return {address: heads for address, heads in found.items() if heads}

    def apply(self, changes: Sequence[Change]) -> None:
        placed = [(self._slot(change.address), change) for change in changes]
        self._operations.replace(self._connection, placed, self._next_position)
        for change in changes:
            if (found := self._found[change.address]) is not None:
                self._leave(change.address, *found)
        kept = [(slot, change) for slot, change in placed if change.heads]
        self._insert_items(kept)
        self._insert_contents(kept)
        self._searched.update([(slot.item, change.texts) for slot, change in kept if change.texts])
        embedded = [(slot.item, one.texts, one.vectors) for slot, one in kept if one.texts and one.vectors is not None]
        self._vectors.put(self._connection, embedded, self._next_position)
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
            self._vectors.put(self._connection, [(row.row, row.texts, vectors)], self._next_position)

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

    def _slot(self, address: ItemAddress) -> Slot:
        """Return the place of an item. A new one is numbered by its first position."""
        found, seed = self._find(address), seed_of(address)
        if found is None:
            return Slot(self._next_position(), seed, {})
        return Slot(found[0], seed, self._operations.of_item(self._connection, address, found[0]))

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

    def _insert_items(self, placed: Sequence[tuple[Slot, Change]]) -> None:
        lasting: list[tuple[int | float | str, ...]] = []
        others: list[tuple[int | float | str | None, ...]] = []
        for (item, _, _), change in placed:
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

    def _insert_contents(self, placed: Sequence[tuple[Slot, Change]]) -> None:
        searched: list[tuple[int, bytearray, bytearray]] = []
        others: list[tuple[int, bytearray]] = []
        for (item, seed, _), change in placed:
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
