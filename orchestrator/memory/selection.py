"""Which items a reader asks for."""

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
    """What a field of the value must be like. A missing field meets `NOT_EQUAL` only."""

    path: tuple[str, ...]
    """Names of objects' fields from the outermost on; any text may be a name. Lists are not entered. Where no field has a name with
    periods in it, they part names of fields inside each other."""
    comparison: Comparison
    operand: object
    """A JSON value, or an infinite number. Equal are values of the same JSON type, numbers of any kind being one type, lists in order and
    objects in any. Order is known between numbers and between texts, by code point; any other pair is in no order, and does not match."""

    @property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        """The paths to look at: the first one that leads to a field counts."""
        parted = tuple(part for name in self.path for part in name.split("."))
        return (self.path,) if parted == self.path else (self.path, parted)


@dataclass(frozen=True, slots=True)
class Selection:
    """Items that are there for somebody at a moment. Deleted and expired ones never are."""

    now: float
    """Seconds since the epoch; items expire by it."""
    prefix: Namespace = ()
    key_prefix: str = ""
    """Only items whose key begins with this."""
    conditions: tuple[Condition, ...] = ()
    """All of them must be met."""
    principal: Principal | None = None
    """What is not meant for them is left out; None: the store's own user, who sees everything."""
    valid_at: float | None = None
    """Only what is true at this moment, in seconds since the epoch; None: whatever was ever true."""
