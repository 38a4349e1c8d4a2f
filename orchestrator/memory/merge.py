"""How writes that did not know of each other become one item, the same on every device in whatever order they arrive."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .item import Address, Meta, Tier, all_about, strictest, widest
from .operation import Dot, Operation, Sibling, Stamp, VersionVector, version_of, version_of_one


class State(NamedTuple):
    """What the heads of an item come to."""

    value: dict[str, Any] | None
    """None: the item is deleted."""
    meta: Meta
    version: str
    clock: int
    """Of its last write."""
    device: str
    """Of its last write."""
    siblings: tuple[Sibling, ...]
    """Whole values that lost and are not decided on."""


def heads_of(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """Those that no other one stands in for, by their stamps. The rest is superfluous, as are copies with less in them."""
    unique: dict[Dot, Operation] = {}
    for operation in operations:
        if operation.dot not in unique or len(operation.unseen) < len(unique[operation.dot].unseen):
            unique[operation.dot] = operation
    heads = (one for one in unique.values() if not any(other.stands_in_for(one) for other in unique.values()))
    return tuple(sorted(heads, key=lambda head: head.stamp))


def merge(heads: Sequence[Operation]) -> State:
    """The state that `heads`, one or more, come to: per field the last writer wins; a deletion wins over what was written before it.

    A head of which nothing is left becomes a sibling.
    """
    if len(heads) == 1:
        return _alone(heads[0])
    ordered = sorted(heads, key=lambda head: head.stamp)
    last = ordered[-1]
    present = [head for head in ordered if head.value is not None]
    value: dict[str, Any] | None
    value, stamps = (None, {}) if last.value is None else _fields(present)
    lost = [head for head in present if head is not last and _is_lost(head, value, stamps)]
    return State(
        value=value,
        meta=_meta(last, present, lost),
        version=version_of(ordered),
        clock=last.clock,
        device=last.dot.device,
        siblings=(*_undecided(ordered), *map(_sibling, lost)),
    )


def _alone(head: Operation) -> State:
    """What a single head comes to, as nearly all items have: the same as for several, and much faster."""
    value = None if head.value is None else dict(head.value)
    return State(value, head.meta, version_of_one(head), head.clock, head.dot.device, head.siblings)


def succeed(
    heads: Sequence[Operation],
    *,
    dot: Dot,
    clock: int,
    address: Address,
    value: Mapping[str, Any] | None,
    meta: Meta,
    decides: bool = False,
) -> Operation:
    """The write that puts `value` in the place of what `heads` come to; `clock` is raised where the item has a later stamp.

    Siblings stay with the item until a write `decides` on them, or deletes it.
    """
    if not heads:
        return Operation(dot, clock, {}, address, value, meta)
    state = merge(heads)
    written = {} if state.value is None else _stamps(heads)
    clock = max(clock, *(stamp.clock + 1 for stamp in (*written.values(), *(head.stamp for head in heads))))
    own = Stamp(clock, dot.device)
    before = state.value or {}
    reach = widest(tier for head in heads for tier in (head.reach, head.meta.tier))
    stamps: dict[str, Stamp] = {}
    if value is not None:
        stamps = {name: stamp for name, stamp in written.items() if _is_unchanged(name, before, value)}
        if reach is not Tier.DEVICE:  # nobody else has the item yet: no need to name fields that were too private to travel
            stamps |= {name: own for name in before if name not in value}
    siblings = () if decides or value is None else state.siblings
    return Operation(dot, clock, _known(heads), address, value, meta, stamps, siblings, reach, _unseen(heads))


def _stamps(heads: Sequence[Operation]) -> dict[str, Stamp]:
    """When each field was written, removed fields among them."""
    if len(heads) > 1:
        return _fields([head for head in heads if head.value is not None])[1]
    return {**dict.fromkeys(heads[0].value or (), heads[0].stamp), **heads[0].stamps}


def _is_unchanged(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    if name in before and name in after:
        # 1 and True are equal to Python, and not in JSON.
        return bool(before[name] == after[name]) and repr(before[name]) == repr(after[name])
    return name not in before and name not in after


def _unseen(heads: Sequence[Operation]) -> tuple[Dot, ...]:
    seen = {head.dot for head in heads if not head.is_withdrawn}
    return tuple(sorted({dot for head in heads for dot in head.unseen} - seen))


def _known(heads: Sequence[Operation]) -> VersionVector:
    known: dict[str, int] = {}
    for head in heads:
        for device, sequence in (*head.context.items(), head.dot):
            known[device] = max(sequence, known.get(device, 0))
    return known


def _fields(present: Sequence[Operation]) -> tuple[dict[str, Any], dict[str, Stamp]]:
    writers: dict[str, Operation] = {}
    for head in present:
        for name in {**head.stamps, **(head.value or {})}:
            if name not in writers or head.stamp_of(name) > writers[name].stamp_of(name):
                writers[name] = head
    value = {name: head.value[name] for name, head in writers.items() if head.value is not None and name in head.value}
    return value, {name: head.stamp_of(name) for name, head in writers.items()}


def _is_lost(head: Operation, value: Mapping[str, Any] | None, stamps: Mapping[str, Stamp]) -> bool:
    """Whether nothing that this head itself wrote is left, nor was written by others just the same.

    Fields that it removed count only where it wrote none: that they are gone keeps nothing of what it said.
    """
    if value is None:
        return True
    own = [name for name in {**head.stamps, **(head.value or {})} if head.stamp_of(name) == head.stamp]
    said = [name for name in own if name in (head.value or {})] or own
    if not said or any(stamps[name] == head.stamp for name in said):
        return False
    return any(not _is_unchanged(name, head.value or {}, value) for name in said)


def _undecided(heads: Sequence[Operation]) -> list[Sibling]:
    """The siblings that heads carry, without those that a head knew and does not carry: it decided on them."""
    carried = {sibling.dot: sibling for head in heads for sibling in head.siblings}
    decided = {dot for dot in carried for head in heads if head.knew(dot) and all(sibling.dot != dot for sibling in head.siblings)}
    return [carried[dot] for dot in sorted(carried.keys() - decided)]


def _sibling(head: Operation) -> Sibling:
    return Sibling(head.dot, head.clock, dict(head.value or {}), head.meta)


def _meta(last: Operation, present: Sequence[Operation], lost: Sequence[Operation]) -> Meta:
    """That of the last write, but as private and as little believed as the most private and least believed part of the value, and about
    all whom any part of it is about that is not lost."""
    parts = [head.meta for head in present] or [last.meta]
    created_at = min(part.created_at for part in parts)
    subject, others = all_about((last.meta, *(head.meta for head in present if head not in lost)))
    tier, trust = strictest(part.tier for part in parts), min(part.trust for part in parts)
    return last.meta._replace(tier=tier, trust=trust, subject=subject, others=others, created_at=created_at)
