"""Peers of a replica, and the messages between two replicas. `wire.py` converts messages to protobuf."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from ....protocols.tiers import Tier
from ..item import Meta
from ..operation import Dot, Operation, VersionVector
from .facts import Facts
from .keys import SubjectKey

SCHEMA: Final = 3
"""Version of operations, facts and their meaning. Replicas of different schemas do not synchronise."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The introduction of a replica."""

    device: str
    now: float
    """The replica's clock, in seconds since the epoch."""
    known: VersionVector
    facts: Facts
    log: str
    """Name of its log, in which positions count."""
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class Request:
    """The position from which a replica wants to continue."""

    known: VersionVector
    log: str
    """The log in which `position` counts; if it is not the sender's, the sender starts at its beginning."""
    position: int
    """A position in the sender's log, after which to continue."""
    takes_all: bool
    """True: the sender's hub asks, which takes other users' items, too."""


class SealedOperation(NamedTuple):
    """An operation as it travels: encoded, and sealed if it is about a subject."""

    dot: Dot
    payload: bytes


class Range(NamedTuple):
    """Writes of a device that are not for the receiver: `first` to `last`."""

    device: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A part of the sender's log, from after one position up to another."""

    log: str
    """Name of the sender's log; it changes if the sender was restored from a copy."""
    start: int
    end: int
    operations: Sequence[SealedOperation] = ()
    holes: tuple[Range, ...] = ()
    keys: tuple[SubjectKey, ...] = ()
    """Keys of the sealed operations. Never store them together with the batch."""
    facts: Facts | None = None
    """The sender's facts apart from the items, if there are more than it has sent before."""
    known: VersionVector | None = None
    """In the last batch: the version vector of the receiver when it has all batches."""


class Received(NamedTuple):
    """The result of receiving a batch."""

    operations: int = 0
    """Number of new operations."""
    holes: int = 0
    refused: int = 0
    """Number of operations at addresses that are private to another user."""
    conflicts: int = 0
    """Number of items that have siblings afterwards and had fewer before."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another replica, as its credential or our own configuration identifies it. Nothing in it comes from its messages."""

    name: str
    user: str
    """The user whose devices it may speak for, and whose items it may have."""
    is_relay: bool = False
    """A hub: it holds the items of all its users and speaks for every device. A device trusts its hub; a hub does not trust a device so
    far."""
    maximum_trust: float = 1.0
    """The most trust that items from it may claim."""

    def may_have(self, user: str, tier: Tier) -> bool:
        """Return whether items of this user and tier may be sent to the peer."""
        match tier:
            case Tier.SHARED:
                return True
            case Tier.USER:
                return self.is_relay or user == self.user
            case Tier.DEVICE:
                return False


class Part(Enum):
    """The part of an operation that is sent to a peer."""

    WHOLE = auto()
    NOTICE = auto()
    """A notice that the item, of which the peer may have an earlier state, is withdrawn."""
    NUMBER = auto()
    """Only the number of the write: a hole."""


def for_peer(operation: Operation, peer: Peer) -> tuple[Part, Operation]:
    """Return the part of an operation that is for the peer. If that is only a number, the operation must not be used."""
    user = operation.meta.user
    if peer.may_have(user, operation.meta.tier):
        return Part.WHOLE, _without_hidden_siblings(operation, peer)
    if peer.may_have(user, operation.reach):
        return Part.NOTICE, _without_hidden_siblings(_notice(operation), peer)
    return Part.NUMBER, operation


def _notice(operation: Operation) -> Operation:
    meta = Meta(user=operation.meta.user, tier=operation.reach, created_at=operation.meta.created_at)
    unseen = tuple(sorted({*operation.unseen, operation.dot}))
    return operation._replace(value=None, meta=meta, stamps={}, unseen=unseen, base=None)


def _without_hidden_siblings(operation: Operation, peer: Peer) -> Operation:
    if not operation.siblings:
        return operation
    shown = tuple(one for one in operation.siblings if peer.may_have(one.meta.user, one.meta.tier))
    hidden = {one.dot for one in operation.siblings} - {one.dot for one in shown}
    return operation if not hidden else operation._replace(siblings=shown, unseen=tuple(sorted({*operation.unseen, *hidden})))
