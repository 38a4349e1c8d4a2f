"""Evaluate a selection on a row: the definition that the engines' queries must agree with."""

from typing import Final

from ...protocols.namespaces import within
from .engine import Row
from .selection import Comparison, Condition, Selection

_ORDERS: Final = {
    Comparison.GREATER: (1,),
    Comparison.GREATER_OR_EQUAL: (1, 0),
    Comparison.LESS: (-1,),
    Comparison.LESS_OR_EQUAL: (-1, 0),
}
_MISSING: Final = object()


def selects(selection: Selection, row: Row) -> bool:
    """Return whether the selection lets the row through."""
    return (
        (row.expires_at is None or row.expires_at > selection.now)
        and within(row.address.namespace, selection.prefix)
        and row.address.key.startswith(selection.key_prefix)
        and (selection.principal is None or selection.principal.sees(row.address, row.meta, row.device))
        and (selection.valid_at is None or is_valid(row, selection.valid_at))
        and all(meets(condition, row.value) for condition in selection.conditions)
    )


def is_valid(row: Row, moment: float) -> bool:
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
