"""Read and write rows of the table `items`."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final

import orjson

from ....protocols.namespaces import ItemAddress
from ..encoding import subjects_of
from ..engine import Change, Row
from ..item import Meta
from ..operation import Operation
from .encoding import decode_row, digest, encode_row, numbers_above

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
