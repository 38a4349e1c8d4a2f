"""Reads the fields of a request's JSON body, and says which one cannot be used."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from ...protocols import InvalidRequest

Body = Mapping[str, Any]
"""A JSON object that a client has sent."""
T = TypeVar("T")


class InvalidField(InvalidRequest):
    """A field of a request cannot be used."""

    def __init__(self, param: str, problem: str, *, hint: str = "") -> None:
        """Name the field by its path, such as `tools[0].name`."""
        super().__init__(f"{param}: {problem}", hint=hint)
        self.param = param


def read(body: Body, name: str, kind: type[T] | tuple[type[T], ...], *, within: str = "") -> T | None:
    """Return a field of the type that it has to have; None where it is absent or null. Raises `InvalidField`."""
    value = body.get(name)
    if value is None:
        return None
    is_bool = isinstance(value, bool)
    allows_bool = kind is bool or (isinstance(kind, tuple) and bool in kind)
    if not isinstance(value, kind) or (is_bool and not allows_bool):
        raise InvalidField(f"{within}{name}", f"it must not be {_shown(value)}")
    return value


def read_number(body: Body, name: str) -> float | None:
    """Return a number; None where it is absent or null."""
    return read(body, name, (int, float))


def read_list(body: Body, name: str, *, within: str = "") -> Sequence[Any]:
    """Return a list; an empty one where it is absent or null."""
    return read(body, name, list, within=within) or []


def read_object(value: object, param: str) -> Body:
    """Return a value that has to be a JSON object."""
    if not isinstance(value, Mapping):
        raise InvalidField(param, f"it must be an object, not {_shown(value)}")
    return value


def required_text(body: Body, name: str, param: str) -> str:
    """Return a text that has to be there."""
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidField(f"{param}.{name}" if param else name, "it must be a text that is not empty")
    return value


def _shown(value: object) -> str:
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
    return kinds.get(type(value), "null")
