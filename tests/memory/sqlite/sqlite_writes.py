"""Writes to an engine as the store makes them, without the store."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from nearfar.orchestrator.memory.engine import Change, ItemRow, ItemSelection
from nearfar.orchestrator.memory.merge import merge, succeed
from nearfar.orchestrator.memory.operation import Dot, Meta
from nearfar.orchestrator.memory.sqlite import SqliteEngine
from nearfar.orchestrator.memory.sqlite.transaction import SqliteTransaction
from nearfar.protocols.items import ItemAddress

NOW = 1_800_000_000.0
ALL = ItemSelection(now=NOW)
Vector = NDArray[numpy.float32]


def vector(*numbers: float, width: int = 8) -> Vector:
    """A unit vector that begins with these numbers."""
    padded = numpy.array([*numbers, *[0.0] * (width - len(numbers))], numpy.float32)
    unit: Vector = padded / numpy.linalg.norm(padded)
    return unit


def put(
    engine: SqliteEngine,
    address: ItemAddress,
    value: Mapping[str, Any] | None,
    *,
    meta: Meta | None = None,
    vectors: Sequence[Vector] | None = None,
    now: float = NOW,
) -> None:
    """Write a value, or with None a deletion; its field `text` can be searched, or those that `meta.index` names."""
    with engine.transaction() as transaction:
        put_within(transaction, engine.device, address, value, meta=meta or Meta(), vectors=vectors, now=now)


def put_within(
    transaction: SqliteTransaction,
    device: str,
    address: ItemAddress,
    value: Mapping[str, Any] | None,
    *,
    meta: Meta,
    vectors: Sequence[Vector] | None = None,
    now: float = NOW,
) -> None:
    sequence, clock = transaction.reserve(1, now)
    heads = transaction.heads([address]).get(address, ())
    operation = succeed(heads, dot=Dot(device, sequence), clock=clock, address=address, value=value, meta=meta)
    state = merge([operation])
    expires_at = None if meta.ttl is None else now + meta.ttl
    row = None if state.value is None else ItemRow(address, state.value, state.meta, state.version, device, now, expires_at, 0)
    texts = () if value is None else tuple(str(value[name]) for name in meta.index or ("text",) if name in value)
    transaction.apply([Change(address, (operation,), row, texts, vectors)])


def forget(engine: SqliteEngine, *addresses: ItemAddress) -> None:
    with engine.transaction() as transaction:
        transaction.apply([Change(address, (), None) for address in addresses])


def value_of(engine: SqliteEngine, address: ItemAddress) -> dict[str, Any] | None:
    row = engine.rows([address], ALL).get(address)
    return None if row is None else row.value


def files_of(folder: Path) -> dict[str, bytes]:
    """What is on the disk, by file."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
