"""The messages between two replicas, and the facts that all share apart from the items: erasures, revoked devices, and owners of devices.

SharedFacts only grow. `wire.py` converts messages to protobuf.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, NamedTuple

import orjson

from ....protocols import InvalidRequest
from ....protocols.items import ItemAddress, Namespace, Tier
from .. import validation
from ..operation import Dot, Meta, Operation, Sibling, VersionVector, address_tag
from .keys import SubjectKey, tag_of

_LONGEST = 256
"""Characters of the name of a device, a user or an erasure."""
_MOST_ERASURES = 100_000
_MOST_DEVICES = 10_000
_SHARE = 5
"""One user may take this part of either at a hub, so that others find room."""
_SHARE_BYTES = 8 << 20
"""The most bytes of JSON of one user's facts: a hub sends its facts to each peer in one message."""
_LATEST = 1 << 62
"""Numbers of writes are below it."""


@dataclass(frozen=True, slots=True)
class Erasure:
    """An erasure that does not name what it erases."""

    id: str
    subject: str | None
    """Tag of the subject, see `keys.tag_of`."""
    prefix: str | None
    """Tag of a namespace with all below it, see `prefix_tag`."""
    user: str | None
    """The user whose items are meant; None: all users."""
    boundaries: Mapping[str, int] = field(default_factory=dict)
    """The last write of each device before it heard of the erasure. Later writes of the device stay, all earlier ones are dropped."""
    overwritten: Mapping[str, VersionVector] = field(default_factory=dict)
    """By tag of an item with an erased write, the writes that it had overwritten: other replicas may have them still."""

    def covers(self, operation: Operation) -> bool:
        """Return whether the operation has to be dropped, judged by the operation itself."""
        return self._names_earlier(operation.address, operation) or self._has_overwritten(operation)

    def covers_sibling(self, address: ItemAddress, sibling: Sibling) -> bool:
        """Return whether a sibling of the item has to be dropped: that depends on its own writer, not on the device that carries it
        along."""
        return self._names_earlier(address, sibling)

    def names(self, address: ItemAddress, meta: Meta) -> bool:
        """Return whether a value with this meta is meant."""
        if self.user not in (None, meta.user):
            return False
        if self.prefix is not None:
            return self.prefix in _prefix_tags(address.namespace)
        return any(_tag(subject) == self.subject for subject in meta.subjects)

    def __or__(self, other: "Erasure") -> "Erasure":
        """Return the knowledge of two replicas about the erasure."""
        overwritten = {tag: _joined(self.overwritten.get(tag, {}), vector) for tag, vector in other.overwritten.items()}
        return replace(self, boundaries={**other.boundaries, **self.boundaries}, overwritten={**self.overwritten, **overwritten})

    def precedes(self, dot: Dot) -> bool:
        """Return whether the device that made the write had not heard of the erasure yet."""
        heard = self.boundaries.get(dot.device)
        return heard is None or dot.sequence <= heard

    def _names_earlier(self, address: ItemAddress, write: Operation | Sibling) -> bool:
        return self.precedes(write.dot) and self.names(address, write.meta)

    def _has_overwritten(self, operation: Operation) -> bool:
        # The peer that states an erasure chooses `overwritten`, so it must not reach another user's items, shared or not.
        if not self.overwritten or self.user not in (None, operation.meta.user):
            return False
        device, sequence = operation.dot
        return self.overwritten.get(address_tag(operation.address), {}).get(device, 0) >= sequence


@dataclass(frozen=True, slots=True)
class SharedFacts:
    """Facts of a replica. Facts of two replicas are merged by `|`, in any order and any number of times."""

    erasures: Mapping[str, Erasure] = field(default_factory=dict)
    """Erasures by their ids."""
    revoked: frozenset[str] = frozenset()
    """Revoked devices."""
    users: Mapping[str, str] = field(default_factory=dict)
    """The user of each device. A hub's device, which writes for several users, is not in it."""

    def __or__(self, other: "SharedFacts") -> "SharedFacts":
        erasures = {**other.erasures, **self.erasures}
        for id in self.erasures.keys() & other.erasures.keys():
            erasures[id] = self.erasures[id] | other.erasures[id]
        return SharedFacts(erasures, self.revoked | other.revoked, {**other.users, **self.users})

    def without_owner_of(self, device: str) -> "SharedFacts":
        """Return the facts without a user of the device, for a hub: only the hub itself knows that it has none."""
        return replace(self, users={name: user for name, user in self.users.items() if name != device})

    def stated_for(self, user: str, known: "SharedFacts") -> "SharedFacts":
        """Return those facts that a peer with only this user may state to a replica that knows `known`."""
        users = {device: owner for device, owner in self.users.items() if owner == known.users.get(device, user) == user}
        return SharedFacts(
            {id: erasure for id, erasure in self.erasures.items() if erasure.user == user},
            frozenset(device for device in self.revoked if users.get(device) == user),
            users,
        )


class Erasures:
    """Finds the few erasures, among any number, that may be about a write."""

    def __init__(self, erasures: Iterable[Erasure]) -> None:
        self._by_tag: dict[str, dict[str, Erasure]] = {}
        for erasure in erasures:
            for tag in (erasure.subject, erasure.prefix, *erasure.overwritten):
                if tag is not None:
                    self._by_tag.setdefault(tag, {})[erasure.id] = erasure

    def near(self, operation: Operation) -> list[Erasure]:
        """Return all erasures that cover the operation or name any value in it, and perhaps others."""
        if not self._by_tag:
            return []
        subjects = {name for write in operation.writes for name in write.meta.subjects}
        tags = [address_tag(operation.address), *_prefix_tags(operation.address.namespace), *map(_tag, subjects)]
        found: dict[str, Erasure] = {}
        for tag in tags:
            found |= self._by_tag.get(tag, {})
        return list(found.values())

    def left_of(self, operation: Operation) -> Operation | None:
        """Return the part of an arriving operation that is kept; None: nothing."""
        erasures = self.near(operation)
        if not erasures:
            return operation
        if any(erasure.covers(operation) for erasure in erasures):
            return None
        return without_siblings(operation, lambda one: any(erasure.covers_sibling(operation.address, one) for erasure in erasures))


def without_siblings(operation: Operation, goes: Callable[[Sibling], bool]) -> Operation:
    """Return the operation without those siblings that have to be dropped."""
    kept = tuple(sibling for sibling in operation.siblings if not goes(sibling))
    return operation if len(kept) == len(operation.siblings) else operation._replace(siblings=kept)


def check_size(facts: SharedFacts) -> None:
    """Raise `InvalidRequest` for more facts than replicas exchange."""
    devices = max(len(facts.users.keys() | facts.revoked), *(len(one.boundaries) for one in facts.erasures.values()), 0)
    if len(facts.erasures) > _MOST_ERASURES or devices > _MOST_DEVICES:
        hint = f"at most {_MOST_ERASURES:,} and {_MOST_DEVICES:,} are exchanged; the peer is broken, or its store too old"
        raise InvalidRequest(f"a replica states {len(facts.erasures):,} erasures and {devices:,} devices", hint=hint)


def check_share(facts: SharedFacts, user: str) -> None:
    """Raise `InvalidRequest` if a hub's facts about one user would leave too little room for others."""
    erasures = sum(one.user == user for one in facts.erasures.values())
    devices = sum(owner == user for owner in facts.users.values())
    is_too_long = len(encode_facts(facts.stated_for(user, facts))) > _SHARE_BYTES
    if erasures > _MOST_ERASURES // _SHARE or devices > _MOST_DEVICES // _SHARE or is_too_long:
        hint = f"at most {_MOST_ERASURES // _SHARE:,} and {_MOST_DEVICES // _SHARE:,} of one user are kept, in {_SHARE_BYTES >> 20} MiB"
        raise InvalidRequest(f"there would be {erasures:,} erasures and {devices:,} devices of {user!r} at the hub", hint=hint)


def check_devices(devices: Collection[str]) -> None:
    """Raise `InvalidRequest` if a replica counts the writes of more devices than there can be."""
    if len(devices) > _MOST_DEVICES or not all(0 < len(device) <= _LONGEST for device in devices):
        hint = f"at most {_MOST_DEVICES:,} are counted; the peer is broken, or not a nearfar store"
        raise InvalidRequest(f"the peer counts writes of {len(devices):,} devices, or of devices with invalid names", hint=hint)


def is_device(name: object) -> bool:
    """Return whether a device, or its log, can have this name."""
    return validation.is_name(name, _LONGEST)


def encode_facts(facts: SharedFacts) -> bytes:
    """Return the facts as JSON, the same bytes for the same facts."""
    erasures = [
        (
            one.id,
            one.subject,
            one.prefix,
            one.user,
            dict(sorted(one.boundaries.items())),
            {tag: dict(sorted(vector.items())) for tag, vector in sorted(one.overwritten.items())},
        )
        for _, one in sorted(facts.erasures.items())
    ]
    return orjson.dumps((erasures, sorted(facts.revoked), dict(sorted(facts.users.items()))))


def decode_facts(encoded: bytes) -> SharedFacts:
    """Return the facts that `encode_facts` encoded. Raises `ValueError` for any other bytes."""
    try:
        erasures, revoked, users = orjson.loads(encoded)
        read = [_erasure(*one) for one in erasures]
        return SharedFacts(
            {one.id: one for one in read},
            frozenset(_name(device) for device in revoked),
            {_name(device): _user(user) for device, user in users.items()},
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError("a replica's statement about erasures and devices cannot be read") from error


def prefix_tag(namespace: Namespace) -> str:
    """Return a digest that stands for a namespace if its name must not be stored."""
    return sha256(b"nearfar prefix\0" + orjson.dumps(namespace)).hexdigest()


@lru_cache(maxsize=4096)
def _tag(subject: str) -> str:
    return tag_of(subject)


@lru_cache(maxsize=4096)
def _prefix_tags(namespace: Namespace) -> frozenset[str]:
    return frozenset(prefix_tag(namespace[:depth]) for depth in range(len(namespace) + 1))


def _erasure(
    id: object, subject: object, prefix: object, user: object, boundaries: Mapping[str, Any], overwritten: Mapping[str, Any]
) -> Erasure:
    if (subject is None) == (prefix is None):
        raise ValueError("an erasure needs either a subject or a prefix")
    vectors = {_name(tag): _vector(vector) for tag, vector in overwritten.items()}
    subject, prefix = (None if tag is None else _name(tag) for tag in (subject, prefix))
    return Erasure(_name(id), subject, prefix, None if user is None else _user(user), _vector(boundaries), vectors)


def _vector(value: Mapping[str, Any]) -> VersionVector:
    if not all(type(sequence) is int and 0 <= sequence < _LATEST for sequence in value.values()):
        raise ValueError("the number of a write is out of range")
    return {_name(device): sequence for device, sequence in value.items()}


def _joined(one: VersionVector, other: VersionVector) -> VersionVector:
    return {device: max(one.get(device, 0), other.get(device, 0)) for device in one.keys() | other.keys()}


def _name(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST:
        raise ValueError("a name is missing or too long")
    return value


def _user(value: object) -> str:
    return "" if value == "" else _name(value)


SCHEMA: Final = 3
"""Version of operations, facts and their meaning. Replicas of different schemas do not synchronise."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The introduction of a replica."""

    device: str
    now: float
    """The replica's clock, in seconds since the epoch."""
    known: VersionVector
    facts: SharedFacts
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


class WriteRange(NamedTuple):
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
    holes: tuple[WriteRange, ...] = ()
    keys: tuple[SubjectKey, ...] = ()
    """Keys of the sealed operations. Never store them together with the batch."""
    facts: SharedFacts | None = None
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


class Disclosure(Enum):
    """The part of an operation that is sent to a peer."""

    WHOLE = auto()
    NOTICE = auto()
    """A notice that the item, of which the peer may have an earlier state, is withdrawn."""
    NUMBER = auto()
    """Only the number of the write: a hole."""


def for_peer(operation: Operation, peer: Peer) -> tuple[Disclosure, Operation]:
    """Return the part of an operation that is for the peer. If that is only a number, the operation must not be used."""
    user = operation.meta.user
    if peer.may_have(user, operation.meta.tier):
        return Disclosure.WHOLE, _without_hidden_siblings(operation, peer)
    if peer.may_have(user, operation.reach):
        return Disclosure.NOTICE, _without_hidden_siblings(_notice(operation), peer)
    return Disclosure.NUMBER, operation


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
