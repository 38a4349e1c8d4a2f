"""Forgetting items so that nothing of them is left in the database, and what was derived from them neither."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ..engine import Change, Engine, Transaction
from ..item import Address, Tier, address_tag
from ..operation import Dot, Operation, Sibling
from ..projection import change_of
from .facts import Erasure, Erasures, without_siblings

_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class Forgetting:
    """A transaction in which items are forgotten."""

    engine: Engine
    transaction: Transaction
    fields: Sequence[str]
    now: float

    def operations(self) -> Iterator[Operation]:
        """All that the replica has."""
        position = 0
        while page := self.engine.operations(position, limit=_PAGE):
            yield from (logged.operation for logged in page)
            position = page[-1].position


def forget(forgetting: Forgetting, erasures: Sequence[Erasure]) -> tuple[list[Address], list[Erasure]]:
    """Drop what the erasures cover, and what was derived from it.

    Returns the items of which nothing is left, and the erasures with what the dropped writes had overwritten.
    """
    reached = _reached(forgetting, erasures)
    changes: list[Change] = []
    for address, heads in forgetting.transaction.heads(sorted({one.operation.address for one in reached.values()})).items():
        left = [reached[head.dot].left if head.dot in reached else head for head in heads]
        changes.append(_change(forgetting, address, [head for head in left if head is not None]))
    # The engine lets go of all that it has of an item only when the whole item goes.
    forgetting.transaction.apply([Change(change.address, (), None) for change in changes])
    forgetting.transaction.apply([change for change in changes if change.heads])
    grown = {erasure.id: erasure for erasure in erasures}
    for one in reached.values():
        grown |= {erasure.id: grown[erasure.id] | _overwritten(erasure, one.operation) for erasure in one.by}
    return [change.address for change in changes if not change.heads], list(grown.values())


def _overwritten(erasure: Erasure, dropped: Operation) -> Erasure:
    """The erasure with the writes that a dropped one was in the place of, and its own notice, where anybody else can have these."""
    if dropped.reach is Tier.DEVICE:
        return erasure
    device, sequence = dropped.dot
    return replace(erasure, overwritten={address_tag(dropped.address): {**dropped.context, device: sequence}})


def _change(forgetting: Forgetting, address: Address, heads: Sequence[Operation]) -> Change:
    return change_of(address, heads, now=forgetting.now, fields=forgetting.fields) if heads else Change(address, (), None)


@dataclass(frozen=True, slots=True)
class _Reached:
    """A write that erasures reach."""

    operation: Operation
    by: list[Erasure]
    """Those because of which it goes as a whole."""
    left: Operation | None


def _reached(forgetting: Forgetting, erasures: Sequence[Erasure]) -> dict[Dot, _Reached]:
    """The writes that erasures reach."""
    reached: dict[Dot, _Reached] = {}
    sources: dict[Address, set[str]] = {}
    """Items of which writes go, by which erasures."""
    index, by_id = Erasures(erasures), {erasure.id: erasure for erasure in erasures}
    is_growing = True
    while is_growing:
        is_growing = False
        for operation in forgetting.operations():
            derived = {id for address in _lineage(operation) for id in sources.get(address, ())}
            near = {erasure.id: erasure for erasure in (*index.near(operation), *(by_id[id] for id in sorted(derived)))}
            one = _reach(operation, list(near.values()), sources) if near else None
            if one is not None and one != reached.get(operation.dot):
                reached[operation.dot] = one
                sources.setdefault(operation.address, set()).update(erasure.id for erasure in one.by)
                is_growing = True
    return reached


def _lineage(operation: Operation) -> set[Address]:
    """What the values in an operation were made of."""
    return {address for meta in (operation.meta, *(sibling.meta for sibling in operation.siblings)) for address in meta.lineage}


def _reach(operation: Operation, erasures: Sequence[Erasure], sources: Mapping[Address, set[str]]) -> _Reached | None:
    by = [one for one in erasures if one.covers(operation) or _is_derived(operation, one, sources)]
    if by:
        return _Reached(operation, by, None)
    left = without_siblings(
        operation,
        lambda sibling: any(one.covers_sibling(operation.address, sibling) or _is_derived(sibling, one, sources) for one in erasures),
    )
    return None if left is operation else _Reached(operation, [], left)


def _is_derived(write: Operation | Sibling, erasure: Erasure, sources: Mapping[Address, set[str]]) -> bool:
    """Return whether a value was made, before its writer heard of the erasure, of something that the erasure reaches."""
    return erasure.precedes(write.dot) and any(erasure.id in sources.get(address, ()) for address in write.meta.lineage)
