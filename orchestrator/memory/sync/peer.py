"""The peers of a replica, and the operations that each may have."""

from dataclasses import dataclass
from enum import Enum, auto

from ....protocols.tiers import Tier
from ..item import Meta
from ..operation import Operation


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
