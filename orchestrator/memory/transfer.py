"""Export and import items as lines of JSON."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, TypeVar

import orjson

from ...protocols import InvalidRequest
from ...protocols.items import ItemAddress, Namespace, Source, Tier, within
from . import validation
from .engine import ItemRow
from .operation import Meta
from .reading import Reader
from .writing import ABSENT, Edit

_BATCH: Final = 500
_SECONDS: Final = 60.0
_PLAIN: Final = frozenset({"namespace", "key", "value"})
"""The fields that a line written by hand needs."""

T = TypeVar("T")
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import."""

    added: int
    """Items that are new."""
    unchanged: int
    """Items that were here with the same value."""
    replaced: int
    """Items whose value was replaced."""
    kept: tuple[ItemAddress, ...]
    """Items that the store has with another value, and that were left unchanged."""


def export(reader: Reader, *, prefix: Namespace, tier: Tier | None) -> Iterator[str]:
    """Yield a line for each item that the reader may see, superseded ones included, in order of their last change."""
    position = 0
    while found := reader.engine.changes(position, limit=_BATCH):
        position = found[-1].position
        places = [one.address for one in found if not one.is_deleted and within(one.address.namespace, prefix)]
        rows = reader.engine.rows(places, reader.selection())
        yield from (orjson.dumps(_record(row)).decode() for row in rows.values() if tier is None or row.meta.tier is tier)


def edits_of(
    reader: Reader, lines: Iterable[str], *, overwrite: bool, maximum_bytes: int, ttl: float | None
) -> tuple[list[Edit], Imported]:
    """Return the writes that import the items, and the result of the import. All lines are checked first.

    A line of namespace, key and value alone is an item without further origin; it gets a `ttl` in minutes. Raises `InvalidRequest`,
    which names the line, if a line is no item.
    """
    given: dict[ItemAddress, tuple[Record, Meta | None]] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            address, value, meta = _parsed(line, number, maximum_bytes)
            given[address] = value, meta
    edits: list[Edit] = []
    unchanged, replaced, kept = 0, 0, []
    for address, row in _present(reader, list(given)):
        value, meta = given[address]
        if row is not None and _says(row, value, meta):
            unchanged += 1
        elif row is not None and not overwrite:
            kept.append(address)
        else:
            replaced += row is not None
            edits.append(_edit(address, value, meta, ABSENT if row is None else row.version, ttl))
    return edits, Imported(len(edits) - replaced, unchanged, replaced, tuple(kept))


def batches(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield lists of items, each small enough for a transaction."""
    iterator = iter(items)
    while batch := list(islice(iterator, _BATCH)):
        yield batch


def _present(reader: Reader, addresses: Sequence[ItemAddress]) -> Iterator[tuple[ItemAddress, ItemRow | None]]:
    for batch in batches(addresses):
        rows = reader.engine.rows(batch, reader.selection())
        yield from ((address, rows.get(address)) for address in batch)


def _says(row: ItemRow, value: Record, meta: Meta | None) -> bool:
    """Return whether the store has the item already, with the same value and meta."""
    told = row.meta if meta is None else meta._replace(user=row.meta.user)
    return _record(row) == _record(row._replace(value=value, meta=told))


def _edit(address: ItemAddress, value: Record, meta: Meta | None, version: str, ttl: float | None) -> Edit:
    if meta is None:
        return Edit(address=address, value=lambda _: value, if_version=version, ttl=validation.ttl_seconds(ttl))
    return Edit(address=address, value=lambda _: value, if_version=version, index=meta.index, ttl=meta.ttl, told=meta)


def _record(row: ItemRow) -> Record:
    meta = row.meta
    return {
        "namespace": list(row.address.namespace),
        "key": row.address.key,
        "value": row.value,
        "user": meta.user,
        "agent": meta.agent,
        "source": meta.source.value,
        "trust": meta.trust,
        "tier": meta.tier.value,
        "subject": meta.subject,
        "others": list(meta.others),
        "lineage": [[list(address.namespace), address.key] for address in meta.lineage],
        "created_at": _moment(meta.created_at),
        "valid_from": _moment(meta.valid_from),
        "invalid_from": _moment(meta.invalid_from),
        "ttl": meta.ttl and meta.ttl / _SECONDS,
        "index": meta.index if meta.index is None else list(meta.index),
    }


def _parsed(line: str, number: int, maximum_bytes: int) -> tuple[ItemAddress, Record, Meta | None]:
    """Return the item of a line; without meta if the line has none, so that it is stamped as any other write."""
    try:
        record = orjson.loads(line)
        is_plain = isinstance(record, dict) and not record.keys() - _PLAIN
        return _address(record), validation.value(record["value"], maximum_bytes), None if is_plain else _meta(record)
    except InvalidRequest as error:
        raise InvalidRequest(f"line {number}: {error.message}", hint=error.hint) from error
    except KeyError as error:
        hint = "nothing was imported; a line has namespace, key and value alone, or all that `export` writes"
        raise InvalidRequest(f"line {number} has no {error.args[0]!r}", hint=hint) from error
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"line {number} is no exported item: {error!r:.120}", hint="nothing was imported; see `export`") from error


def _address(record: Record) -> ItemAddress:
    # Superseded items have longer keys than others may.
    return ItemAddress(validation.namespace(record["namespace"]), validation.place((), _text(record["key"])).key)


def _meta(record: Record) -> Meta:
    trust = record["trust"]
    if isinstance(trust, bool) or not 0 <= trust <= 1:
        raise InvalidRequest(f"trust is a number from 0 to 1, not {trust!r}")
    meta = Meta(
        user=_text(record["user"]),
        agent=_text(record["agent"]),
        source=Source(record["source"]),
        trust=float(trust),
        tier=Tier(record["tier"]),
        subject=_text(record["subject"]),
        lineage=tuple(ItemAddress(validation.namespace(namespace), _text(key)) for namespace, key in record["lineage"]),
        created_at=datetime.fromisoformat(record["created_at"]).timestamp(),
        valid_from=_optional(record, "valid_from", lambda given: datetime.fromisoformat(given).timestamp()),
        invalid_from=_optional(record, "invalid_from", lambda given: datetime.fromisoformat(given).timestamp()),
        ttl=validation.ttl_seconds(record["ttl"]),
        index=_optional(record, "index", validation.fields),
        others=tuple(map(_text, record["others"])),
    )
    validation.check_meta(meta)
    if meta.others and not meta.subject:
        raise InvalidRequest("it has `others` without a `subject`")
    return meta


def _optional(record: Mapping[str, Any], name: str, read: "Callable[[Any], T]") -> T | None:
    return None if record[name] is None else read(record[name])


def _text(given: object) -> str:
    if not isinstance(given, str):
        raise InvalidRequest(f"{given!r:.80} is no text")
    return given


def _moment(stamp: float | None) -> str | None:
    return None if stamp is None else datetime.fromtimestamp(stamp, UTC).isoformat()
