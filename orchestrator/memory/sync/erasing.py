"""Erase items and everything derived from them, so that none of their data is left in the database."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ....protocols.namespaces import ItemAddress
from ....protocols.tiers import Tier
from ..engine import Change, Engine, Transaction
from ..erasing import Wording, operations_of
from ..item import address_tag
from ..operation import Dot, Operation, Sibling
from ..projection import change_of
from .facts import Erasure, Erasures, without_siblings


@dataclass(frozen=True, slots=True)
class Forgetting:
    """A transaction in which items are erased."""

    engine: Engine
    transaction: Transaction
    fields: Sequence[str]
    now: float
    wording: Wording = field(default_factory=Wording)
    """The name of the erasures' subject, if it is known here: items with the name in their text are erased, too."""

    def named(self) -> Iterator[Dot]:
        """Yield the writes whose text has the name."""
        if self.wording.name is None:
            return
        for operation in operations_of(self.engine):
            yield from (write.dot for write in _writes(operation) if self.wording.is_named_in(write.value))


def forget(forgetting: Forgetting, erasures: Sequence[Erasure]) -> tuple[list[ItemAddress], list[Erasure]]:
    """Drop the operations that the erasures cover, and those derived from them.

    Returns the items that are gone completely, and the erasures with what the dropped writes had overwritten.
    """
    reached = _reached(forgetting, erasures)
    changes: list[Change] = []
    for address, heads in forgetting.transaction.heads(sorted({one.operation.address for one in reached.values()})).items():
        left = [reached[head.dot].left if head.dot in reached else head for head in heads]
        changes.append(_change(forgetting, address, [head for head in left if head is not None]))
    # The engine removes all data of an item only if the whole item is forgotten.
    forgetting.transaction.apply([Change(change.address, (), None) for change in changes])
    forgetting.transaction.apply([change for change in changes if change.heads])
    grown = {erasure.id: erasure for erasure in erasures}
    for one in reached.values():
        grown |= {erasure.id: grown[erasure.id] | _overwritten(erasure, one.operation) for erasure in one.by}
    return [change.address for change in changes if not change.heads], list(grown.values())


def _overwritten(erasure: Erasure, dropped: Operation) -> Erasure:
    """Return the erasure with the dropped write and those that it overwrote, if other replicas may have these and would not find them."""
    needs_no_mention = dropped.meta.tier is Tier.DEVICE or erasure.names(dropped.address, dropped.meta)
    if dropped.reach is Tier.DEVICE and needs_no_mention:
        return erasure
    device, sequence = dropped.dot
    return replace(erasure, overwritten={address_tag(dropped.address): {**dropped.context, device: sequence}})


def _change(forgetting: Forgetting, address: ItemAddress, heads: Sequence[Operation]) -> Change:
    return change_of(address, heads, now=forgetting.now, fields=forgetting.fields) if heads else Change(address, (), None)


@dataclass(frozen=True, slots=True)
class _Reached:
    """A write that erasures reach."""

    operation: Operation
    by: list[Erasure]
    """The erasures by which the whole write is dropped."""
    left: Operation | None


@dataclass(frozen=True, slots=True)
class _Reach:
    """The writes that erasures reach, apart from those that they cover by themselves."""

    named: frozenset[Dot]
    """Writes whose text names the subject of the erasures."""
    sources: dict[ItemAddress, set[str]] = field(default_factory=dict)
    """Items with dropped writes, and the erasures that dropped them."""

    def has(self, write: Operation | Sibling, erasure: Erasure) -> bool:
        """Return whether a value has the name, or was derived from an erased item before its writer heard of the erasure.

        A value that another user derived is that user's own.
        """
        if not erasure.precedes(write.dot) or erasure.user not in (None, write.meta.user):
            return False
        return write.dot in self.named or any(erasure.id in self.sources.get(address, ()) for address in write.meta.lineage)


def _reached(forgetting: Forgetting, erasures: Sequence[Erasure]) -> dict[Dot, _Reached]:
    """Return the writes that erasures reach."""
    reached: dict[Dot, _Reached] = {}
    index, by_id = Erasures(erasures), {erasure.id: erasure for erasure in erasures}
    reach = _Reach(frozenset(forgetting.named()))
    is_growing = True
    while is_growing:
        is_growing = False
        for operation in operations_of(forgetting.engine):
            derived = {id for address in _lineage(operation) for id in reach.sources.get(address, ())}
            others = by_id if any(write.dot in reach.named for write in _writes(operation)) else derived
            near = {erasure.id: erasure for erasure in (*index.near(operation), *(by_id[id] for id in sorted(others)))}
            one = _left(operation, list(near.values()), reach) if near else None
            if one is not None and one != reached.get(operation.dot):
                reached[operation.dot] = one
                reach.sources.setdefault(operation.address, set()).update(erasure.id for erasure in one.by)
                is_growing = True
    return reached


def _writes(operation: Operation) -> Iterator[Operation | Sibling]:
    yield operation
    yield from operation.siblings


def _lineage(operation: Operation) -> set[ItemAddress]:
    """Return the lineage of all values in an operation."""
    return {address for meta in (operation.meta, *(sibling.meta for sibling in operation.siblings)) for address in meta.lineage}


def _left(operation: Operation, erasures: Sequence[Erasure], reach: _Reach) -> _Reached | None:
    by = [one for one in erasures if one.covers(operation) or reach.has(operation, one)]
    if by:
        return _Reached(operation, by, None)
    left = without_siblings(
        operation,
        lambda sibling: any(one.covers_sibling(operation.address, sibling) or reach.has(sibling, one) for one in erasures),
    )
    return None if left is operation else _Reached(operation, [], left)
