"""Send a part of a replica's log to a peer, and receive one.

Permitted operations are sent whole, all others as numbers. A batch with anything that this side would not write itself is refused: the
peer is broken or hostile.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from ....protocols import InvalidRequest, PrivacyViolation, SyncRefused
from ....protocols.items import TRUST, ItemAddress, Namespace, Tier
from .. import validation
from ..engine import Change, Logged, Transaction
from ..merge import heads_of
from ..operation import NEVER, Dot, Meta, Operation, decode, encode, subjects_of
from ..operation import received as advance_clock
from ..vectors import change_of
from . import LARGEST_LOSS, Replica, books
from .keys import SubjectKey, opener
from .messages import (
    Batch,
    Disclosure,
    Erasures,
    Peer,
    Received,
    Request,
    SealedOperation,
    SharedFacts,
    WriteRange,
    check_devices,
    for_peer,
)

_PAGE: Final = 128
"""Operations that are read at once: few enough that most are gone before garbage collection begins."""
BATCH_BYTES: Final = 1 << 19
"""A few batches fit into memory whatever is sent, and the transaction that takes one in is short."""
_EXAMPLES: Final = 3


@dataclass(slots=True)
class Leaving:
    """The part of one namespace that would be sent to a peer."""

    items: int = 0
    bytes: int = 0
    withdrawn: int = 0
    """Items of which the peer would hear only that they are withdrawn."""
    held_back: int = 0
    """Items that are not sent."""
    examples: list[ItemAddress] = field(default_factory=list)
    """A few of the items that would be sent."""


def outgoing(replica: Replica, peer: Peer, request: Request) -> dict[Namespace, Leaving]:
    """Return what `batches` would send, by namespace."""
    plan: dict[Namespace, Leaving] = {}
    for logged in _Log(replica, peer, request).operations():
        operation = logged.operation
        part, shown = for_peer(operation, peer)
        leaving = plan.setdefault(operation.address.namespace, Leaving())
        match part:
            case Disclosure.NUMBER:
                leaving.held_back += 1
            case Disclosure.NOTICE:
                leaving.withdrawn += 1
            case Disclosure.WHOLE:
                leaving.items += 1
                leaving.bytes += len(_payload(logged, shown))
                if len(leaving.examples) < _EXAMPLES:
                    leaving.examples.append(operation.address)
    return plan


def batches(replica: Replica, peer: Peer, request: Request, *, batch_bytes: int = BATCH_BYTES) -> Iterator[Batch]:
    """Yield the replica's log from the requested position on. The last batch names what the peer knows once it has all of them.

    A batch ends with the operation that brings it over `batch_bytes`. It is in no transaction while it waits for its reader.
    """
    log = _Log(replica, peer, request)
    packer = _Packer(replica, peer, log.name, log.end)
    for logged in log.operations():
        if packer.add(logged) >= batch_bytes:
            log.note_told(logged.position)
            yield packer.packed(logged.position)
    log.note_told(log.end)
    yield replace(packer.packed(log.end), known=log.claims())


class _Log:
    """The part of the replica's log that the peer lacks."""

    def __init__(self, replica: Replica, peer: Peer, request: Request) -> None:
        with replica.engine.transaction() as transaction:
            replica.notice_copy(transaction, peer, request)
            self.name = books.log(transaction)
            # Read before the log, so that the log has all these writes: the successor of a superseded write comes later in it.
            self._own = transaction.known()
        self._replica = replica
        self._request = request
        self._users = replica.facts().users
        self.end = request.position if request.log == self.name else 0
        """The position up to which the log was read."""

    def operations(self) -> Iterator[Logged]:
        known = self._request.known
        while page := self._page():
            for logged in page:
                device, sequence = logged.operation.dot
                if sequence > known.get(device, 0) and self._may_tell(logged.operation):
                    yield logged
            self.end = page[-1].position

    def _page(self) -> list[Logged]:
        """Return the next heads. Heads before the first one that the peer lacks are not read, such as those that it has just sent
        itself."""
        engine = self._replica.engine
        end = engine.position()
        first = engine.first_unknown(self.end, self._request.known)
        if first is None:
            self.end = max(self.end, end)
            return []
        self.end = first - 1
        return engine.operations(self.end, limit=_PAGE)

    def note_told(self, position: int) -> None:
        """Record that the peer is about to be sent this much."""
        with self._replica.engine.transaction() as transaction:
            if books.log(transaction) == self.name and position > books.told(transaction).position:
                books.keep_told(transaction, books.Told(position, self._own.get(self._replica.engine.device, 0)))

    def claims(self) -> dict[str, int]:
        """Return the writes that the peer may count as known when it has the whole log."""
        return {device: sequence for device, sequence in self._own.items() if self._may_speak_for(device)}

    def _may_tell(self, operation: Operation) -> bool:
        if self._request.takes_all:
            return True
        return self._may_speak_for(operation.dot.device) and operation.meta.user == self._replica.user

    def _may_speak_for(self, device: str) -> bool:
        """Return whether the peer accepts statements of this replica about the device's writes."""
        return self._request.takes_all or (self._replica.user is not None and self._users.get(device) == self._replica.user)


class _Packer:
    """Packs operations into batches."""

    def __init__(self, replica: Replica, peer: Peer, log: str, start: int) -> None:
        self._replica = replica
        self._peer = peer
        self._log = log
        self._start = start
        self._facts: SharedFacts | None = None
        self._begin()

    def _begin(self) -> None:
        self._operations: list[SealedOperation] = []
        self._holes: dict[str, list[int]] = {}
        self._keys: set[SubjectKey] = set()
        self._bytes = 0

    def add(self, logged: Logged) -> int:
        """Add an operation to the batch, and return the batch's size."""
        part, shown = for_peer(logged.operation, self._peer)
        if part is Disclosure.NUMBER:
            self._holes.setdefault(logged.operation.dot.device, []).append(logged.operation.dot.sequence)
            return self._bytes
        subjects = subjects_of(shown)
        payload = _payload(logged, shown)
        if subjects:
            payload = self._replica.keys.seal(shown.dot, subjects, payload)
            self._keys.update(self._replica.keys.handed_on(subjects))
        self._operations.append(SealedOperation(shown.dot, payload))
        self._bytes += len(payload)
        return self._bytes

    def packed(self, end: int) -> Batch:
        """Return the batch up to here, and begin another one."""
        facts = self._replica.facts()  # read after the operations: their writers knew no more than this
        holes = tuple(WriteRange(device, *run) for device, numbers in self._holes.items() for run in books.runs(sorted(numbers)))
        fresh = None if facts == self._facts else facts
        batch = Batch(self._log, self._start, end, tuple(self._operations), holes, tuple(sorted(self._keys)), fresh)
        self._facts = facts
        self._start = end
        self._begin()
        return batch


def _payload(logged: Logged, shown: Operation) -> bytes:
    """Return the part of an operation that the peer may see, as JSON."""
    return logged.payload if shown is logged.operation and logged.payload else encode(shown)


_LATEST: Final = 1 << 62
"""Clocks from here on are refused: every clock that is accepted must leave room to count on."""
_LONGEST: Final = 1024
"""Characters of a name."""
_MOST_DEVICES: Final = 4096
"""The most devices that wrote to one item."""
_AT_ONCE: Final = 32
"""Operations that are handled together: few enough that their objects are gone before garbage collection begins."""
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""NUL as JSON writes it, after an even number of backslashes: after an odd one, `u0000` is plain text."""
_DEEPEST: Final = 32
"""An operation with at most this many brackets needs no check of how deeply its value is nested."""
_LARGE: Final = re.compile(rb"\d{19}")
"""Whole numbers of more than 64 bits have as many digits, and few others do."""
_FLAT: Final = frozenset((str, int, float, bool, type(None)))
"""The types in a value that is not nested."""


def receive(replica: Replica, peer: Peer, device: str, batch: Batch) -> Received:
    """Merge a batch of the peer, which spoke as `device`, into this replica: all of it durably, or nothing.

    A batch that was received before changes nothing. Raises `SyncRefused` for a gap before it, or a revoked device; `InvalidRequest` and
    `PrivacyViolation` for data that the peer must not send.
    """
    if batch.facts is not None:
        replica.absorb(peer, batch.facts)
    with replica.engine.transaction() as transaction:
        replica.check_not_revoked(transaction, peer, device)
        position = books.position(transaction, peer, batch.log)
        if batch.start > position:
            raise SyncRefused(f"a part of the peer's log is missing: from {position} to {batch.start}", hint="synchronise again")
        if batch.end < position or (batch.end == position and batch.known is None):
            return Received()
        _check_holes(batch.holes)
        taking = _Taking(replica, peer, transaction, opener(batch.keys))
        for start in range(0, len(batch.operations), _AT_ONCE):
            taking.take(batch.operations[start : start + _AT_ONCE])
        taking.note(batch)
    return taking.received(batch.holes)


class _Taking:
    """Takes over a batch of a peer within a transaction."""

    def __init__(self, replica: Replica, peer: Peer, transaction: Transaction, unseal: Callable[[Dot, bytes], bytes | None]) -> None:
        self._replica = replica
        self._peer = peer
        self._transaction = transaction
        self._unseal = unseal
        self._now = replica.now()
        self._facts = replica.known_facts(transaction)
        self._erasures = Erasures(self._facts.erasures.values())
        self._had = books.had(transaction, replica.engine.device)
        self._authors: set[str] = set()
        """Devices that the peer may speak for."""
        self._arrived: dict[str, list[int]] = {}
        """By device, the numbers of writes that came with their content."""
        self._latest = 0
        """Greatest clock of the new operations."""
        self._taken = 0
        self._refused = 0
        self._in_conflict: set[ItemAddress] = set()

    def take(self, operations: Sequence[SealedOperation]) -> None:
        """Merge new and permitted operations into their items. Raises what `receive` raises for operations."""
        arriving: dict[ItemAddress, list[Logged]] = {}
        for sealed in operations:
            arrived = self._left_of(self._read(sealed))
            if arrived is not None:
                arriving.setdefault(arrived.operation.address, []).append(arrived)
        present = self._transaction.heads(list(arriving))
        changes = [self._change(address, present.get(address, ()), some) for address, some in arriving.items()]
        self._transaction.apply([change for change in changes if change is not None])

    def note(self, batch: Batch) -> None:
        """Record which writes have arrived, and the position up to which the peer's log is here."""
        books.note_arrivals(self._transaction, self._arrived)
        self._transaction.learn({}, advance_clock(0, self._latest, self._now))
        books.keep_position(self._transaction, self._peer, batch.log, batch.end)
        if batch.known is not None:
            claims = {device: sequence for device, sequence in batch.known.items() if self._may_count(device)}
            had = self._transaction.known()
            if any(sequence >= had.get(device, 0) + LARGEST_LOSS for device, sequence in claims.items()):
                raise InvalidRequest("the peer claims more writes than are possible", hint="the peer is broken, or not a nearfar store")
            check_devices({*had, *claims})
            self._transaction.learn(claims, 0)

    def received(self, holes: Sequence[WriteRange]) -> Received:
        """Return the result of the batch."""
        return Received(self._taken, sum(hole.last - hole.first + 1 for hole in holes), self._refused, len(self._in_conflict))

    def _read(self, sealed: SealedOperation) -> Logged:
        try:
            payload = self._unseal(*sealed)
        except ValueError as error:
            raise InvalidRequest(str(error), hint="the peer is broken, or its message was changed on the way") from error
        if payload is None:
            raise SyncRefused("an operation is sealed with a key that the peer did not send", hint="synchronise again")
        operation = read_operation(sealed.dot, payload, self._peer, maximum_bytes=self._replica.maximum_bytes)
        # A payload larger than the largest value is mostly blanks.
        return Logged(0, operation, payload if len(payload) <= self._replica.maximum_bytes else None)

    def _left_of(self, arrived: Logged) -> Logged | None:
        """Return the part of an operation that is kept; None if it is known here or was erased."""
        device, sequence = arrived.operation.dot
        if sequence <= self._had.get(device, 0):
            return None
        left = self._erasures.left_of(arrived.operation)
        if left is None:
            return None
        if device not in self._authors:
            if not self._may_speak_for(device):
                message = f"the peer sent a write of device {device}, which it does not speak for"
                raise InvalidRequest(message, hint="let its own hub send it")
            self._authors.add(device)
        self._latest = max(self._latest, left.clock)
        if not left.is_withdrawn:
            self._arrived.setdefault(device, []).append(sequence)
        return arrived if left is arrived.operation else Logged(0, left)

    def _change(self, address: ItemAddress, heads: Sequence[Operation], arrived: Sequence[Logged]) -> Change | None:
        allowed = [one for one in arrived if not _is_taken(heads, one.operation, self._peer)] if heads else arrived
        self._refused += len(arrived) - len(allowed)
        self._taken += len(allowed)
        if not allowed:
            return None
        left: tuple[Operation, ...] = (*heads, *[one.operation for one in allowed])
        if len(left) > 1:
            _check_context(left)
            left = heads_of(left)
        payload = allowed[0].payload if len(left) == len(allowed) == 1 and left[0] is allowed[0].operation else None
        change = change_of(address, left, now=self._now, fields=self._replica.fields, payload=payload)
        if change.conflicts:
            self._in_conflict.add(address)
        return self._lasting_from_its_write(change)

    def _lasting_from_its_write(self, change: Change) -> Change:
        """Return the change with an expiry that counts from the write, not from now: otherwise a device that was away for long would
        bring back expired items."""
        row = change.row
        if row is None or row.meta.ttl is None:
            return change
        return change._replace(row=row._replace(expires_at=min(self._now, row.updated_at) + row.meta.ttl))

    def _may_count(self, device: str) -> bool:
        # A replica learns the number of its own writes from hellos.
        return device != self._replica.engine.device and self._may_speak_for(device)

    def _may_speak_for(self, device: str) -> bool:
        if device == self._replica.engine.device:
            return self._peer.is_relay or self._peer.user == self._replica.user
        return self._peer.is_relay or self._facts.users.get(device) == self._peer.user


def read_operation(dot: Dot, payload: bytes, peer: Peer, *, maximum_bytes: int) -> Operation:
    """Decode an operation from a peer, and check that this side would write it itself and that the peer may send it.

    Raises `InvalidRequest`, and `PrivacyViolation` for content that must not have left its device.
    """
    try:
        operation = decode(dot, payload)
    except ValueError as error:
        raise InvalidRequest(str(error), hint="the peer is broken, or not a nearfar store") from error
    if dot.sequence == 0:
        raise InvalidRequest("the peer sent a write without a number", hint="the peer is broken, or not a nearfar store")
    _check_dot(dot)
    _check_address(*operation.address)
    if b"\\u0000" in payload and _NUL.search(payload):
        raise InvalidRequest("the peer sent a character that cannot be stored: NUL")
    for write in operation.writes:
        if write.value is not None and (len(payload) > maximum_bytes or not _is_plain(write.value, payload)):
            validation.value(write.value, maximum_bytes)
    _check_causality(operation)
    for write in operation.writes:
        _check_meta(write.meta, peer)
    if operation.is_withdrawn and operation.value is not None:
        raise InvalidRequest("the peer sent the content of an item that is withdrawn")
    return operation


def _is_plain(value: Mapping[str, Any], payload: bytes) -> bool:
    """Return whether the value needs no check of its depth and of its numbers."""
    if _LARGE.search(payload):
        return False
    return _FLAT.issuperset(map(type, value.values())) or payload.count(b"{") + payload.count(b"[") <= _DEEPEST


def _check_address(namespace: Namespace, key: str) -> None:
    if not _is_namespace(namespace):
        raise InvalidRequest("the peer sent an item without a namespace")
    if not key or len(key) > _LONGEST or not key.isprintable():
        validation.place(namespace, key)


@lru_cache(maxsize=1024)
def _is_namespace(namespace: Namespace) -> bool:
    """Return whether the labels are a namespace to write into. Raises `InvalidRequest` for invalid labels."""
    return bool(validation.prefix(namespace))


def _check_context(heads: Sequence[Operation]) -> None:
    """Check that the heads together know of no more writes than the next write may name: otherwise every peer would refuse that one."""
    known = 0
    for head in heads:
        known += len(head.context) + len(head.unseen)
    if known > _MOST_DEVICES:
        raise InvalidRequest(
            f"the peer sent an item that {known:,} devices wrote to", hint=f"more than {_MOST_DEVICES:,} are not kept apart"
        )


def _check_dot(dot: Dot) -> None:
    if not 0 < len(dot.device) <= _LONGEST or dot.sequence >= _LATEST:
        raise InvalidRequest(
            "the peer sent a write of a device with an invalid name or number", hint="the peer is broken, or not a nearfar store"
        )


def _check_causality(operation: Operation) -> None:
    if operation.context or operation.unseen:
        _check_context((operation,))
    dot, clock = operation.dot, operation.clock
    before = [*operation.stamps.values(), *([] if operation.base in (None, NEVER) else [operation.whole])]
    if operation.knew(dot) or not all(stamp == operation.stamp or (stamp.clock < clock and operation.knew(stamp.dot)) for stamp in before):
        raise InvalidRequest(f"write {dot.sequence} of device {dot.device} claims to come before itself")
    lost = [stamp for sibling in operation.siblings for stamp in sibling.lost.values()]
    dots = [*operation.context.items(), *operation.unseen, *[stamp.dot for stamp in lost], *[one.dot for one in operation.siblings]]
    for device, sequence in dots:
        _check_dot(Dot(device, sequence))
    if max([clock, *[stamp.clock for stamp in lost], *[sibling.clock for sibling in operation.siblings]]) >= _LATEST:
        raise InvalidRequest(f"write {dot.sequence} of device {dot.device} has a clock that is too large")


def _check_meta(meta: Meta, peer: Peer) -> None:
    if meta.tier is Tier.DEVICE:
        raise PrivacyViolation("the peer sent an item that must not leave its device", hint="update nearfar on the peer")
    if not peer.is_relay and meta.user != peer.user:
        raise InvalidRequest(f"the peer sent an item of another user than {peer.user!r}")
    if not 0 <= meta.trust <= min(TRUST[meta.source], peer.maximum_trust):
        raise InvalidRequest(f"the peer claims a trust of {meta.trust:g} for an item with source {meta.source}")
    validation.check_meta(meta)


def _is_taken(heads: Sequence[Operation], operation: Operation, peer: Peer) -> bool:
    """Return whether another user has an item at the address: only its owner writes there, shared or not.

    A hub has checked that already for operations that it relays; then only an item that was always private here conflicts.
    """
    others = (head for head in heads if head.meta.user != operation.meta.user)
    return any(not peer.is_relay or Tier.SHARED not in (head.meta.tier, head.reach) for head in others)


def _check_holes(holes: Sequence[WriteRange]) -> None:
    if not all(0 < hole.first <= hole.last < _LATEST for hole in holes) or sum(hole.last - hole.first for hole in holes) >= _LATEST:
        raise InvalidRequest("the peer sent an invalid range of writes")
