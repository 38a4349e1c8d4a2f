"""The selection of items that a reader asks for, and its meaning for a row: the definition that the engines' queries must agree with."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ...protocols.namespaces import Namespace, within
from .item import Principal

if TYPE_CHECKING:
    from .engine import Row


class Comparison(StrEnum):
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
    comparison: Comparison
    operand: object
    """A JSON value, or an infinite number. Values of the same JSON type are compared for equality, with all numbers one type, lists in
    order and objects in any. Numbers are ordered, and so are texts, by code point; any other pair has no order, and does not match."""

    @property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        """The paths to look at: the first one that leads to a field counts."""
        parted = tuple(part for name in self.path for part in name.split("."))
        return (self.path,) if parted == self.path else (self.path, parted)


@dataclass(frozen=True, slots=True)
class Selection:
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
    Comparison.GREATER: (1,),
    Comparison.GREATER_OR_EQUAL: (1, 0),
    Comparison.LESS: (-1,),
    Comparison.LESS_OR_EQUAL: (-1, 0),
}
_MISSING: Final = object()


def selects(selection: Selection, row: "Row") -> bool:
    """Return whether the selection lets the row through."""
    return (
        (row.expires_at is None or row.expires_at > selection.now)
        and within(row.address.namespace, selection.prefix)
        and row.address.key.startswith(selection.key_prefix)
        and (selection.principal is None or selection.principal.sees(row.address, row.meta, row.device))
        and (selection.valid_at is None or is_valid(row, selection.valid_at))
        and all(meets(condition, row.value) for condition in selection.conditions)
    )


def is_valid(row: "Row", moment: float) -> bool:
    """Return whether the item is valid at a moment, in seconds since the epoch."""
    begins, ends = row.meta.valid_from, row.meta.invalid_from
    return (begins is None or begins <= moment) and (ends is None or moment < ends)


def meets(condition: Condition, value: object) -> bool:
    """Return whether the value meets the condition. A missing field is equal to None, as in LangGraph's stores."""
    found = next((one for path in condition.paths if (one := _at(path, value)) is not _MISSING), _MISSING)
    match condition.comparison:
        case Comparison.EQUAL:
            return json_equal(None if found is _MISSING else found, condition.operand)
        case Comparison.NOT_EQUAL:
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
