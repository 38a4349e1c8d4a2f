"""Encode items for the columns of SQLite, and insert many rows at once."""

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final
from zlib import crc32

import orjson

from ....protocols import StoreCorrupt
from ....protocols.namespaces import ItemAddress, Namespace
from ...storage.sqlite import Connection
from ...storage.sqlite_files import Naming
from ..encoding import meta_fields, read_meta
from ..engine import Row

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


def encode_row(row: Row, seed: int) -> bytes:
    """Return a row, packed. The seed is that of the row's address."""
    content = (row.value, meta_fields(row.meta), row.version, row.device, row.updated_at, row.conflicts)
    return pack(seed, orjson.dumps(content))


def decode_row(namespace: str, key: str, content: bytes, expires_at: float | None) -> Row:
    address = decode_address(namespace, key)
    value, meta, version, device, updated_at, conflicts = orjson.loads(unpack(address, content))
    return Row(address, value, read_meta(meta), version, device, updated_at, expires_at, conflicts)


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
