"""The journal of consolidations, and the state of a running one."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final
from uuid import uuid4

from ...protocols import InvalidRequest, NotFound, VersionConflict
from ...protocols.items import ItemAddress, Namespace, Tier
from ..compression import Summarizer
from ..task.stores import ConsolidationConfig
from .ranking import EPISODIC, SEMANTIC, Granularity
from .reading import MemoryItem
from .store import MemoryStore

CONSOLIDATION: Final = "consolidation"
ALL: Final = 1_000_000
"""More than any batch has entries."""


class BatchState(StrEnum):
    """The state of a batch."""

    OPEN = "open"
    """The batch can be reverted."""
    CONFIRMED = "confirmed"
    REVERTED = "reverted"
    """Its changes are undone, and are not made again."""


class JournalAction(StrEnum):
    """A change to an item."""

    CREATED = "created"
    RETIRED = "retired"
    """The item is no longer valid, or repeats another one."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A change that a batch made."""

    action: JournalAction
    address: ItemAddress
    version: str | None = None
    """Version of the item after the change; None: the change was not yet made."""
    because_of: ItemAddress | None = None
    """The item that replaces a retired one."""
    until: datetime | None = None
    """End of the retired item's validity before it was retired; None: none."""


@dataclass(frozen=True, slots=True)
class ConsolidationBatch:
    """One consolidation."""

    id: str
    state: BatchState
    began_at: str
    created: int
    retired: int


@dataclass(frozen=True, slots=True)
class Reverted:
    """The result of reverting a batch."""

    batch: str
    removed: int
    reinstated: int
    left: tuple[ItemAddress, ...]
    """Items that were changed since, and that are left unchanged."""


class ConsolidationJournal:
    """The batches of one scope."""

    def __init__(self, store: MemoryStore, scope: Namespace = (), *, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._store = store.bound(tier=Tier.DEVICE)
        self._namespace = (*scope, CONSOLIDATION)

    def begin(self) -> str:
        """Begin a batch, and return its identifier; an open batch without entries is used again."""
        for batch in self.batches():
            if batch.state is BatchState.OPEN and not batch.created and not batch.retired:
                return batch.id
        moment = datetime.fromtimestamp(self._now(), UTC)
        identifier = f"{moment:%Y%m%d-%H%M%S}-{uuid4().hex[:6]}"
        self._store.put(self._namespace, identifier, {"state": BatchState.OPEN.value, "began_at": moment.isoformat()}, index=False)
        return identifier

    def note(self, batch: str, entry: JournalEntry, *, subject: str) -> None:
        """Record a change before it is made, and again once it is made."""
        value: dict[str, Any] = {
            "deed": entry.action.value,
            "item": _plain(entry.address),
            "version": entry.version,
            "until": None if entry.until is None else entry.until.isoformat(),
            "because_of": None if entry.because_of is None else _plain(entry.because_of),
        }
        key = "/".join((*entry.address.namespace, entry.address.key))
        self._store.bound(lineage=[entry.address]).put((*self._namespace, batch), key, value, index=False, subject=subject)

    def batches(self) -> list[ConsolidationBatch]:
        """Return all batches, the last first."""
        items = [item for item in self._store.search(self._namespace, limit=ALL) if item.namespace == self._namespace]
        return sorted(map(self._batch, items), key=lambda batch: (batch.began_at, batch.id), reverse=True)

    def entries(self, batch: str) -> list[JournalEntry]:
        """Return the entries of a batch, the last first. Raises `NotFound`."""
        self._header(batch)
        items = self._store.search((*self._namespace, batch), limit=ALL)
        return [_entry(item) for item in items]

    def refused(self) -> set[ItemAddress]:
        """Return the items that a reverted batch created or retired."""
        return {entry.address for batch in self.batches() if batch.state is BatchState.REVERTED for entry in self.entries(batch.id)}

    def confirm(self, batch: str) -> ConsolidationBatch:
        """Confirm a batch, so that it cannot be reverted; its sources stay. Raises `NotFound`, and `InvalidRequest` if it was reverted."""
        self._require(batch, BatchState.OPEN, BatchState.CONFIRMED)
        self._store.patch(self._namespace, batch, {"state": BatchState.CONFIRMED.value})
        return self._batch(self._header(batch))

    def revert(self, batch: str) -> Reverted:
        """Revert a batch: delete the items that it created, and make the items that it retired valid again.

        Raises `NotFound`, and `InvalidRequest` if it was confirmed. Call it again to finish an interrupted revert.
        """
        self._require(batch, BatchState.OPEN, BatchState.REVERTED)
        done = dict.fromkeys(JournalAction, 0)
        left: list[ItemAddress] = []
        for entry in self.entries(batch):
            try:
                done[entry.action] += self._undo(entry)
            except VersionConflict:
                left.append(entry.address)
        self._store.patch(self._namespace, batch, {"state": BatchState.REVERTED.value})
        return Reverted(batch, done[JournalAction.CREATED], done[JournalAction.RETIRED], tuple(left))

    def _undo(self, entry: JournalEntry) -> bool:
        """Undo a change, and return whether there was anything to undo. Raises `VersionConflict` if the item was changed since."""
        item = self._store.get(*entry.address, refresh_ttl=False)
        if item is None or (entry.action is JournalAction.RETIRED and item.invalid_from == entry.until):
            return False
        if entry.action is JournalAction.CREATED:
            self._store.delete(*entry.address, if_version=entry.version)
        else:
            self._store.invalidate(*entry.address, at=entry.until, if_version=entry.version)
        return True

    def _require(self, batch: str, *allowed: BatchState) -> None:
        state = BatchState(self._header(batch).value["state"])
        if state not in allowed:
            raise InvalidRequest(f"batch {batch} is {state}", hint="only an open batch can be confirmed or reverted")

    def _header(self, batch: str) -> MemoryItem:
        item = self._store.get(self._namespace, batch)
        if item is None:
            raise NotFound(f"there is no consolidation {batch!r}", hint="`nearfar memory sleep list` lists all of them")
        return item

    def _batch(self, item: MemoryItem) -> ConsolidationBatch:
        actions = [entry.action for entry in map(_entry, self._store.search((*self._namespace, item.key), limit=ALL))]
        state = BatchState(item.value["state"])
        return ConsolidationBatch(
            item.key, state, item.value["began_at"], actions.count(JournalAction.CREATED), actions.count(JournalAction.RETIRED)
        )


def _plain(address: ItemAddress) -> list[Any]:
    return [list(address.namespace), address.key]


def _address(plain: list[Any]) -> ItemAddress:
    return ItemAddress(tuple(plain[0]), plain[1])


def _entry(item: MemoryItem) -> JournalEntry:
    value = item.value
    because_of = None if value["because_of"] is None else _address(value["because_of"])
    until = None if value["until"] is None else datetime.fromisoformat(value["until"])
    return JournalEntry(JournalAction(value["deed"]), _address(value["item"]), value["version"], because_of, until)


@dataclass(slots=True)
class ConsolidationResult:
    """The outcome of a consolidation."""

    batch: str | None = None
    """The identifier by which the batch can be reverted or confirmed; None: nothing was done."""
    summaries: int = 0
    by_model: int = 0
    """Number of summaries made by a model; the others are extracts."""
    retired: int = 0
    """Number of facts that repeat another one, or are outdated."""
    refused: list[str] = field(default_factory=list)
    """Reasons why summaries of the model were not used."""
    stopped: str | None = None
    """The reason why it ended early; the next consolidation continues from there."""


@dataclass(frozen=True, slots=True)
class ConsolidationJob:
    """A scope of a store, and the means to consolidate it."""

    store: MemoryStore
    scope: Namespace
    policy: ConsolidationConfig
    journal: ConsolidationJournal
    summarizer: Summarizer | None
    now: Callable[[], float]
    """Seconds since the epoch."""

    @property
    def moment(self) -> datetime:
        return datetime.fromtimestamp(self.now(), UTC)

    def batch(self, slept: ConsolidationResult) -> str:
        """Return the batch of this run, which begins with its first entry."""
        slept.batch = slept.batch or self.journal.begin()
        return slept.batch


_MARKS: tuple[Namespace, ...] = ((EPISODIC, Granularity.SEGMENT.value), (SEMANTIC,))
"""The ends of a scope's namespaces that hold items to consolidate."""


def scopes(store: MemoryStore, prefix: Namespace = ()) -> list[Namespace]:
    """Return the scopes in or below a prefix that have items to consolidate, in order."""
    return sorted({scope for mark in _MARKS for scope in _ending(store, mark) if scope[: len(prefix)] == prefix})


def journals(store: MemoryStore) -> list[ConsolidationJournal]:
    """Return the journals of all scopes that were consolidated before."""
    return [ConsolidationJournal(store, scope) for scope in _ending(store, (CONSOLIDATION,))]


def _ending(store: MemoryStore, mark: Namespace) -> list[Namespace]:
    return [namespace[: -len(mark)] for namespace in store.list_namespaces(suffix=mark, limit=ALL)]
