"""Merge writes that did not know of each other into one item, the same on every device in whatever order they arrive."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...protocols.items import ItemAddress, Tier, strictest, widest
from .operation import NEVER, Dot, Meta, Operation, Sibling, Stamp, VersionVector, all_about, version_of, version_of_one

_Part = tuple[str, Stamp]
"""A field with the write that it is from."""


class State(NamedTuple):
    """The merged state of an item's heads."""

    heads: tuple[Operation, ...]
    value: dict[str, Any] | None
    """None: the item is deleted."""
    meta: Meta
    version: str
    clock: int
    """Clock of the item's last write."""
    device: str
    """Device of the item's last write."""
    siblings: tuple[Sibling, ...]
    """Whole values of which a part lost, and which are not resolved."""


def heads_of(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """Return the operations that no other one supersedes, by their stamps. Of copies of one operation, the one with fewer unseen writes
    stays."""
    unique: dict[Dot, Operation] = {}
    for operation in operations:
        if operation.dot not in unique or len(operation.unseen) < len(unique[operation.dot].unseen):
            unique[operation.dot] = operation
    if len(unique) == 1:
        return tuple(unique.values())
    heads = (one for one in unique.values() if not any(other.stands_in_for(one) for other in unique.values()))
    return tuple(sorted(heads, key=lambda head: head.stamp))


def merge(heads: Sequence[Operation]) -> State:
    """Return the state of `heads`, one or more.

    The last write decides which whole value stands, or that the item is deleted. Writes that changed single fields of that same whole
    value are merged into it: per field the last writer wins. A head of which a field lost becomes a sibling, with its whole value.
    """
    if len(heads) == 1:
        return _alone(heads[0])
    ordered = sorted(heads, key=lambda head: head.stamp)
    last = ordered[-1]
    present = [head for head in ordered if head.value is not None]
    shown = _shown(ordered)
    kept = _kept(ordered)
    carried = _carried(ordered, kept - {*shown.fields.items()})
    known = {part for sibling in carried for part in sibling.lost.items()}
    lost = {head.dot: parts for head in present if (parts := _lost(head, shown, kept)) and not parts.items() <= known}
    return State(
        heads=tuple(ordered),
        value=None if last.value is None else shown.value,
        meta=_meta(last, present, [head for head in present if head.dot not in lost or _contributes(head, last, shown)]),
        version=version_of(ordered),
        clock=last.clock,
        device=last.dot.device,
        siblings=(*carried, *(_sibling(head, lost[head.dot]) for head in present if head.dot in lost)),
    )


def _alone(head: Operation) -> State:
    """Return the state of a single head, as nearly all items have: the same as for several, and much faster."""
    value = None if head.value is None else dict(head.value)
    return State((head,), value, head.meta, version_of_one(head), head.clock, head.dot.device, head.siblings)


def succeed(
    heads: Sequence[Operation],
    *,
    dot: Dot,
    clock: int,
    address: ItemAddress,
    value: Mapping[str, Any] | None,
    meta: Meta,
    is_total: bool = True,
    decides: bool = False,
) -> Operation:
    """Return the write that replaces the state of `heads` by `value`; `clock` is raised if the item has a later stamp.

    A write that `is_total` replaces the whole value, any other one changes fields of it. Siblings stay with the item until a write
    `decides` on them, or deletes it.
    """
    is_total = is_total or value is None
    if not heads:
        return Operation(dot, clock, {}, address, value, meta, base=None if is_total else NEVER)
    state, shown = merge(heads), _shown(heads)
    clock = max(clock, *(stamp.clock + 1 for head in heads for stamp in (head.stamp, *head.stamps.values())))
    reach = widest(tier for head in heads for tier in (head.reach, head.meta.tier))
    stamps: dict[str, Stamp] = {}
    if not is_total and value is not None:
        stamps = {name: stamp for name, stamp in shown.fields.items() if _is_equal(name, shown.value, value)}
        if reach is not Tier.DEVICE:  # otherwise no other device has the item, and fields too private to travel need no mention
            stamps |= {name: Stamp(clock, *dot) for name in shown.value if name not in value}
    siblings = () if decides or value is None else state.siblings
    base = None if is_total else shown.whole
    return Operation(dot, clock, _known(heads), address, value, meta, stamps, siblings, reach, _unseen(heads), base)


def _is_equal(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    if name in before and name in after:
        # 1 and True are equal to Python, and not in JSON.
        return bool(before[name] == after[name]) and repr(before[name]) == repr(after[name])
    return name not in before and name not in after


def _unseen(heads: Sequence[Operation]) -> tuple[Dot, ...]:
    seeing = [head for head in heads if not head.is_withdrawn]

    def is_seen(dot: Dot) -> bool:
        return any(head.dot == dot or (head.knew(dot) and dot not in head.unseen) for head in seeing)

    return tuple(sorted({dot for head in heads for dot in head.unseen if not is_seen(dot)}))


def _known(heads: Sequence[Operation]) -> VersionVector:
    known: dict[str, int] = {}
    for head in heads:
        for device, sequence in (*head.context.items(), head.dot):
            known[device] = max(sequence, known.get(device, 0))
    return known


class _Shown(NamedTuple):
    """The value that readers see."""

    value: dict[str, Any]
    """Empty if the item is deleted."""
    fields: dict[str, Stamp]
    """The write that each field is from, removed fields included."""
    whole: Stamp
    """See `Operation.whole`."""


def _shown(heads: Sequence[Operation]) -> _Shown:
    whole = max(heads, key=lambda head: head.stamp).whole
    writers: dict[str, Operation] = {}
    for head in heads:
        for name, stamp in head.fields.items() if head.whole == whole and head.value is not None else ():
            if name not in writers or stamp > writers[name].stamp_of(name):
                writers[name] = head
    value = {name: head.value[name] for name, head in writers.items() if head.value is not None and name in head.value}
    return _Shown(value, {name: head.stamp_of(name) for name, head in writers.items()}, whole)


def _kept(heads: Sequence[Operation]) -> set[_Part]:
    """Return the parts that no writer who saw them has overwritten or resolved; resolved parts are in the write itself, or in its
    siblings."""
    told = [_told(head) for head in heads]
    kept = {part for one in told for parts in one.values() for part in parts}
    for head, one in zip(heads, told, strict=True):
        own = {part for parts in one.values() for part in parts}
        withheld = {part for other in told for dot, parts in other.items() if dot in head.unseen for part in parts}
        kept -= {part for part in kept - own - withheld if head.knew(part[1].dot) and part[1].dot not in head.unseen}
    return kept


def _told(head: Operation) -> dict[Dot, set[_Part]]:
    """Return the parts that a head has of each write: its own fields, and the lost fields of its siblings."""
    return {**{sibling.dot: {*sibling.lost.items()} for sibling in head.siblings}, head.dot: {*head.fields.items()}}


def _carried(heads: Sequence[Operation], kept: set[_Part]) -> list[Sibling]:
    """Return the siblings that heads carry, with those of their fields that are not resolved."""
    carried: dict[Dot, Sibling] = {}
    for sibling in (sibling for head in heads for sibling in head.siblings):
        lost = {**sibling.lost, **(carried[sibling.dot].lost if sibling.dot in carried else {})}
        carried[sibling.dot] = replace(sibling, lost={name: stamp for name, stamp in sorted(lost.items()) if (name, stamp) in kept})
    return [carried[dot] for dot in sorted(carried) if carried[dot].lost]


def _lost(head: Operation, shown: _Shown, kept: set[_Part]) -> dict[str, Stamp]:
    """Return the fields of a head that readers do not see, though no write has replaced them."""
    own = head.value or {}
    parts = {name: stamp for name, stamp in sorted(head.fields.items()) if (name, stamp) in kept}
    return {name: stamp for name, stamp in parts.items() if shown.fields.get(name) != stamp and not _is_equal(name, own, shown.value)}


def _contributes(head: Operation, last: Operation, shown: _Shown) -> bool:
    """Return whether readers see any field of a head that the last write did not know."""
    return head is last or any(shown.fields.get(name) == stamp and not last.knew(stamp.dot) for name, stamp in head.fields.items())


def _sibling(head: Operation, lost: dict[str, Stamp]) -> Sibling:
    return Sibling(head.dot, head.clock, dict(head.value or {}), head.meta, lost)


def _meta(last: Operation, present: Sequence[Operation], shown: Sequence[Operation]) -> Meta:
    """Return the meta of the merged value: that of the last write, but as private and as little trusted as the strictest part of the
    value, and about all subjects of the parts that are shown."""
    parts = [head.meta for head in present] or [last.meta]
    created_at = min(part.created_at for part in parts)
    subject, others = all_about((last.meta, *(head.meta for head in shown)))
    tier, trust = strictest(part.tier for part in parts), min(part.trust for part in parts)
    return last.meta._replace(tier=tier, trust=trust, subject=subject, others=others, created_at=created_at)
