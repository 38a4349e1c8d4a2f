"""Find what an erasure would remove: items about a subject or in a namespace, and everything derived from them."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from ...protocols.namespaces import ItemAddress, Namespace
from .engine import Engine
from .operation import Operation
from .wording import Wording, leaves

_PAGE = 1000


def traces(engine: Engine, *, prefix: Namespace | None, subject: str | None) -> list[ItemAddress]:
    """Return the addresses of the items that would be erased, deleted ones included if any of their data is still stored.

    Items about a subject are those with its stamp, and those whose text has its name.
    """
    found = engine.traces(prefix=prefix, subject=subject) + _naming(engine, subject)
    reached: dict[ItemAddress, None] = {}
    while new := [address for address in found if address not in reached]:
        reached.update(dict.fromkeys(new))
        found = engine.traces(derived_from=new)
    return sorted(reached)


def operations_of(engine: Engine) -> Iterator[Operation]:
    """Yield all operations of the replica."""
    position = 0
    while page := engine.operations(position, limit=_PAGE):
        yield from (logged.operation for logged in page)
        position = page[-1].position


@dataclass(frozen=True, slots=True)
class Erased:
    """Items to erase, as records of other stores hold them: by their addresses, by their texts, and by the name of their subject."""

    addresses: frozenset[ItemAddress]
    wording: Wording

    @classmethod
    def of(cls, engine: Engine, addresses: list[ItemAddress], subject: str | None) -> Self:
        """Return the addresses and texts of the items; call it before they are erased."""
        with engine.transaction() as transaction:
            heads = [head for found in transaction.heads(addresses).values() for head in found]
        values = [value for head in heads for value in (head.value, *(sibling.value for sibling in head.siblings))]
        return cls(frozenset(addresses), Wording.of(subject, values))

    def is_in(self, record: Any) -> bool:  # noqa: ANN401 - a value as JSON has it
        """Return whether a record names an item as recalled, names the subject, or repeats the text of an item."""
        return any(address in self.addresses for address in recalled_in(record)) or any(map(self.wording.is_in, leaves(record)))


def recalled_in(record: Any) -> Iterator[ItemAddress]:  # noqa: ANN401 - a value as JSON has it
    """Yield the addresses of all items that a record reports as recalled, at any depth."""
    match record:
        case Mapping():
            match record:
                case {"namespace": [*namespace], "key": str(key), "version": str(), "tier": str(), "trust": _}:
                    yield ItemAddress(tuple(map(str, namespace)), key)
            for part in record.values():
                yield from recalled_in(part)
        case list() | tuple():
            for part in record:
                yield from recalled_in(part)


def record_of(content: str) -> Any:  # noqa: ANN401 - a value as JSON has it
    """Return the decoded record, or its text if it is damaged."""
    try:
        return json.loads(content)
    except ValueError:
        return content


def _naming(engine: Engine, subject: str | None) -> list[ItemAddress]:
    wording = Wording.of(subject)
    return [] if wording.name is None else [one.address for one in operations_of(engine) if _names(one, wording)]


def _names(operation: Operation, wording: Wording) -> bool:
    """Return whether a write, or a value that lost against it, has the name."""
    return any(wording.is_named_in(value) for value in (operation.value, *(sibling.value for sibling in operation.siblings)))
