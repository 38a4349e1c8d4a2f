"""The interface of a database that holds the store. Engines store and find rows; the meaning of the store lies above them."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from ...protocols import InvalidRequest
from ...protocols.items import ItemAddress, Namespace, within
from .operation import Meta, Operation, Principal, VersionVector

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray


class Operator(StrEnum):
    """The operators of LangGraph's filters."""

    EQUAL = "$eq"
    NOT_EQUAL = "$ne"
    GREATER = "$gt"
    GREATER_OR_EQUAL = "$gte"
    LESS = "$lt"
    LESS_OR_EQUAL = "$lte"


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a field of the value. A missing field meets `NOT_EQUAL` only."""

    path: tuple[str, ...]
    """Names of nested fields, from the outermost on; any text may be a name. Lists are not entered. If no field has a name with periods
    in it, the periods separate names of nested fields."""
    comparison: Operator
    operand: object
    """A JSON value, or an infinite number. Values of the same JSON type are compared for equality, with all numbers one type, lists in
    order and objects in any. Numbers are ordered, and so are texts, by code point; any other pair has no order, and does not match."""

    @property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        """The paths to look at: the first one that leads to a field counts."""
        parted = tuple(part for name in self.path for part in name.split("."))
        return (self.path,) if parted == self.path else (self.path, parted)


@dataclass(frozen=True, slots=True)
class ItemSelection:
    """The items that a principal may see at a moment, without deleted and expired ones."""

    now: float
    """Seconds since the epoch; items expire by it."""
    prefix: Namespace = ()
    key_prefix: str = ""
    """Only items whose key begins with this."""
    conditions: tuple[Condition, ...] = ()
    """All of them must be met."""
    principal: Principal | None = None
    """The reader, if not the store's own user, who sees everything."""
    valid_at: float | None = None
    """Only items that are valid at this moment, in seconds since the epoch; None: at any moment."""


_ORDERS: Final = {
    Operator.GREATER: (1,),
    Operator.GREATER_OR_EQUAL: (1, 0),
    Operator.LESS: (-1,),
    Operator.LESS_OR_EQUAL: (-1, 0),
}
_MISSING: Final = object()


def selects(selection: ItemSelection, row: "ItemRow") -> bool:
    """Return whether the selection lets the row through."""
    return (
        (row.expires_at is None or row.expires_at > selection.now)
        and within(row.address.namespace, selection.prefix)
        and row.address.key.startswith(selection.key_prefix)
        and (selection.principal is None or selection.principal.sees(row.address, row.meta, row.device))
        and (selection.valid_at is None or is_valid(row, selection.valid_at))
        and all(meets(condition, row.value) for condition in selection.conditions)
    )


def is_valid(row: "ItemRow", moment: float) -> bool:
    """Return whether the item is valid at a moment, in seconds since the epoch."""
    begins, ends = row.meta.valid_from, row.meta.invalid_from
    return (begins is None or begins <= moment) and (ends is None or moment < ends)


def meets(condition: Condition, value: object) -> bool:
    """Return whether the value meets the condition. A missing field is equal to None, as in LangGraph's stores."""
    found = next((one for path in condition.paths if (one := _at(path, value)) is not _MISSING), _MISSING)
    match condition.comparison:
        case Operator.EQUAL:
            return json_equal(None if found is _MISSING else found, condition.operand)
        case Operator.NOT_EQUAL:
            return not json_equal(None if found is _MISSING else found, condition.operand)
        case comparison:
            return _order(found, condition.operand) in _ORDERS[comparison]


def json_equal(one: object, other: object) -> bool:
    """Return whether two JSON values are the same. Unlike Python's own `==`, it tells 1 from true."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(json_equal(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(json_equal, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _at(path: tuple[str, ...], value: object) -> object:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return _MISSING
        value = value[name]
    return value


def _order(one: object, other: object) -> int | None:
    """Return -1 if one is less, 0 if both are the same, 1 if one is greater; None if there is no order."""
    if isinstance(one, bool) or isinstance(other, bool):
        return None
    if isinstance(one, int | float) and isinstance(other, int | float):
        return (one > other) - (one < other)
    if isinstance(one, str) and isinstance(other, str):
        return (one > other) - (one < other)
    return None


Vector: TypeAlias = "NDArray[numpy.float32]"


class ItemRow(NamedTuple):
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
    row: ItemRow | None
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
    """The only head as JSON (`operation.py`), if it arrived so: engines need not encode it again."""


class Logged(NamedTuple):
    """A head in the order in which the replica came to know it."""

    position: int
    """0: it has just arrived, and is not stored yet."""
    operation: Operation
    payload: bytes | None = None
    """The operation as JSON (`operation.py`), if it has just been read so, and may be stored so."""


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


UNSPACED: Final = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff"  # Burmese, Khmer
    "\u3040-\u30ff\u31f0-\u31ff"  # Japanese syllables
    "\u1100-\u11ff\uac00-\ud7af"  # Korean, which sets endings close to its words
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Chinese characters
)
"""Scripts in which words are not separated by spaces: an index has their characters. A change of it needs new indexes."""


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

    def heads(self, addresses: Sequence[ItemAddress]) -> dict[ItemAddress, tuple[Operation, ...]]:
        """Return the heads of those items that have any, deleted items included."""

    def apply(self, changes: Sequence[Change]) -> None:
        """Put the items into their new state. Each address occurs once."""

    def known(self) -> dict[str, int]:
        """Return the version vector of this replica."""

    def learn(self, known: VersionVector, clock: int) -> None:
        """Raise the version vector to at least `known`, and the clock to at least `clock`."""

    def setting(self, name: str) -> str | None:
        """Return a setting of the replica, for code above the engine."""

    def set(self, name: str, value: str | None) -> None:
        """Set a setting of the replica; None removes it."""


class Engine(Protocol):
    """A replica in a database. Calls may come from any thread, and several processes may have the same replica open.

    Every method raises `StoreUnavailable` if the database cannot be used now (locked for too long, disk full, out of reach), and
    `StoreCorrupt` if it is damaged.
    """

    device: str
    """The replica's name, which never changes: random, and kept in the database."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Open a write transaction."""

    def rows(self, addresses: Sequence[ItemAddress], selection: ItemSelection) -> dict[ItemAddress, ItemRow]:
        """Return the rows of those items that the selection lets through."""

    def numbered(self, numbers: Sequence[int]) -> dict[int, ItemRow]:
        """Return rows by the numbers that hits carry; rows that are gone meanwhile are left out."""

    def select(self, selection: ItemSelection, *, limit: int, offset: int) -> list[ItemRow]:
        """Return the selected rows, the last updated first; those of one moment by namespace and key."""

    def keyword(self, query: str, selection: ItemSelection, *, limit: int) -> list[Hit]:
        """Return the best matches by words (bm25, or the database's nearest equivalent). Any text is a valid query."""

    def nearest(self, vector: "Vector", selection: ItemSelection, *, limit: int) -> list[Hit]:
        """Return the best items by cosine similarity with any of their passages, among the vectors of the engine's embedder. Exactly
        `limit` if there are as many, however narrow the selection is."""

    def namespaces(self, selection: ItemSelection) -> list[Namespace]:
        """Return the namespaces that have a selected item, in order."""

    def refresh(self, addresses: Sequence[ItemAddress], now: float) -> None:
        """Restart the items' time to live."""

    def expired(self, now: float, *, limit: int) -> list[ItemAddress]:
        """Return items that have expired and are still stored."""

    def changes(self, after: int, *, limit: int) -> list[Position]:
        """Return the change feed after a position, in order."""

    def forgotten(self, after: int, *, limit: int) -> list[Forgotten]:
        """Return the items forgotten after a position, in order; 0: all that are known. Raises `InvalidRequest` as `check_told` does."""

    def position(self) -> int:
        """Return the position of the last change; 0 if there was none yet."""

    def operations(self, after: int, *, limit: int) -> list[Logged]:
        """Return all heads after a position, in order."""

    def first_unknown(self, after: int, known: VersionVector) -> int | None:
        """Return the position after `after` of the first head that `known` does not count; None if it counts all of them."""

    def unembedded(self, *, limit: int) -> list[Unembedded]:
        """Return rows that wait for their vectors."""

    def embed(self, rows: "Sequence[tuple[Unembedded, Sequence[Vector]]]") -> None:
        """Add vectors to rows that are still at the version from which they were made."""

    def conflicts(self, *, limit: int, offset: int) -> list[ItemAddress]:
        """Return the items with siblings, deleted ones included, in order."""

    def traces(
        self, *, prefix: Namespace | None = None, subject: str | None = None, derived_from: Sequence[ItemAddress] = ()
    ) -> list[ItemAddress]:
        """Return the items in or below the prefix, and those with a head or sibling that is about the subject or names one of
        `derived_from` in its lineage: all of which anything is stored, deleted and expired ones included, in order."""

    def scrub(self) -> None:
        """Make deleted data unreadable in every file: free pages, index segments, write-ahead log."""

    def statistics(self) -> dict[str, int]:
        """Return the numbers of items, deleted items, operations, conflicts, vectors and bytes."""

    def close(self) -> None: ...
