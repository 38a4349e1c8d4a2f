"""Encode operations as bytes, for engines and for the wire. Decoding checks everything, since the bytes may come from a hostile peer."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol

import orjson

from ...protocols.items import ItemAddress, Namespace, Source, Tier
from .operation import Dot, Meta, Operation, Sibling, Stamp

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
