"""What a database must do to hold the store. The store's meaning is on the other side of this line: engines know no policy."""

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
    """That wrote it last."""
    updated_at: float
    """Seconds since the epoch."""
    expires_at: float | None
    """Seconds since the epoch; moved by each refresh, on this replica alone."""
    conflicts: int
    """That of the change that made the row."""


class Change(NamedTuple):
    """The whole new state of one item."""

    address: ItemAddress
    heads: tuple[Operation, ...]
    """Empty: forget that the item ever was, as when it is erased or has expired."""
    row: Row | None
    """None: readers see nothing; the heads say that it was deleted."""
    texts: tuple[str, ...] = ()
    """What can be searched of it; each is one passage with a vector of its own."""
    vectors: "Sequence[Vector] | None" = None
    """Unit vectors of the texts, one each, or zero for a text without meaning, which is near to nothing.

    None: they are made later (`Engine.unembedded`)."""
    conflicts: int = 0
    """Number of siblings that are not decided on; a deleted item may have some, too."""
    payload: bytes | None = None
    """The only head as JSON (`encoding.py`), where it came so: engines need not write it anew."""


class Logged(NamedTuple):
    """A head in the order in which the replica came to know it."""

    position: int
    operation: Operation
    payload: bytes | None = None
    """The operation as JSON (`encoding.py`), where the engine has just read it so."""


class Hit(NamedTuple):
    """A row that a search found, and how well it matches: the higher, the better."""

    row: int
    """The engine's own number of the row."""
    score: float


class Position(NamedTuple):
    """A change of an item, as the change feed tells it."""

    position: int
    """Grows with every change of the replica; an item is at the position of its last change only."""
    address: ItemAddress
    is_deleted: bool


class Forgotten(NamedTuple):
    """An item of which nothing is kept any more, as it was erased or its time was over. Its name is not told, which was erased with it."""

    position: int
    """As in `Position`."""
    tag: str
    """Stands for where it was (`address_tag`)."""


MOST_FORGOTTEN: Final = 10_000
"""So many of the items that were forgotten last are told."""


def check_told(after: int, since: int) -> None:
    """Raises `InvalidRequest` where what was forgotten behind a position is not told any more, but only what was `since` then."""
    if 0 < after < since:
        raise InvalidRequest("more was forgotten since then than can be told", hint="begin at 0, with a new copy of what is there")


class Unembedded(NamedTuple):
    """A row whose texts have no vectors of this embedder yet."""

    row: int
    version: str
    texts: tuple[str, ...]


class Transaction(Protocol):
    """All or nothing, and nobody else writes meanwhile. Durable when the block ends without an error."""

    def reserve(self, count: int, now: float) -> tuple[int, int]:
        """The first of `count` sequence numbers of this device, and its first of `count` clock stamps; each next one is one more."""
        ...

    def heads(self, addresses: Sequence[ItemAddress]) -> dict[ItemAddress, tuple[Operation, ...]]:
        """The heads of those items that have any, deleted items among them."""
        ...

    def apply(self, changes: Sequence[Change]) -> None:
        """Put the items into their new state. Each address occurs once."""
        ...

    def known(self) -> dict[str, int]:
        """The version vector of this replica."""
        ...

    def learn(self, known: VersionVector, clock: int) -> None:
        """Raise the version vector to at least `known`, and the clock to at least `clock`."""
        ...

    def setting(self, name: str) -> str | None:
        """A value of the replica's own, for what builds upon the engine."""
        ...

    def set(self, name: str, value: str | None) -> None:
        """Keep such a value; None: remove it."""
        ...


class Engine(Protocol):
    """One replica. Calls may come from any thread, and several processes may have the same replica open.

    Every method raises `StoreUnavailable` where the database cannot be used now (locked for too long, disk full, out of reach), and
    `StoreCorrupt` where it is damaged.
    """

    device: str
    """The replica's own name, which never changes: random, and kept in the database."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """For writing."""
        ...

    def rows(self, addresses: Sequence[ItemAddress], selection: Selection) -> dict[ItemAddress, Row]:
        """Those of the items that the selection lets through."""
        ...

    def numbered(self, numbers: Sequence[int]) -> dict[int, Row]:
        """Rows by the numbers that hits carry; one that is gone meanwhile is left out."""
        ...

    def select(self, selection: Selection, *, limit: int, offset: int) -> list[Row]:
        """The last updated first; of the same moment, by namespace and key."""
        ...

    def keyword(self, query: str, selection: Selection, *, limit: int) -> list[Hit]:
        """The best by words (bm25 or what the database has that is nearest to it). Any text is a valid query."""
        ...

    def nearest(self, vector: "Vector", selection: Selection, *, limit: int) -> list[Hit]:
        """The best by cosine similarity with any of an item's passages, among vectors of the engine's embedder. Exactly `limit` if there
        are as many, however narrow the selection is."""
        ...

    def namespaces(self, selection: Selection) -> list[Namespace]:
        """Those that have an item which the selection lets through, in order."""
        ...

    def refresh(self, addresses: Sequence[ItemAddress], now: float) -> None:
        """Begin the items' time to live anew."""
        ...

    def expired(self, now: float, *, limit: int) -> list[ItemAddress]:
        """Items whose time is over and which are still there."""
        ...

    def changes(self, after: int, *, limit: int) -> list[Position]:
        """The change feed behind a position, in order."""
        ...

    def forgotten(self, after: int, *, limit: int) -> list[Forgotten]:
        """What was forgotten behind a position, in order; 0: all that is known of. Raises `InvalidRequest` as `check_told` does."""
        ...

    def position(self) -> int:
        """The position of the last change; 0: there was none yet."""
        ...

    def operations(self, after: int, *, limit: int) -> list[Logged]:
        """All heads behind a position, in order."""
        ...

    def first_unknown(self, after: int, known: VersionVector) -> int | None:
        """The position behind `after` of the first head that `known` does not count; None: it counts all that there are."""
        ...

    def unembedded(self, *, limit: int) -> list[Unembedded]:
        """Rows that wait for their vectors."""
        ...

    def embed(self, rows: "Sequence[tuple[Unembedded, Sequence[Vector]]]") -> None:
        """Add vectors to rows that are still at the version which they were made of."""
        ...

    def conflicts(self, *, limit: int, offset: int) -> list[ItemAddress]:
        """Items with siblings, deleted ones among them, in order."""
        ...

    def traces(
        self, *, prefix: Namespace | None = None, subject: str | None = None, derived_from: Sequence[ItemAddress] = ()
    ) -> list[ItemAddress]:
        """Items that are in or below the prefix, or of which any head or sibling is about the subject or names one of `derived_from` in its
        lineage: all of which anything is kept, deleted and expired ones among them, in order."""
        ...

    def scrub(self) -> None:
        """Make what was deleted unreadable in every file: free pages, index segments, write-ahead log."""
        ...

    def statistics(self) -> dict[str, int]:
        """Numbers of items, deleted items, operations, conflicts, vectors, bytes."""
        ...

    def close(self) -> None: ...


Wait = Callable[[float], Literal["changed", "timeout"]]
"""Waits for a change, for that many seconds at most."""
