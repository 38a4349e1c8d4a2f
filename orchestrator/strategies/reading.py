"""Values in a task's state, which is plain JSON."""

from functools import cache
from typing import Any, Final, TypeVar

from ...protocols.messages import Value

V = TypeVar("V", bound=Value)
Json = dict[str, Any]

_KEPT: Final = 1024
"""Parts of states whose values are remembered: those of some tens of tasks side by side."""


class _Memo:
    """A memo of the parts of states that were written or read last, so that nodes need not validate and dump them again.

    A node replaces parts of the state and changes none in place, and values are frozen: an object of one kind always stands for the same
    object of the other kind. An entry holds its object, so that no other object gets the same identity.
    """

    def __init__(self) -> None:
        self._values: dict[int, tuple[Json, Value]] = {}
        self._parts: dict[int, tuple[Value, Json]] = {}

    def value(self, kind: type[V], part: Json) -> V:
        known = self._values.get(id(part))
        if known is not None and known[0] is part and isinstance(known[1], kind):
            return known[1]
        value = kind.model_validate(part)
        self._keep(part, value)
        return value

    def part(self, value: Value) -> Json:
        known = self._parts.get(id(value))
        if known is not None and known[0] is value:
            return known[1]
        part: Json = value.__pydantic_serializer__.to_python(value, mode="json")  # `model_dump` without its thirteen options
        if not any(getattr(value, name) for name in _left_out(type(value))):  # what is left out is not to be read back
            self._keep(part, value)
        return part

    def _keep(self, part: Json, value: Value) -> None:
        if len(self._values) >= _KEPT:
            self._values.clear()
            self._parts.clear()
        self._values[id(part)] = (part, value)
        self._parts[id(value)] = (value, part)


_memo: Final = _Memo()


def as_json(value: Value) -> Json:
    """Return the value as a part of a task's state. Change nothing in it: it may stand in other states."""
    return _memo.part(value)


def value_of(kind: type[V], part: Json) -> V:
    """Return the value that a part of a task's state stands for. Raises pydantic's `ValidationError`."""
    return _memo.value(kind, part)


@cache
def _left_out(kind: type[Value]) -> tuple[str, ...]:
    """Return the fields that a value's JSON does not hold; all of them are empty unless given."""
    return tuple(name for name, field in kind.model_fields.items() if field.exclude)
