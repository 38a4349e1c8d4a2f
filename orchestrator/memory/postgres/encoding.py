"""How items are written into columns."""

import hashlib
import json

import orjson

from ....protocols import StoreCorrupt
from ....protocols.namespaces import ItemAddress, Namespace
from ..encoding import meta_fields, read_meta
from ..engine import Row


def digest(address: ItemAddress) -> bytes:
    """Stands for an address of any length."""
    return hashlib.sha256(orjson.dumps((address.namespace, address.key))).digest()


def number_of(prefix: Namespace) -> int:
    """Stands for a namespace in an index, where two may rarely be of the same number."""
    return int.from_bytes(hashlib.sha256(orjson.dumps(prefix)).digest()[:8], "big", signed=True)


def numbers_above(namespace: Namespace) -> list[int]:
    """Those of the namespace and of all that it is below, but not of the root."""
    return [number_of(namespace[:depth]) for depth in range(1, len(namespace) + 1)]


def encode_row(row: Row) -> bytes:
    """All but the address, and the expiry, which changes by itself."""
    return orjson.dumps((row.value, meta_fields(row.meta), row.version, row.device, row.updated_at, row.conflicts))


def decode_row(address: ItemAddress, content: bytes, expires_at: float | None) -> Row:
    try:
        value, meta, version, device, updated_at, conflicts = orjson.loads(content)
        return Row(address, value, read_meta(meta), version, device, updated_at, expires_at, conflicts)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreCorrupt("an item of the memory store is damaged", hint="restore the database from a backup") from error


def as_json(value: object) -> str | None:
    """None: it is no JSON, so that nothing that is kept is equal to it."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return None
