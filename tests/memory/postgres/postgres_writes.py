"""Writes to an engine as the store makes them, without the store."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from nearfar.orchestrator.memory.engine import Change, Engine, ItemSelection, Transaction
from nearfar.orchestrator.memory.merge import succeed
from nearfar.orchestrator.memory.operation import Dot, Meta
from nearfar.orchestrator.memory.postgres import PostgresEngine
from nearfar.orchestrator.memory.vectors import change_of
from nearfar.protocols.items import ItemAddress

NOW = 1_800_000_000.0
ALL = ItemSelection(now=NOW)
Vector = NDArray[numpy.float32]
Opener = Callable[..., PostgresEngine]


def unit(*numbers: float, width: int = 8) -> Vector:
    """A unit vector that begins with these numbers."""
    padded = numpy.array([*numbers, *[0.0] * (width - len(numbers))], numpy.float32)
    vector: Vector = padded / numpy.linalg.norm(padded)
    return vector


def put(
    engine: Engine, address: ItemAddress, value: Mapping[str, Any] | None, vector: Vector | None = None, meta: Meta | None = None
) -> None:
    """Write a value, or with None a deletion; its field `text` can be searched."""
    put_all(engine, {address: (value, vector)}, meta)


def put_all(engine: Engine, items: Mapping[ItemAddress, tuple[Mapping[str, Any] | None, Vector | None]], meta: Meta | None = None) -> None:
    """The same for several items at once."""
    with engine.transaction() as transaction:
        put_within(transaction, engine.device, items, meta or Meta())


def put_within(
    transaction: Transaction, device: str, items: Mapping[ItemAddress, tuple[Mapping[str, Any] | None, Vector | None]], meta: Meta
) -> None:
    sequence, clock = transaction.reserve(len(items), NOW)
    before = transaction.heads(list(items))
    changes: list[Change] = []
    for offset, (address, (value, vector)) in enumerate(items.items()):
        dot = Dot(device, sequence + offset)
        head = succeed(before.get(address, ()), dot=dot, clock=clock + offset, address=address, value=value, meta=meta)
        vectors = {str(value["text"]): vector} if value and vector is not None else None
        changes.append(change_of(address, [head], now=NOW, fields=["text"], vectors=vectors))
    transaction.apply(changes)


def forget(engine: Engine, addresses: Sequence[ItemAddress]) -> None:
    with engine.transaction() as transaction:
        transaction.apply([Change(address, (), None) for address in addresses])


def value_of(engine: Engine, address: ItemAddress) -> dict[str, Any] | None:
    row = engine.rows([address], ALL).get(address)
    return None if row is None else row.value
