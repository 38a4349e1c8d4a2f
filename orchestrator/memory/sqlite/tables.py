"""The tables and what is packed into their columns: create, check, encode and decode, and make deleted data unreadable.

The number of a row is `items.item`, which is never used for another item.
"""

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final
from zlib import crc32

import orjson

from ....protocols import StoreCorrupt, SyncRefused
from ....protocols.items import ItemAddress, Namespace
from ...storage.sqlite import Connection, empty_log
from ...storage.sqlite_files import Naming, check_plain
from ..engine import ItemRow
from ..operation import meta_fields, read_meta

STORE: Final = Naming(
    "memory store",
    recovery="nearfar memory recover saves what can be read",
    otherwise=", or the key is not the one that it was encrypted with",
)


def damaged(how: str) -> StoreCorrupt:
    return STORE.damaged(how)


END: Final = "\x01"
"""Stands after every label of a namespace, so that `a` and `ab` differ, and everything in and below a namespace is one range."""
ESCAPE: Final = "\x02"
_ESCAPED: Final = {"\x00": f"{ESCAPE}2", END: f"{ESCAPE}3", ESCAPE: f"{ESCAPE}4"}  # in the order of what they stand for
_PLAIN: Final = {escaped: plain for plain, escaped in _ESCAPED.items()}
_TABLE: Final = str.maketrans(_ESCAPED)
_SURROGATES: Final = range(0xD800, 0xE000)
_CHECKSUM_BYTES: Final = 4
_HEADER_BYTES: Final = _CHECKSUM_BYTES + 1
_PLAIN_DATA: Final = b"\x00"
_DEFLATED: Final = b"\x01"
_WORTH_DEFLATING: Final = 512
"""Bytes. To deflate fewer takes a good part of the time of a write."""
_WORTH_COMPARING: Final = 64
"""Bytes, if most of them are in other data that the reader has, too."""
_LEVEL: Final = 6
_WINDOW: Final = -12
"""4 KiB, without a header; more memory takes longer to clear than the data takes to deflate."""
_DEFLATING_MEMORY: Final = 5
_USUAL: Final = (
    b'[{"session":"","kind":"outcome","kind":"tool_call","kind":"tool_result","kind":"message","speaker":"assistant","speaker":"user",'
    b'"at":"2026-01-01T00:00:00+00:00","text":"","searchable":["the and you that is was for to of in it"]},["","","internal_tool",0.8,'
    b'"shared","user","device","",[],1700000000.0,null,null,null,["searchable[*]"],[]],null,null,{},[],"device",[],null],["episodic","turn"],'
)
"""Text that most rows contain. It is part of the format: a change needs a new version of the tables."""


@lru_cache(maxsize=1024)
def encode_namespace(namespace: Namespace) -> str:
    """Return a text that differs for each namespace, and sorts as namespaces do."""
    return "".join(label.translate(_TABLE) + END for label in namespace)


@lru_cache(maxsize=1024)
def decode_namespace(text: str) -> Namespace:
    """Return the namespace of a text. Raises `KeyError` for a text that `encode_namespace` never makes."""
    labels = text.split(END)[:-1]
    if ESCAPE not in text:
        return tuple(labels)
    return tuple(re.sub(f"{ESCAPE}.?", lambda escape: _PLAIN[escape[0]], label) for label in labels)


def namespace_range(prefix: Namespace) -> tuple[str, str]:
    """Return the least encoded namespace in or below `prefix`, which is not (), and the least one after all of them."""
    start = encode_namespace(prefix)
    return start, start.removesuffix(END) + ESCAPE


def end_of_prefix(prefix: str) -> str | None:
    """Return the least text that is greater than all texts with this prefix; None if there is none."""
    kept = prefix.rstrip(chr(0x10FFFF))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)


def decode_address(namespace: str, key: str) -> ItemAddress:
    """Return the address of two columns. Raises `StoreCorrupt` if it is none."""
    try:
        return ItemAddress(decode_namespace(namespace), key)
    except (AttributeError, KeyError) as error:
        raise damaged("an address") from error


def seed_of(address: ItemAddress) -> int:
    """Return the seed of an address: checksums begin with it, so that they cover address and data."""
    namespace, key = address
    return crc32("\0".join((*namespace, key)).encode())


def pack(seed: int, data: bytes, like: bytes = _USUAL) -> bytes:
    """Return the data after its checksum, which begins with the seed of the data's address. It is deflated if that saves space: as a
    difference from the data that it is `like`."""
    checksum = crc32(data, seed).to_bytes(_CHECKSUM_BYTES, "big")
    if len(data) < (_WORTH_DEFLATING if like is _USUAL else _WORTH_COMPARING):
        return checksum + _PLAIN_DATA + data
    deflating = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW, _DEFLATING_MEMORY, zdict=like)
    return checksum + _DEFLATED + deflating.compress(data) + deflating.flush()


def unpack(address: ItemAddress, packed: bytes, like: bytes = _USUAL) -> bytes:
    """Return packed data. Raises `StoreCorrupt` if it was not packed for this address."""
    payload = payload_of(packed, like)
    if int.from_bytes(packed[:_CHECKSUM_BYTES], "big") != crc32(payload, seed_of(address)):
        raise damaged("the data of an item")
    return payload


def payload_of(packed: bytes, like: bytes = _USUAL) -> bytes:
    """Return packed data, unchecked. Raises `StoreCorrupt` if it cannot be unpacked."""
    if not isinstance(packed, bytes):
        raise damaged("the data of an item")
    how, data = packed[_CHECKSUM_BYTES:_HEADER_BYTES], packed[_HEADER_BYTES:]
    if how != _DEFLATED:
        return data
    try:
        return zlib.decompressobj(_WINDOW, zdict=like).decompress(data)
    except zlib.error as error:
        raise damaged("the data of an item") from error


def encode_row(row: ItemRow, seed: int) -> bytes:
    """Return a row, packed. The seed is that of the row's address."""
    content = (row.value, meta_fields(row.meta), row.version, row.device, row.updated_at, row.conflicts)
    return pack(seed, orjson.dumps(content))


def decode_row(namespace: str, key: str, content: bytes, expires_at: float | None) -> ItemRow:
    address = decode_address(namespace, key)
    value, meta, version, device, updated_at, conflicts = orjson.loads(unpack(address, content))
    return ItemRow(address, value, read_meta(meta), version, device, updated_at, expires_at, conflicts)


def encode_texts(texts: Sequence[str], seed: int, value: Mapping[str, Any], content: bytes) -> bytes | None:
    """Pack the searchable texts of an item. A text that is in the value is kept as the number of its place there.

    The seed is that of the item's address; `content` is the row with the value, as `encode_row` made it.
    """
    if not texts:
        return None
    places = {text: place for place, text in enumerate(_strings(value))}
    kept = orjson.dumps([places.get(text, text) for text in texts])
    return pack(seed, kept, payload_of(content))


def decode_texts(address: ItemAddress, packed: bytes, content: bytes) -> tuple[str, ...]:
    """Unpack the texts of the item with this row. Raises `StoreCorrupt`."""
    row = payload_of(content)
    kept = orjson.loads(unpack(address, packed, row))
    strings = list(_strings(orjson.loads(row)[0])) if any(isinstance(text, int) for text in kept) else []
    try:
        return tuple(strings[text] if isinstance(text, int) else text for text in kept)
    except IndexError as error:
        raise damaged("the texts of an item") from error


def _strings(value: object) -> Iterator[str]:
    """Yield all texts in a JSON value, always in the same order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from _strings(part)


def value_of(content: bytes) -> dict[str, Any]:
    """Return the value of a row that `encode_row` made, unchecked: rows are checked when they are decoded to be shown."""
    value: dict[str, Any] = orjson.loads(payload_of(content))[0]
    return value


_ROWS: Final = 32
"""Rows per statement: running one costs as much as inserting a small row, and blocks all other threads when it begins and ends."""


def insert(connection: Connection, columns: str, rows: Sequence[Sequence[int | float | str | bytearray | None]]) -> None:
    """Insert rows with these columns, given as `table (column, ...)`, into a table.

    For every `bytes`, `bool`, `None` or member of an enumeration the driver searches for an adapter, which takes longer than writing the
    value. Therefore blobs come as `bytearray`, and columns that are NULL in all rows are best left out.
    """
    many = len(rows) - len(rows) % _ROWS
    for start in range(0, many, _ROWS):
        connection.execute(_statement(columns, _ROWS), tuple(chain.from_iterable(rows[start : start + _ROWS])))
    if many < len(rows):
        connection.executemany(_statement(columns, 1), rows[many:])


@lru_cache(maxsize=16)
def _statement(columns: str, rows: int) -> str:
    row = f"({', '.join('?' * (columns.count(',') + 1))})"
    return f"INSERT INTO {columns} VALUES {', '.join([row] * rows)}"


APPLICATION: Final = 0x4E665253
"""Marks the file as one of this store (`PRAGMA application_id`)."""
VERSION: Final = 5
"""Version of the tables, and of how texts are cut into words (see `search.py`), in `PRAGMA user_version`."""

TABLES: Final = """
CREATE TABLE replica (
  only INTEGER PRIMARY KEY CHECK (only = 1),
  device TEXT NOT NULL,
  sequence INTEGER NOT NULL,          -- of this device's last write
  clock INTEGER NOT NULL,
  position INTEGER NOT NULL,          -- of the last change
  generation INTEGER NOT NULL,        -- grows when entries of `removals` are dropped
  is_dirty INTEGER NOT NULL           -- something was forgotten since the last scrub
);
CREATE TABLE known (device TEXT PRIMARY KEY, sequence INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE items (
  item INTEGER PRIMARY KEY,           -- the position of its first change
  namespace TEXT NOT NULL,            -- see columns.py
  key TEXT NOT NULL,
  position INTEGER NOT NULL,          -- of its last change
  conflicts INTEGER NOT NULL,
  is_deleted INTEGER NOT NULL,        -- readers see no row
  user TEXT, device TEXT, tier TEXT, trust REAL, valid_from REAL, invalid_from REAL, updated_at REAL, ttl REAL,  -- parts of the row
  expires_at REAL
);
CREATE UNIQUE INDEX items_by_address ON items (namespace, key);
CREATE INDEX items_by_position ON items (position);
CREATE INDEX items_in_order ON items (updated_at DESC, namespace, key) WHERE NOT is_deleted;
CREATE INDEX items_by_expiry ON items (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX items_in_conflict ON items (namespace, key) WHERE conflicts > 0;

CREATE TABLE contents (               -- of items that are not deleted: apart from what searches look at, which then is on few pages
  item INTEGER PRIMARY KEY,
  content BLOB NOT NULL,              -- the row, packed
  texts BLOB                          -- packed; NULL: none
);

CREATE TABLE operations (
  position INTEGER PRIMARY KEY,       -- at which this replica came to know it
  item INTEGER NOT NULL,
  device TEXT NOT NULL, sequence INTEGER NOT NULL,
  payload BLOB NOT NULL               -- packed
);
CREATE INDEX operations_by_item ON operations (item);

CREATE TABLE embedders (embedder INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, width INTEGER NOT NULL);
CREATE TABLE vectors (
  position INTEGER PRIMARY KEY,
  item INTEGER NOT NULL,
  embedder INTEGER NOT NULL,
  passages BLOB NOT NULL              -- some of the item's: of each a scale (float32, little-endian) and one byte for each number
);
CREATE INDEX vectors_by_item ON vectors (item, embedder);
CREATE TABLE removals (position INTEGER PRIMARY KEY, item INTEGER NOT NULL  -- that lost its vectors
);

CREATE TABLE forgotten (position INTEGER PRIMARY KEY, tag TEXT NOT NULL UNIQUE  -- of an item, or see forgotten.py
);

CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize='porter unicode61 remove_diacritics 2');
-- Searches look into every segment of the index, so that they are merged before there are as many as FTS5 would leave.
INSERT INTO words (words, rank) VALUES ('automerge', 2);
INSERT INTO words (words, rank) VALUES ('crisismerge', 8);
"""


def create(connection: Connection, device: str) -> None:
    """Create the tables of a new replica, within a transaction."""
    for statement in TABLES.split(";\n"):
        connection.execute(statement)
    connection.execute("INSERT INTO replica VALUES (1, ?, 0, 0, 0, 0, 0)", (device,))
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


def check(connection: Connection) -> None:
    """Check the whole database. Raises `StoreCorrupt`."""
    (finding,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if finding != "ok":
        raise damaged(finding)


def is_new(connection: Connection) -> bool:
    """Return whether the database is empty.

    Raises `StoreCorrupt` if it is another program's, or has triggers or views, and `SyncRefused` if a newer nearfar made it.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application == APPLICATION and version == VERSION:
        check_plain(connection, STORE)
        return False
    if application == APPLICATION and version > VERSION:
        message = f"the memory store has version {version}, but this nearfar knows only version {VERSION}"
        raise SyncRefused(message, hint="update nearfar on this device")
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables or application or version:
        raise StoreCorrupt("the file is a database, but not a memory store", hint="choose another path")
    return True


PATIENCE: Final = 30.0
"""Seconds to wait for readers of older states to finish."""
MOST_REMOVALS: Final = 10_000


def scrub(connection: Connection) -> None:
    """Remove the copies of deleted data that `secure_delete` leaves.

    Older segments of the index keep words until segments are merged. Pages keep copies of rows that SQLite has moved, until all pages
    are rewritten. The log keeps earlier pages until it is emptied, which needs all readers to be at the present state: raises
    `StoreUnavailable` if one is not; the next scrub, or the next process that opens the store, continues.
    """
    connection.execute("UPDATE replica SET is_dirty = 1")
    forget_removals(connection)
    connection.execute("INSERT INTO words (words) VALUES ('optimize')")
    connection.execute("VACUUM")
    empty_log(connection, "memory store", PATIENCE)
    connection.execute("UPDATE replica SET is_dirty = 0")


def is_due(connection: Connection) -> bool:
    """Return whether data was deleted since the last scrub, as when the process died before it."""
    (is_dirty,) = connection.execute("SELECT is_dirty FROM replica").fetchone()
    return bool(is_dirty)


def forget_removals(connection: Connection) -> None:
    """Make all processes that keep vectors in memory read them again, without the removed ones."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM removals")
    connection.execute("UPDATE replica SET generation = generation + 1")
    connection.execute("COMMIT")


def has_many_removals(connection: Connection) -> bool:
    (removals,) = connection.execute("SELECT count(*) FROM removals").fetchone()
    return int(removals) > MOST_REMOVALS
