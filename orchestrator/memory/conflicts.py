"""Conflicts to resolve: values that lost, in part or as a whole, against a value that another device wrote at the same time."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count, islice
from typing import Any, Final

from ...protocols import NotFound
from ...protocols.namespaces import ItemAddress
from ...protocols.tiers import Source, Tier
from .engine import Engine
from .item import Principal
from .merge import merge
from .operation import Sibling, seconds
from .reading import MemoryItem, Reader
from .writing import ABSENT

_BATCH: Final = 200


@dataclass(frozen=True, slots=True)
class LostValue:
    """A value that an item had on another device, or in another process, before both were merged."""

    name: str
    """The name to pass to `MemoryStore.resolve`."""
    value: Mapping[str, Any]
    """The whole value that the item had there."""
    fields: tuple[str, ...]
    """The fields of the value that lost; a field that is not in `value` was removed there."""
    user: str
    agent: str
    device: str
    source: Source
    trust: float
    tier: Tier
    written_at: datetime


@dataclass(frozen=True, slots=True)
class Conflict:
    """An item with values that lost, as a whole or in some fields. It can be read and written like any other until the conflict is
    resolved."""

    address: ItemAddress
    item: MemoryItem | None
    """The present item; None: it is deleted."""
    version: str
    lost: tuple[LostValue, ...]


def conflicts(reader: Reader, limit: int, offset: int) -> list[Conflict]:
    """Return the conflicts of items that the reader's principal may see, by address."""
    found = (conflict for address in _addresses(reader.engine) for conflict in _conflict(reader, address))
    return list(islice(found, offset, offset + limit))


def undecided(reader: Reader, address: ItemAddress) -> tuple[str, tuple[Sibling, ...]]:
    """Return the version of an item, for `if_version`, and its siblings. Raises `NotFound` if it has no conflict."""
    with reader.engine.transaction() as transaction:
        heads = transaction.heads([address]).get(address, ())
    state = merge(heads) if heads else None
    siblings = () if state is None else state.siblings
    # A principal who may not see all of a conflict cannot resolve it.
    if state is None or not siblings or not all(_is_for(reader.principal, address, one) for one in siblings):
        raise NotFound(f"item {address.key!r} in {'/'.join(address.namespace)} has no conflict")
    return (ABSENT if reader.get([address], [])[0] is None else state.version), siblings


def name_of(sibling: Sibling) -> str:
    """Return the name by which a lost value is chosen."""
    return f"{sibling.dot.device}:{sibling.dot.sequence}"


def _conflict(reader: Reader, address: ItemAddress) -> Iterator[Conflict]:
    try:
        version, siblings = undecided(reader, address)
    except NotFound:  # resolved meanwhile, or not the principal's
        return
    yield Conflict(address, reader.get([address], [])[0], version, tuple(map(_lost, siblings)))


def _addresses(engine: Engine) -> Iterator[ItemAddress]:
    for offset in count(0, _BATCH):
        batch = engine.conflicts(limit=_BATCH, offset=offset)
        yield from batch
        if len(batch) < _BATCH:
            return


def _is_for(principal: Principal | None, address: ItemAddress, sibling: Sibling) -> bool:
    return principal is None or principal.sees(address, sibling.meta, sibling.dot.device)


def _lost(sibling: Sibling) -> LostValue:
    meta = sibling.meta
    written_at = datetime.fromtimestamp(seconds(sibling.clock), UTC)
    place = meta.user, meta.agent, sibling.dot.device
    return LostValue(name_of(sibling), sibling.value, tuple(sibling.lost), *place, meta.source, meta.trust, meta.tier, written_at)
