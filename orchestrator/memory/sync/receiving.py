"""Taking in a piece of a peer's log. One with anything that this side would not write itself is refused: the peer is broken or hostile."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from ....protocols import InvalidRequest, PrivacyViolation, SyncRefused
from .. import clock, validation
from ..encoding import decode
from ..engine import Change, Transaction
from ..item import TRUST, Address, Meta, Namespace, Tier
from ..merge import heads_of
from ..operation import Dot, Operation
from ..projection import change_of
from . import books
from .facts import Erasures, Facts
from .keys import opener
from .messages import Batch, Range, Received, SealedOperation
from .peer import Peer
from .replica import LARGEST_LOSS, Replica

_LATEST: Final = 1 << 62
"""Clocks from here on are refused: there must be room to count on from any that is taken."""
_TIMES: Final = (-62_135_510_400.0, 253_370_764_800.0)
"""Seconds since the epoch of the years 1 and 9999: there are no dates beyond."""
_LONGEST: Final = 1024
"""Characters of a name."""
_MOST_DEVICES: Final = 4096
"""That wrote to one item."""
_DEEPEST: Final = 32
"""So many brackets in a whole operation need no further look at how deeply its value is nested."""


def receive(replica: Replica, peer: Peer, device: str, batch: Batch) -> Received:
    """Make a batch of the peer, which spoke as `device`, part of this replica: all of it durably, or nothing.

    A batch that was received before changes nothing. Raises `SyncRefused` for a gap before it, or a device that is shut out;
    `InvalidRequest` and `PrivacyViolation` for what the peer must not send.
    """
    if batch.facts is not None:
        replica.absorb(peer, batch.facts)
    taken = _Taking(replica, peer)
    operations = taken.read(batch)
    with replica.engine.transaction() as transaction:
        replica.check_not_revoked(transaction, peer, device)
        position = books.position(transaction, peer, batch.log)
        if batch.start > position:
            raise SyncRefused(f"the peer's log is here up to {position}, and it goes on at {batch.start}", hint="synchronise again")
        if batch.end < position or (batch.end == position and batch.known is None):
            return Received()
        facts = replica.known_facts(transaction)
        received = taken.apply(transaction, facts, operations)
        taken.note(transaction, facts, batch)
    return received._replace(holes=sum(hole.last - hole.first + 1 for hole in batch.holes))


class _Taking:
    """Takes over what one peer sends."""

    def __init__(self, replica: Replica, peer: Peer) -> None:
        self._replica = replica
        self._peer = peer
        self._now = replica.now()

    def read(self, batch: Batch) -> list[Operation]:
        """The batch's operations. Raises what `receive` raises for them."""
        unseal = opener(batch.keys)
        for hole in batch.holes:
            _check_range(hole)
        return [self._read(unseal, sealed) for sealed in batch.operations]

    def _read(self, unseal: Callable[[Dot, bytes], bytes | None], sealed: SealedOperation) -> Operation:
        try:
            payload = unseal(*sealed)
        except ValueError as error:
            raise InvalidRequest(str(error), hint="the peer is broken, or somebody changed what it sent") from error
        if payload is None:
            raise SyncRefused("an operation is sealed with a key that the peer did not hand on", hint="synchronise again")
        return read_operation(sealed.dot, payload, self._peer, maximum_bytes=self._replica.maximum_bytes)

    def apply(self, transaction: Transaction, facts: Facts, operations: Sequence[Operation]) -> Received:
        """Merge those into the items which are new, and meant to be here."""
        had = books.had(transaction, self._replica.engine.device)
        unknown = (one for one in operations if one.dot.sequence > had.get(one.dot.device, 0))
        erasures = Erasures(facts.erasures.values())
        fresh = [left for one in unknown if (left := erasures.left_of(one)) is not None]
        for device in {one.dot.device for one in fresh}:
            self._check_author(facts, device)
        arriving: dict[Address, list[Operation]] = {}
        for one in fresh:
            arriving.setdefault(one.address, []).append(one)
        present = transaction.heads(list(arriving))
        changes, refused = [], 0
        for address, added in arriving.items():
            heads = present.get(address, ())
            allowed = [one for one in added if not _is_taken(heads, one)] if heads else added
            refused += len(added) - len(allowed)
            if allowed:
                changes.append(self._change(address, heads, allowed))
        transaction.apply(changes)
        books.note_arrivals(transaction, (one.dot for one in fresh if not one.is_withdrawn))
        latest = max((one.clock for one in fresh), default=0)
        transaction.learn({}, clock.received(0, latest, self._now))
        return Received(len(fresh) - refused, 0, refused, sum(change.conflicts > 0 for change in changes))

    def note(self, transaction: Transaction, facts: Facts, batch: Batch) -> None:
        """Keep how far the peer's log is here."""
        books.keep_position(transaction, self._peer, batch.log, batch.end)
        if batch.known is not None:
            claims = {device: sequence for device, sequence in batch.known.items() if self._may_count(facts, device)}
            had = transaction.known()
            if any(sequence >= had.get(device, 0) + LARGEST_LOSS for device, sequence in claims.items()):
                raise InvalidRequest("the peer claims more writes than there can be", hint="the peer is broken, or no nearfar store")
            transaction.learn(claims, 0)

    def _change(self, address: Address, heads: Sequence[Operation], added: Sequence[Operation]) -> Change:
        every = (*heads, *added)
        _check_context(every)
        change = change_of(address, every if len(every) == 1 else heads_of(every), now=self._now, fields=self._replica.fields)
        row = change.row
        if row is None or row.meta.ttl is None:
            return change
        # It lives from its write on and not from now, or a device that was away for long would bring back what is over.
        return change._replace(row=row._replace(expires_at=min(self._now, row.updated_at) + row.meta.ttl))

    def _may_count(self, facts: Facts, device: str) -> bool:
        # How many writes of its own there are, a replica hears when it is greeted.
        return device != self._replica.engine.device and self._may_speak_for(facts, device)

    def _check_author(self, facts: Facts, device: str) -> None:
        if not self._may_speak_for(facts, device):
            raise InvalidRequest(f"the peer sent a write of device {device}, which it does not speak for", hint="let its own hub send it")

    def _may_speak_for(self, facts: Facts, device: str) -> bool:
        if device == self._replica.engine.device:
            return self._peer.is_relay or self._peer.user == self._replica.user
        return self._peer.is_relay or facts.users.get(device) == self._peer.user


def read_operation(dot: Dot, payload: bytes, peer: Peer, *, maximum_bytes: int) -> Operation:
    """An operation that a peer sent, if it is one that this side would write itself and that the peer may send.

    Raises `InvalidRequest`, and `PrivacyViolation` for content that must not have left its device.
    """
    try:
        operation = decode(dot, payload)
    except ValueError as error:
        raise InvalidRequest(str(error), hint="the peer is broken, or no nearfar store") from error
    if not dot.device or len(dot.device) > _LONGEST or not 0 < dot.sequence < _LATEST:
        raise InvalidRequest("the peer sent a write of a device that cannot be", hint="the peer is broken, or no nearfar store")
    _check_address(*operation.address)
    is_small = len(payload) <= maximum_bytes and payload.count(b"{") + payload.count(b"[") <= _DEEPEST
    if operation.value is not None and not is_small:
        validation.value(operation.value, maximum_bytes)
    _check_causality(operation)
    _check_meta(operation.meta, peer, is_own=True)
    for sibling in operation.siblings:
        _check_meta(sibling.meta, peer, is_own=sibling.meta.tier is not Tier.SHARED)
    if operation.is_withdrawn and operation.value is not None:
        raise InvalidRequest("the peer sent the content of an item that is withdrawn")
    return operation


def _check_address(namespace: Namespace, key: str) -> None:
    if not _is_namespace(namespace):
        raise InvalidRequest("the peer sent an item outside of any namespace")
    if not key or len(key) > _LONGEST or not key.isprintable():
        validation.place(namespace, key)


@lru_cache(maxsize=1024)
def _is_namespace(namespace: Namespace) -> bool:
    """Raises `InvalidRequest` for one that cannot be one."""
    return bool(validation.prefix(namespace))


def _check_context(heads: Sequence[Operation]) -> None:
    """Together they must not know of more than the next write may name, or no peer would take that."""
    known = sum(len(head.context) + len(head.unseen) for head in heads)
    if known > _MOST_DEVICES:
        raise InvalidRequest(
            f"the peer sent an item that {known:,} devices wrote to", hint=f"more than {_MOST_DEVICES:,} are not kept apart"
        )


def _check_causality(operation: Operation) -> None:
    _check_context([operation])
    dot, clock = operation.dot, operation.clock
    if max((stamp.clock for stamp in operation.stamps.values()), default=0) > clock or operation.context.get(dot.device, 0) >= dot.sequence:
        raise InvalidRequest(f"write {dot.sequence} of device {dot.device} says that it came before itself")
    if max((sibling.clock for sibling in operation.siblings), default=clock) >= _LATEST or clock >= _LATEST:
        raise InvalidRequest(f"write {dot.sequence} of device {dot.device} has a clock that nothing can follow")


def _check_meta(meta: Meta, peer: Peer, *, is_own: bool) -> None:
    if meta.tier is Tier.DEVICE:
        raise PrivacyViolation("the peer sent an item that must not leave its device", hint="update nearfar on the peer")
    if is_own and not peer.is_relay and meta.user != peer.user:
        raise InvalidRequest(f"the peer sent an item of another user than {peer.user!r}")
    if not 0 <= meta.trust <= min(TRUST[meta.source], peer.maximum_trust):
        raise InvalidRequest(f"the peer claims a trust of {meta.trust:g} for what comes from source {meta.source}")
    times = (meta.created_at, meta.valid_from or 0, meta.invalid_from or 0)
    if min(times) < _TIMES[0] or max(times) > _TIMES[1]:
        raise InvalidRequest("the peer sent an item of a time that cannot be", hint="the peer is broken, or no nearfar store")
    if meta.ttl is not None and meta.ttl <= 0:
        raise InvalidRequest("the peer sent an item that lives for no time")
    if len(meta.user) + len(meta.agent) + len(meta.subject) > _LONGEST:
        raise InvalidRequest("the peer sent a name that is too long")
    if meta.others:
        _check_others(meta)
    validation.check_origin(meta)


def _check_others(meta: Meta) -> None:
    if not all(0 < len(name) <= _LONGEST for name in meta.subjects):
        raise InvalidRequest("the peer sent an item about somebody without a name, or with one that is too long")


def _is_taken(heads: Sequence[Operation], operation: Operation) -> bool:
    """Whether the address was always private to somebody else: users share addresses only where both share their items."""
    return any(Tier.SHARED not in (head.meta.tier, head.reach) and head.meta.user != operation.meta.user for head in heads)


def _check_range(hole: Range) -> None:
    if not 0 < hole.first <= hole.last < _LATEST:
        raise InvalidRequest("the peer sent a hole that is none")
