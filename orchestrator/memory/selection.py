"""The selection of items that a reader asks for."""

from dataclasses import dataclass
from enum import StrEnum

from ...protocols.namespaces import Namespace
from .item import Principal


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
