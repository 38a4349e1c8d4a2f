"""Working memory: a run's notes to itself. They stay on the device, and are forgotten when the run ends."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from ....protocols import VersionConflict
from ....protocols.namespaces import ItemAddress, Namespace
from ....protocols.tiers import Tier
from ..engine import Change
from ..store import MemoryStore
from ..writing import ABSENT
from .granularity import WORKING

_DAY: Final = 24 * 60.0
"""Minutes after which notes of a run that never ended are gone."""
_PAGE: Final = 1000


class WorkingMemory:
    """The notes of one run, by name. A context manager: they are forgotten at its end.

    Notes are not found by meaning, and recalled text never comes from them.
    """

    def __init__(self, store: MemoryStore, run: str, scope: Namespace = ()) -> None:
        self._store = store
        self._namespace = (*scope, WORKING, run)

    def note(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a note, replacing the one of that name."""
        self._store.put(self._namespace, name, value, index=False, ttl=_DAY, tier=Tier.DEVICE)

    def add(self, name: str, entries: Sequence[Any], field: str = "entries") -> None:
        """Append to the list in a field of a note."""
        with suppress(VersionConflict):  # the note is there
            self._store.put(self._namespace, name, {field: []}, index=False, ttl=_DAY, tier=Tier.DEVICE, if_version=ABSENT)
        self._store.append(self._namespace, name, field, entries)

    def get(self, name: str) -> dict[str, Any] | None:
        """Return the value of a note."""
        item = self._store.get(self._namespace, name)
        return None if item is None else item.value

    def notes(self) -> dict[str, dict[str, Any]]:
        """Return all notes, by name, the last written first."""
        return {item.key: item.value for item in self._store.search(self._namespace, limit=_PAGE)}

    def forget(self) -> None:
        """Forget all notes. They never left the device, so no other device has to be told."""
        while notes := self._store.search(self._namespace, limit=_PAGE):
            with self._store.engine.transaction() as transaction:
                transaction.apply([Change(ItemAddress(note.namespace, note.key), (), None) for note in notes])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.forget()
