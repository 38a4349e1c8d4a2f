"""Encode items and operations for the tables of Postgres, and decode them."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final

import orjson

from ....protocols import StoreCorrupt
from ....protocols.namespaces import ItemAddress, Namespace
from ..encoding import Sealer, decode, encode, meta_fields, read_meta, subjects_of
from ..engine import Change, Row
from ..item import Meta
from ..operation import Dot, Operation


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


def sealed(head: Operation, sealer: Sealer | None, payload: bytes | None = None) -> bytes:
    """Return an operation as it is stored; `payload` is the operation as JSON, if it is at hand."""
    payload = payload or encode(head)
    return payload if sealer is None else sealer.seal(head.dot, subjects_of(head), payload)


def opened(dot: Dot, payload: bytes, sealer: Sealer | None) -> Operation | None:
    """Return a stored operation; None if its key was destroyed, and so it is erased."""
    try:
        plain = payload if sealer is None else sealer.unseal(dot, payload)
        return None if plain is None else decode(dot, plain)
    except ValueError as error:
        raise StoreCorrupt(f"the memory store in Postgres is damaged: {error}", hint="restore the database from a backup") from error


ROW: Final = "namespace, key, content, expires_at"
"""The columns that `read` takes."""

INSERT: Final = """
INSERT INTO items (number, address, namespace, key, prefixes, conflicts, subjects, origins,
  content, fields, owner, device, tier, trust, valid_from, invalid_from, updated_at, ttl, expires_at,
  texts, words, length, embedder)
VALUES (%s, %s, %s::text[], %s, %s::bigint[], %s, %s::text[], %s::bytea[],
  %s, %s::jsonb, %s, %s, %s, %s, %s, %s, %s, %s, %s,
  %s, to_tsvector('words', %s), %s, %s)
"""


def read(columns: Sequence[Any]) -> Row:
    namespace, key, content, expires_at = columns
    return decode_row(address(namespace, key), content, expires_at)


def address(namespace: Sequence[str], key: str) -> ItemAddress:
    return ItemAddress(tuple(namespace), key)


def columns(number: int, change: Change, words: Sequence[str], embedder: int | None) -> tuple[object, ...]:
    """Return the parameters of `INSERT`."""
    namespace, key = change.address
    metas = list(chain.from_iterable(map(_metas, change.heads)))
    subjects = sorted({subject.name for head in change.heads for subject in subjects_of(head)})
    origins = sorted({digest(origin) for meta in metas for origin in meta.lineage})
    place = number, digest(change.address), list(namespace), key, numbers_above(namespace)
    texts = orjson.dumps(change.texts) if change.texts else None
    searched = texts, " ".join(words) if words else None, len(words), embedder
    return *place, change.conflicts, subjects or None, origins or None, *_visible(change.row), *searched


def _visible(row: Row | None) -> tuple[object, ...]:
    if row is None:
        return (None,) * 11
    meta = row.meta
    who = meta.user, row.device, meta.tier, meta.trust
    return (
        encode_row(row),
        orjson.dumps(row.value).decode(),
        *who,
        meta.valid_from,
        meta.invalid_from,
        row.updated_at,
        meta.ttl,
        row.expires_at,
    )


def _metas(head: Operation) -> Iterable[Meta]:
    return head.meta, *(sibling.meta for sibling in head.siblings)
