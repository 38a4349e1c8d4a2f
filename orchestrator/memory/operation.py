"""The unit of writing and synchronisation, one write of one device to one item, and the data that is stamped on it.

The clock is a hybrid logical clock: stamps never run backwards, respect causality, and stay close to wall-clock time (Kulkarni et al.,
*Logical Physical Clocks and Consistent Snapshots in Globally Distributed Databases*, 2014). A stamp is one integer: milliseconds since the
epoch, shifted by 16 bits, plus a counter.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

import orjson

from ...protocols.items import LEAST_TRUST, TRUST, ItemAddress, Namespace, Source, Tier, within


class Meta(NamedTuple):
    """The stamp on each write, set by the framework and never by a model."""

    user: str = ""
    """The user who owns the item."""
    agent: str = ""
    """The agent that wrote the item; empty: the app itself."""
    source: Source = Source.INTERNAL_TOOL
    trust: float = TRUST[Source.INTERNAL_TOOL]
    """From 0 to 1; never above that of any item in `lineage`."""
    tier: Tier = Tier.DEVICE
    subject: str = ""
    """The person the item is about; all items about a person can be erased at once. Empty: no particular person."""
    lineage: tuple[ItemAddress, ...] = ()
    """The items that it was derived from."""
    created_at: float = 0.0
    """Seconds since the epoch at which the item was created; later writes keep it."""
    valid_from: float | None = None
    """Seconds since the epoch from which on the item is valid; None: always."""
    invalid_from: float | None = None
    """Seconds since the epoch from which on the item is no longer valid; None: it still is."""
    ttl: float | None = None
    """Seconds that the item lives after its last write or refresh; None: for ever."""
    index: tuple[str, ...] | None = None  # type: ignore[assignment]  # tuples have a method of this name, which is not needed here
    """Paths into the value that can be searched; None: those of the store's configuration; empty: the item cannot be searched."""
    others: tuple[str, ...] = ()
    """Further subjects, if the value keeps parts of several writes. Empty unless there is a `subject`."""

    def is_anothers(self, user: str) -> bool:
        """Return whether another user than `user` wrote it; an item without a user is the app's own."""
        return self.user not in ("", user)

    def trust_of(self, user: str) -> float:
        """Return the item's trust for `user`: items that another user shared get no more than untrusted content."""
        return min(self.trust, LEAST_TRUST) if self.is_anothers(user) else self.trust

    @property
    def subjects(self) -> tuple[str, ...]:
        """All subjects of the item."""
        return (self.subject, *self.others) if self.subject else ()


@lru_cache(maxsize=4096)
def address_tag(address: ItemAddress) -> str:
    """Return a digest that stands for an item if its name must not be stored. A guessed name can be checked against it."""
    return sha256(b"nearfar item\0" + orjson.dumps((*address,))).hexdigest()


def all_about(metas: Iterable[Meta]) -> tuple[str, tuple[str, ...]]:
    """Return the subject and the others of a value that has parts of all these, in their order."""
    subject, *others = dict.fromkeys(name for meta in metas for name in meta.subjects) or [""]
    return subject, tuple(others)


@dataclass(frozen=True, slots=True)
class Principal:
    """A reader of the store: items that are not meant for the principal do not exist for it."""

    user: str
    """The user."""
    device: str
    """The device that they use."""
    prefixes: tuple[Namespace, ...] = ((),)
    """The principal sees items in or below any of these namespaces; `()` is all of them."""
    minimum_trust: float = 0.0
    """Items that are trusted less do not exist for them."""

    def sees(self, address: ItemAddress, meta: Meta, device: str) -> bool:
        """Return whether the principal may see an item that `device` wrote."""
        is_believed = meta.trust_of(self.user) >= self.minimum_trust
        return is_believed and self._may_know(meta, device) and any(within(address.namespace, p) for p in self.prefixes)

    @property
    def believes_others(self) -> bool:
        """True if the items that other users shared reach the principal's `minimum_trust`."""
        return self.minimum_trust <= LEAST_TRUST

    def _may_know(self, meta: Meta, device: str) -> bool:
        match meta.tier:
            case Tier.SHARED:
                return True
            case Tier.USER:
                return meta.user == self.user
            case Tier.DEVICE:
                return meta.user == self.user and device == self.device


VersionVector = Mapping[str, int]
"""The last known sequence number of each device; all earlier ones are known, too."""


class Dot(NamedTuple):
    """Names a write for ever: the `sequence`-th of a device, counted from 1 without gaps."""

    device: str
    sequence: int


class Stamp(NamedTuple):
    """Names a write, and orders writes that did not know of each other: by hybrid logical clock, then by device."""

    clock: int
    device: str
    sequence: int

    @property
    def dot(self) -> Dot:
        return Dot(self.device, self.sequence)


NEVER: Final = Stamp(0, "", 0)
"""Stands for the missing `put` of an item that `append` created, or `patch` after that."""


@dataclass(frozen=True, slots=True)
class Sibling:
    """A whole value of which a part lost against a write that did not know it. It is kept until the conflict is resolved."""

    dot: Dot
    clock: int
    value: Mapping[str, Any]
    meta: Meta
    lost: Mapping[str, Stamp]
    """The fields that lost, with the writes that they are from. A field that is here and not in `value` was removed."""


class Operation(NamedTuple):
    """A write and the whole state of its item after it, so that a write makes all that it knew of its item superfluous.

    It needs no more than version vectors with a dot per write (Preguiça et al., *Dotted version vectors*, arXiv 1011.5808): an item is
    the set of its *heads*, the writes that no other known write knew of.
    """

    dot: Dot
    clock: int
    """Hybrid logical clock, see `tick`."""
    context: VersionVector
    """The writes to this item that this one knew of, and supersedes."""
    address: ItemAddress
    value: Mapping[str, Any] | None
    """The whole value; None: the item is deleted."""
    meta: Meta
    stamps: Mapping[str, Stamp] = MappingProxyType({})
    """The last write of each field, if that was not this write; a field that is here and not in `value` was removed."""
    siblings: tuple[Sibling, ...] = ()
    """Values of which a part lost, and which are not resolved yet."""
    reach: Tier = Tier.DEVICE
    """The widest tier that the item had before: replicas that were allowed to have it then are told that it is withdrawn."""
    unseen: tuple[Dot, ...] = ()
    """Writes in `context` that the writer knew as withdrawn only, without their content: this one does not supersede them. A write that
    names itself is the notice of a withdrawal."""
    base: Stamp | None = None
    """The last write, of those that this one knew, that replaced the whole value; None: this one did. `NEVER`: none did."""

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.clock, *self.dot)

    @property
    def writes(self) -> "tuple[Operation | Sibling, ...]":
        """The write itself and its siblings: everything here with a value and a meta."""
        return (self, *self.siblings)

    def stamp_of(self, name: str) -> Stamp:
        """Return the last write of the field, as far as this write knows it."""
        return self.stamps.get(name, self.stamp)

    @property
    def fields(self) -> dict[str, Stamp]:
        """The last write of each field, removed fields included."""
        return {**dict.fromkeys(self.value or (), self.stamp), **self.stamps}

    @property
    def whole(self) -> Stamp:
        """The write that replaced the whole value last: writes upon the same one can be merged field by field."""
        return self.stamp if self.base is None else self.base

    @property
    def is_withdrawn(self) -> bool:
        """True for the notice that replicas get of a write whose content is not for them."""
        return self.dot in self.unseen

    def knew(self, dot: Dot) -> bool:
        """Return whether the writer knew of that write, if only that it was withdrawn."""
        return self.context.get(dot.device, 0) >= dot.sequence

    def stands_in_for(self, other: "Operation") -> bool:
        """Return whether this write supersedes `other`. Never true in both directions, whatever a hostile device claims to have known."""
        if not self.knew(other.dot) or self.stamp <= other.stamp:
            return False
        is_content_unseen = other.dot in self.unseen and other.value is not None
        return not is_content_unseen and not any(sibling.dot in self.unseen for sibling in other.siblings)


def version_of(heads: Iterable[Operation]) -> str:
    """Return the version of an item's state, for `if_version`: it changes with every write that the state takes in."""
    return "+".join(map(version_of_one, sorted(heads, key=lambda head: head.stamp)))


def version_of_one(head: Operation) -> str:
    """Return the version of a single head, as nearly all items have."""
    return f"{head.clock:x}@{head.dot.device}"


COUNTER_BITS: Final = 16
MAXIMUM_SKEW: Final = 60_000
"""Milliseconds by which another device's clock may be ahead and still move ours."""


def tick(last: int, now: float) -> int:
    """Return the next stamp after `last` at wall-clock time `now`, in seconds since the epoch."""
    return max(last + 1, int(now * 1000) << COUNTER_BITS)


def received(last: int, remote: int, now: float) -> int:
    """Return our clock after we saw a stamp of another device. A stamp far ahead of `now` moves it by the allowed skew at most.

    A write that knew of a stamp from the future still comes after it, see `merge.succeed`; unrelated writes keep to our own time.
    """
    limit = (int(now * 1000) + MAXIMUM_SKEW) << COUNTER_BITS
    return max(last, min(remote, limit))


def seconds(stamp: int) -> float:
    """Return the wall-clock time of a stamp, in seconds since the epoch."""
    return (stamp >> COUNTER_BITS) / 1000


_TIERS: Final = {tier.value: tier for tier in Tier}
_SOURCES: Final = {source.value: source for source in Source}


class OwnedSubject(NamedTuple):
    """A person as one user knows them: an erasure by one user does not reach another user's items."""

    user: str
    name: str


class Sealer(Protocol):
    """Encrypts operations about subjects, so that they are readable only as long as the keys of all their subjects exist.

    Engines keep the result of `seal`, and leave out operations that `unseal` cannot read any more: they were erased.
    """

    def seal(self, dot: Dot, subjects: AbstractSet[OwnedSubject], payload: bytes) -> bytes:
        """Return the payload as it may be written to a log; without subjects it stays unchanged."""

    def unseal(self, dot: Dot, sealed: bytes) -> bytes | None:
        """Return the payload; None if its key was destroyed. Raises `ValueError` if it is damaged, or was sealed for another dot."""


def subjects_of(operation: Operation) -> frozenset[OwnedSubject]:
    """Return the subjects of an operation, its siblings included."""
    if not operation.siblings and not operation.meta.subject:
        return frozenset()
    return frozenset(OwnedSubject(write.meta.user, name) for write in operation.writes for name in write.meta.subjects)


def encode(operation: Operation) -> bytes:
    """Return an operation without its dot, as a JSON array."""
    return orjson.dumps(
        (
            operation.clock,
            operation.context,
            operation.address.namespace,
            operation.address.key,
            operation.value,
            meta_fields(operation.meta),
            _stamp_fields(operation.stamps),
            [_sibling_fields(one) for one in operation.siblings] if operation.siblings else (),
            operation.reach,
            [tuple(dot) for dot in operation.unseen] if operation.unseen else (),
            None if operation.base is None else tuple(operation.base),
        )
    )


def decode(dot: Dot, payload: bytes) -> Operation:
    """Return the operation that `encode` encoded. Raises `ValueError` for any other bytes."""
    try:
        clock, context, namespace, key, value, meta, stamps, siblings, reach, unseen, base = orjson.loads(payload)
        return Operation(
            dot,
            _natural(clock),
            _sequences(context) if context else {},
            _address(namespace, key),
            None if value is None else _object(value),
            read_meta(meta),
            _stamps(stamps) if stamps else {},
            tuple(_sibling(*sibling) for sibling in siblings) if siblings else (),
            _TIERS[reach],
            tuple(_dot(*one) for one in unseen) if unseen else (),
            None if base is None else _stamp(*_list(base)),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the operation {dot.sequence} of device {dot.device} cannot be read") from error


def meta_fields(meta: Meta) -> tuple[object, ...]:
    """Return the meta as a JSON array."""
    return (
        meta.user,
        meta.agent,
        meta.source,
        meta.trust,
        meta.tier,
        meta.subject,
        [tuple(address) for address in meta.lineage] if meta.lineage else (),
        meta.created_at,
        meta.valid_from,
        meta.invalid_from,
        meta.ttl,
        meta.index,
        meta.others,
    )


def read_meta(fields: object) -> Meta:
    """Return the meta that `meta_fields` encoded. Raises `TypeError`, `KeyError` or `ValueError` for anything else."""
    user, agent, source, trust, tier, subject, lineage, created_at, valid_from, invalid_from, ttl, index, others = _list(fields)
    return Meta(
        _text(user),
        _text(agent),
        _SOURCES[source],
        _number(trust),
        _TIERS[tier],
        _text(subject),
        tuple(_address(*one) for one in lineage) if lineage else (),
        _number(created_at),
        None if valid_from is None else _number(valid_from),
        None if invalid_from is None else _number(invalid_from),
        None if ttl is None else _number(ttl),
        None if index is None else tuple(map(_text, _list(index))),
        tuple(map(_text, _list(others))) if others else (),
    )


def _stamp_fields(stamps: Mapping[str, Stamp]) -> dict[str, tuple[object, ...]]:
    return {name: tuple(stamp) for name, stamp in stamps.items()} if stamps else {}


def _stamps(fields: object) -> dict[str, Stamp]:
    return {name: _stamp(*_list(stamp)) for name, stamp in _object(fields).items()}


def _stamp(clock: object, device: object, sequence: object) -> Stamp:
    return Stamp(_natural(clock), _text(device), _natural(sequence))


def _sibling_fields(sibling: Sibling) -> tuple[object, ...]:
    return tuple(sibling.dot), sibling.clock, sibling.value, meta_fields(sibling.meta), _stamp_fields(sibling.lost)


def _sibling(dot: object, clock: object, value: object, meta: object, lost: object) -> Sibling:
    return Sibling(_dot(*_list(dot)), _natural(clock), _object(value), read_meta(meta), _stamps(lost))


def _address(namespace: object, key: object) -> ItemAddress:
    labels = tuple(map(_text, _list(namespace)))
    return ItemAddress(_namespace(labels), _text(key))


@lru_cache(maxsize=1024)
def _namespace(labels: Namespace) -> Namespace:
    """Return one shared tuple per namespace: garbage collection visits every container that lives."""
    return labels


def _dot(device: object, sequence: object) -> Dot:
    return Dot(_text(device), _natural(sequence))


def _sequences(value: object) -> Mapping[str, int]:
    return {device: _natural(sequence) for device, sequence in _object(value).items()}


def _text(value: object) -> str:
    if type(value) is not str:
        raise TypeError
    return value


def _natural(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError
    return value


def _number(value: object) -> float:
    if type(value) is not float and type(value) is not int:
        raise TypeError
    return value


def _object(value: object) -> dict[str, Any]:
    if type(value) is not dict:
        raise TypeError
    return value


def _list(value: object) -> list[Any]:
    if type(value) is not list:
        raise TypeError
    return value
