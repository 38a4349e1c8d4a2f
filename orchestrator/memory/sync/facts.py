"""What all replicas get to know beside the items: what was erased, which devices are shut out, and whose each device is. It only grows."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any

import orjson

from ....protocols import InvalidRequest
from ....protocols.namespaces import ItemAddress, Namespace
from .. import validation
from ..item import Meta, address_tag
from ..operation import Dot, Operation, Sibling, VersionVector
from .keys import tag_of

_LONGEST = 256
"""Characters of a device's, a user's or an erasure's name."""
_MOST_ERASURES = 100_000
_MOST_DEVICES = 10_000
_SHARE = 5
"""One user may take this part of either at a hub, so that others find room."""
_SHARE_BYTES = 8 << 20
"""One user's facts take this many bytes of JSON at most: a hub tells its facts to each peer in one message."""
_LATEST = 1 << 62
"""Numbers of writes are below it."""


@dataclass(frozen=True, slots=True)
class Erasure:
    """Something to forget, said without naming it."""

    id: str
    subject: str | None
    """Tag of whom it is about, see `keys.tag_of`."""
    prefix: str | None
    """Tag of a namespace with all below it, see `prefix_tag`."""
    user: str | None
    """Whose items are meant; None: everybody's."""
    boundaries: Mapping[str, int] = field(default_factory=dict)
    """By device that has heard of it, its last write before. What a device wrote later is meant to be, all else is to go."""
    overwritten: Mapping[str, VersionVector] = field(default_factory=dict)
    """By tag of an item of which a write was erased, the writes in whose place that one was: others may have them still."""

    def covers(self, operation: Operation) -> bool:
        """Whether the operation has to go, by what is said of it itself."""
        return self._names_earlier(operation.address, operation) or self._has_overwritten(operation)

    def covers_sibling(self, address: ItemAddress, sibling: Sibling) -> bool:
        """Return whether a sibling of the item has to go: that depends on its own writer, not on the device that carries it along."""
        return self._names_earlier(address, sibling)

    def names(self, address: ItemAddress, meta: Meta) -> bool:
        """Whether it is meant for a value with this meta."""
        if self.user not in (None, meta.user):
            return False
        if self.prefix is not None:
            return self.prefix in _prefix_tags(address.namespace)
        return any(_tag(subject) == self.subject for subject in meta.subjects)

    def __or__(self, other: "Erasure") -> "Erasure":
        """What two replicas know of it."""
        overwritten = {tag: _joined(self.overwritten.get(tag, {}), vector) for tag, vector in other.overwritten.items()}
        return replace(self, boundaries={**other.boundaries, **self.boundaries}, overwritten={**self.overwritten, **overwritten})

    def precedes(self, dot: Dot) -> bool:
        """Return whether the device that made the write had not heard of the erasure yet."""
        heard = self.boundaries.get(dot.device)
        return heard is None or dot.sequence <= heard

    def _names_earlier(self, address: ItemAddress, write: Operation | Sibling) -> bool:
        return self.precedes(write.dot) and self.names(address, write.meta)

    def _has_overwritten(self, operation: Operation) -> bool:
        # Whoever states an erasure says what was overwritten: it reaches nothing of another user's, shared or not.
        if not self.overwritten or self.user not in (None, operation.meta.user):
            return False
        device, sequence = operation.dot
        return self.overwritten.get(address_tag(operation.address), {}).get(device, 0) >= sequence


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of two replicas are put together by `|`, in any order and as often as one likes."""

    erasures: Mapping[str, Erasure] = field(default_factory=dict)
    """By their ids."""
    revoked: frozenset[str] = frozenset()
    """Devices that are shut out."""
    users: Mapping[str, str] = field(default_factory=dict)
    """By device, whose it is. A hub's, which writes for several users, is not in it."""

    def __or__(self, other: "Facts") -> "Facts":
        erasures = {**other.erasures, **self.erasures}
        for id in self.erasures.keys() & other.erasures.keys():
            erasures[id] = self.erasures[id] | other.erasures[id]
        return Facts(erasures, self.revoked | other.revoked, {**other.users, **self.users})

    def without_owner_of(self, device: str) -> "Facts":
        """The same for a hub, which nobody but itself says whose it is."""
        return replace(self, users={name: user for name, user in self.users.items() if name != device})

    def stated_for(self, user: str, known: "Facts") -> "Facts":
        """Those that somebody who speaks for one user alone may state to a replica that knows `known`."""
        users = {device: owner for device, owner in self.users.items() if owner == known.users.get(device, user) == user}
        return Facts(
            {id: erasure for id, erasure in self.erasures.items() if erasure.user == user},
            frozenset(device for device in self.revoked if users.get(device) == user),
            users,
        )


class Erasures:
    """Finds, of however many erasures, the few that a write may be about."""

    def __init__(self, erasures: Iterable[Erasure]) -> None:
        self._by_tag: dict[str, dict[str, Erasure]] = {}
        for erasure in erasures:
            for tag in (erasure.subject, erasure.prefix, *erasure.overwritten):
                if tag is not None:
                    self._by_tag.setdefault(tag, {})[erasure.id] = erasure

    def near(self, operation: Operation) -> list[Erasure]:
        """All that cover the operation or name any value in it, and perhaps others."""
        if not self._by_tag:
            return []
        subjects = {name for meta in (operation.meta, *(sibling.meta for sibling in operation.siblings)) for name in meta.subjects}
        tags = [
            address_tag(operation.address),
            *_prefix_tags(operation.address.namespace),
            *map(_tag, subjects),
        ]
        found: dict[str, Erasure] = {}
        for tag in tags:
            found |= self._by_tag.get(tag, {})
        return list(found.values())

    def left_of(self, operation: Operation) -> Operation | None:
        """What is to be kept of an operation that arrives; None: nothing."""
        erasures = self.near(operation)
        if not erasures:
            return operation
        if any(erasure.covers(operation) for erasure in erasures):
            return None
        return without_siblings(operation, lambda one: any(erasure.covers_sibling(operation.address, one) for erasure in erasures))


def without_siblings(operation: Operation, goes: Callable[[Sibling], bool]) -> Operation:
    """Return the operation without those siblings that have to go."""
    kept = tuple(sibling for sibling in operation.siblings if not goes(sibling))
    return operation if len(kept) == len(operation.siblings) else operation._replace(siblings=kept)


def check_size(facts: Facts) -> None:
    """Raises `InvalidRequest` for more than replicas tell each other."""
    devices = max(len(facts.users.keys() | facts.revoked), *(len(one.boundaries) for one in facts.erasures.values()), 0)
    if len(facts.erasures) > _MOST_ERASURES or devices > _MOST_DEVICES:
        hint = f"at most {_MOST_ERASURES:,} and {_MOST_DEVICES:,} are told; the peer is broken, or its store too old"
        raise InvalidRequest(f"a replica states {len(facts.erasures):,} erasures and {devices:,} devices", hint=hint)


def check_share(facts: Facts, user: str) -> None:
    """Raises `InvalidRequest` where a hub would know so much of one user that others have no room."""
    erasures = sum(one.user == user for one in facts.erasures.values())
    devices = sum(owner == user for owner in facts.users.values())
    is_too_long = len(encode_facts(facts.stated_for(user, facts))) > _SHARE_BYTES
    if erasures > _MOST_ERASURES // _SHARE or devices > _MOST_DEVICES // _SHARE or is_too_long:
        hint = f"at most {_MOST_ERASURES // _SHARE:,} and {_MOST_DEVICES // _SHARE:,} of one user are kept, in {_SHARE_BYTES >> 20} MiB"
        raise InvalidRequest(f"there would be {erasures:,} erasures and {devices:,} devices of {user!r} at the hub", hint=hint)


def check_devices(devices: Collection[str]) -> None:
    """Raises `InvalidRequest` where a replica counts the writes of more devices than there can be."""
    if len(devices) > _MOST_DEVICES or not all(0 < len(device) <= _LONGEST for device in devices):
        hint = f"at most {_MOST_DEVICES:,} are counted; the peer is broken, or no nearfar store"
        raise InvalidRequest(f"the peer knows writes of {len(devices):,} devices, or of some that cannot be", hint=hint)


def is_device(name: object) -> bool:
    """Return whether a device, or the log of one, can be called so."""
    return validation.is_name(name, _LONGEST)


def encode_facts(facts: Facts) -> bytes:
    """As JSON, the same bytes for the same facts."""
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


def decode_facts(encoded: bytes) -> Facts:
    """Raises `ValueError` for what `encode_facts` never makes."""
    try:
        erasures, revoked, users = orjson.loads(encoded)
        read = [_erasure(*one) for one in erasures]
        return Facts(
            {one.id: one for one in read},
            frozenset(_name(device) for device in revoked),
            {_name(device): _user(user) for device, user in users.items()},
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError("what a replica states of erasures and devices cannot be read") from error


def prefix_tag(namespace: Namespace) -> str:
    """Stands for a namespace where its name must not be."""
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
        raise ValueError("an erasure is of a subject or of a prefix")
    vectors = {_name(tag): _vector(vector) for tag, vector in overwritten.items()}
    subject, prefix = (None if tag is None else _name(tag) for tag in (subject, prefix))
    return Erasure(_name(id), subject, prefix, None if user is None else _user(user), _vector(boundaries), vectors)


def _vector(value: Mapping[str, Any]) -> VersionVector:
    if not all(type(sequence) is int and 0 <= sequence < _LATEST for sequence in value.values()):
        raise ValueError("a number of a write cannot be")
    return {_name(device): sequence for device, sequence in value.items()}


def _joined(one: VersionVector, other: VersionVector) -> VersionVector:
    return {device: max(one.get(device, 0), other.get(device, 0)) for device in one.keys() | other.keys()}


def _name(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST:
        raise ValueError("a name is missing or too long")
    return value


def _user(value: object) -> str:
    return "" if value == "" else _name(value)
