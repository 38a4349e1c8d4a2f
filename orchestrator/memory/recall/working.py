"""Working memory: what a run notes down for itself. It stays on the device, and goes when the run ends."""

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

    Notes are not found by what they mean, and what is found in memory never comes from them.
    """

    def __init__(self, store: MemoryStore, run: str, scope: Namespace = ()) -> None:
        self._store = store
        self._namespace = (*scope, WORKING, run)

    def note(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a note, over the one of that name."""
        self._store.put(self._namespace, name, value, index=False, ttl=_DAY, tier=Tier.DEVICE)

    def add(self, name: str, entries: Sequence[Any], field: str = "entries") -> None:
        """Add to the list that a note has in a field."""
        with suppress(VersionConflict):  # the note is there
            self._store.put(self._namespace, name, {field: []}, index=False, ttl=_DAY, tier=Tier.DEVICE, if_version=ABSENT)
        self._store.append(self._namespace, name, field, entries)

    def get(self, name: str) -> dict[str, Any] | None:
        """What a note says."""
        item = self._store.get(self._namespace, name)
        return None if item is None else item.value

    def notes(self) -> dict[str, dict[str, Any]]:
        """All notes, by name, the last written first."""
        return {item.key: item.value for item in self._store.search(self._namespace, limit=_PAGE)}

    def forget(self) -> None:
        """Forget all notes. They never left the device, so that no other one has to hear of it."""
        while notes := self._store.search(self._namespace, limit=_PAGE):
            with self._store.engine.transaction() as transaction:
                transaction.apply([Change(ItemAddress(note.namespace, note.key), (), None) for note in notes])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.forget()
