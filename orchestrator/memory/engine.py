"""The interface of a database that holds the store. Engines store and find rows; the meaning of the store lies above them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

from ...protocols import InvalidRequest
from ...protocols.namespaces import ItemAddress, Namespace
from .item import Meta
from .operation import Operation, VersionVector
from .selection import Selection

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Vector = NDArray[numpy.float32]


class Row(NamedTuple):
    """An item as readers see it."""

    address: ItemAddress
    value: dict[str, Any]
    meta: Meta
    version: str
    device: str
    """The device that wrote the item last."""
    updated_at: float
    """Seconds since the epoch."""
    expires_at: float | None
    """Seconds since the epoch; each refresh moves it, on this replica alone."""
    conflicts: int
    """The `conflicts` of the change that made the row."""


class Change(NamedTuple):
    """The whole new state of one item."""

    address: ItemAddress
    heads: tuple[Operation, ...]
    """Empty: remove all traces of the item, because it was erased or has expired."""
    row: Row | None
    """None: readers see nothing, because the heads say that the item was deleted."""
    texts: tuple[str, ...] = ()
    """The searchable texts of the item; each is one passage with a vector of its own."""
    vectors: "Sequence[Vector] | None" = None
    """Unit vectors of the texts, one each; zero for a text without meaning, which is similar to nothing.

    None: they are made later (`Engine.unembedded`).
    """
    conflicts: int = 0
    """Number of siblings that are not resolved; a deleted item may have some, too."""
    payload: bytes | None = None
    """The only head as JSON (`encoding.py`), if it arrived so: engines need not encode it again."""


class Logged(NamedTuple):
    """A head in the order in which the replica came to know it."""

    position: int
    operation: Operation
    payload: bytes | None = None
    """The operation as JSON (`encoding.py`), if the engine has just read it so."""


class Hit(NamedTuple):
    """A row that a search found, with its score: the higher, the better."""

    row: int
    """The engine's own number of the row."""
    score: float


class Position(NamedTuple):
    """A change of an item in the change feed."""

    position: int
    """Grows with every change of the replica; an item is at the position of its last change only."""
    address: ItemAddress
    is_deleted: bool


class Forgotten(NamedTuple):
    """An item whose traces were all removed, because it was erased or expired. Its name was removed, too."""

    position: int
    """The position in the change feed, as in `Position`."""
    tag: str
    """A digest of the item's address (`address_tag`)."""


MOST_FORGOTTEN: Final = 10_000
"""The number of forgotten items that the change feed still reports: the latest ones."""


def check_told(after: int, since: int) -> None:
    """Raise `InvalidRequest` if forgotten items after position `after` are no longer reported, because only those from `since` on are."""
    if 0 < after < since:
        raise InvalidRequest(
            "the change feed no longer reaches back to this position", hint="read it again from position 0, and rebuild the copy"
        )


class Unembedded(NamedTuple):
    """A row whose texts have no vectors of this embedder yet."""

    row: int
    version: str
    texts: tuple[str, ...]


class Transaction(Protocol):
    """A write transaction: all or nothing, and no other process writes meanwhile. Durable when the block ends without an error."""

    def reserve(self, count: int, now: float) -> tuple[int, int]:
        """Reserve `count` sequence numbers of this device and `count` clock stamps; return the first of each. The others follow one by
        one."""
        ...

    def heads(self, addresses: Sequence[ItemAddress]) -> dict[ItemAddress, tuple[Operation, ...]]:
        """Return the heads of those items that have any, deleted items included."""
        ...

    def apply(self, changes: Sequence[Change]) -> None:
        """Put the items into their new state. Each address occurs once."""
        ...

    def known(self) -> dict[str, int]:
        """Return the version vector of this replica."""
        ...

    def learn(self, known: VersionVector, clock: int) -> None:
        """Raise the version vector to at least `known`, and the clock to at least `clock`."""
        ...

    def setting(self, name: str) -> str | None:
        """Return a setting of the replica, for code above the engine."""
        ...

    def set(self, name: str, value: str | None) -> None:
        """Set a setting of the replica; None removes it."""
        ...


class Engine(Protocol):
    """A replica in a database. Calls may come from any thread, and several processes may have the same replica open.

    Every method raises `StoreUnavailable` if the database cannot be used now (locked for too long, disk full, out of reach), and
    `StoreCorrupt` if it is damaged.
    """

    device: str
    """The replica's name, which never changes: random, and kept in the database."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Open a write transaction."""
        ...

    def rows(self, addresses: Sequence[ItemAddress], selection: Selection) -> dict[ItemAddress, Row]:
        """Return the rows of those items that the selection lets through."""
        ...

    def numbered(self, numbers: Sequence[int]) -> dict[int, Row]:
        """Return rows by the numbers that hits carry; rows that are gone meanwhile are left out."""
        ...

    def select(self, selection: Selection, *, limit: int, offset: int) -> list[Row]:
        """Return the selected rows, the last updated first; those of one moment by namespace and key."""
        ...

    def keyword(self, query: str, selection: Selection, *, limit: int) -> list[Hit]:
        """Return the best matches by words (bm25, or the database's nearest equivalent). Any text is a valid query."""
        ...

    def nearest(self, vector: "Vector", selection: Selection, *, limit: int) -> list[Hit]:
        """Return the best items by cosine similarity with any of their passages, among the vectors of the engine's embedder. Exactly
        `limit` if there are as many, however narrow the selection is."""
        ...

    def namespaces(self, selection: Selection) -> list[Namespace]:
        """Return the namespaces that have a selected item, in order."""
        ...

    def refresh(self, addresses: Sequence[ItemAddress], now: float) -> None:
        """Restart the items' time to live."""
        ...

    def expired(self, now: float, *, limit: int) -> list[ItemAddress]:
        """Return items that have expired and are still stored."""
        ...

    def changes(self, after: int, *, limit: int) -> list[Position]:
        """Return the change feed after a position, in order."""
        ...

    def forgotten(self, after: int, *, limit: int) -> list[Forgotten]:
        """Return the items forgotten after a position, in order; 0: all that are known. Raises `InvalidRequest` as `check_told` does."""
        ...

    def position(self) -> int:
        """Return the position of the last change; 0 if there was none yet."""
        ...

    def operations(self, after: int, *, limit: int) -> list[Logged]:
        """Return all heads after a position, in order."""
        ...

    def first_unknown(self, after: int, known: VersionVector) -> int | None:
        """Return the position after `after` of the first head that `known` does not count; None if it counts all of them."""
        ...

    def unembedded(self, *, limit: int) -> list[Unembedded]:
        """Return rows that wait for their vectors."""
        ...

    def embed(self, rows: "Sequence[tuple[Unembedded, Sequence[Vector]]]") -> None:
        """Add vectors to rows that are still at the version from which they were made."""
        ...

    def conflicts(self, *, limit: int, offset: int) -> list[ItemAddress]:
        """Return the items with siblings, deleted ones included, in order."""
        ...

    def traces(
        self, *, prefix: Namespace | None = None, subject: str | None = None, derived_from: Sequence[ItemAddress] = ()
    ) -> list[ItemAddress]:
        """Return the items in or below the prefix, and those with a head or sibling that is about the subject or names one of
        `derived_from` in its lineage: all of which anything is stored, deleted and expired ones included, in order."""
        ...

    def scrub(self) -> None:
        """Make deleted data unreadable in every file: free pages, index segments, write-ahead log."""
        ...

    def statistics(self) -> dict[str, int]:
        """Return the numbers of items, deleted items, operations, conflicts, vectors and bytes."""
        ...

    def close(self) -> None: ...


Wait = Callable[[float], Literal["changed", "timeout"]]
"""Waits for a change, at most that many seconds."""
