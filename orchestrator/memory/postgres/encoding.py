"""Encode items for the columns of Postgres."""

import hashlib
import json

import orjson

from ....protocols import StoreCorrupt
from ....protocols.namespaces import ItemAddress, Namespace
from ..encoding import meta_fields, read_meta
from ..engine import Row


def digest(address: ItemAddress) -> bytes:
    """Return a digest of an address of any length."""
    return hashlib.sha256(orjson.dumps((address.namespace, address.key))).digest()


def number_of(prefix: Namespace) -> int:
    """Return the number of a namespace in an index; two namespaces may rarely share one."""
    return int.from_bytes(hashlib.sha256(orjson.dumps(prefix)).digest()[:8], "big", signed=True)


def numbers_above(namespace: Namespace) -> list[int]:
    """Return the numbers of the namespace and of all namespaces above it, without the root."""
    return [number_of(namespace[:depth]) for depth in range(1, len(namespace) + 1)]


def encode_row(row: Row) -> bytes:
    """Encode a row without its address, and without its expiry, which has a column of its own."""
    return orjson.dumps((row.value, meta_fields(row.meta), row.version, row.device, row.updated_at, row.conflicts))


def decode_row(address: ItemAddress, content: bytes, expires_at: float | None) -> Row:
    try:
        value, meta, version, device, updated_at, conflicts = orjson.loads(content)
        return Row(address, value, read_meta(meta), version, device, updated_at, expires_at, conflicts)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreCorrupt("an item of the memory store is damaged", hint="restore the database from a backup") from error


def as_json(value: object) -> str | None:
    """Return a value as JSON; None if it is no JSON, so that no stored value is equal to it."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return None
