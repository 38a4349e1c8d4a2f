"""Read a replica's log for a peer: permitted operations are sent whole, all others as numbers."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from ....protocols.namespaces import ItemAddress, Namespace
from ..encoding import encode, subjects_of
from ..engine import Logged
from ..operation import Operation
from . import books
from .facts import Facts
from .keys import SubjectKey
from .messages import Batch, Part, Peer, Range, Request, SealedOperation, for_peer
from .replica import Replica

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
            case Part.NUMBER:
                leaving.held_back += 1
            case Part.NOTICE:
                leaving.withdrawn += 1
            case Part.WHOLE:
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
        self._facts: Facts | None = None
        self._begin()

    def _begin(self) -> None:
        self._operations: list[SealedOperation] = []
        self._holes: dict[str, list[int]] = {}
        self._keys: set[SubjectKey] = set()
        self._bytes = 0

    def add(self, logged: Logged) -> int:
        """Add an operation to the batch, and return the batch's size."""
        part, shown = for_peer(logged.operation, self._peer)
        if part is Part.NUMBER:
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
        holes = tuple(Range(device, *run) for device, numbers in self._holes.items() for run in books.runs(sorted(numbers)))
        fresh = None if facts == self._facts else facts
        batch = Batch(self._log, self._start, end, tuple(self._operations), holes, tuple(sorted(self._keys)), fresh)
        self._facts = facts
        self._start = end
        self._begin()
        return batch


def _payload(logged: Logged, shown: Operation) -> bytes:
    """Return the part of an operation that the peer may see, as JSON."""
    return logged.payload if shown is logged.operation and logged.payload else encode(shown)
