"""Checks of the arguments of public functions: a wrong type is an error of the tree that names the parameter."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from ...protocols import ConfigError

T = TypeVar("T")
Choice = TypeVar("Choice", bound=StrEnum)

Location = str | os.PathLike[str]
"""The path of a file or a folder."""


def wrong_type(name: str, given: object, wanted: str, *, hint: str = "") -> ConfigError:
    """Return the error for an argument of a type that the parameter does not take; the value itself may be secret and is not shown."""
    found = f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__
    return ConfigError(f"{name} must be {wanted}, not {found}", hint=hint)


def require(name: str, given: object, kinds: type | tuple[type, ...], wanted: str, *, hint: str = "") -> None:
    """Raise `ConfigError` unless `given` is None or of one of `kinds`. True and False count as numbers nowhere."""
    allowed = kinds if isinstance(kinds, tuple) else (kinds,)
    is_stray_bool = isinstance(given, bool) and bool not in allowed and object not in allowed
    if given is not None and (is_stray_bool or not isinstance(given, allowed)):
        raise wrong_type(name, given, wanted, hint=hint)


def require_callable(name: str, given: object, wanted: str, *, hint: str = "") -> None:
    """Raise `ConfigError` unless `given` is None or can be called."""
    if given is not None and not callable(given):
        raise wrong_type(name, given, wanted, hint=hint)


def require_methods(name: str, given: object, methods: Sequence[str], wanted: str, *, hint: str = "") -> None:
    """Raise `ConfigError` unless `given` is None or has these attributes, as a protocol asks for them."""
    if given is not None and not all(hasattr(type(given), method) or hasattr(given, method) for method in methods):
        raise wrong_type(name, given, wanted, hint=hint)


def parse_section(name: str, given: Mapping[Any, Any], kind: "type[T] | TypeAdapter[T]") -> T:
    """Validate a mapping as a section of nearfar.toml is validated. Raises `ConfigError` that names the key."""
    adapter: TypeAdapter[T] = kind if isinstance(kind, TypeAdapter) else TypeAdapter(kind)
    try:
        return adapter.validate_python(dict(given))
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        problems = [f"{'.'.join([name, *map(str, item['loc'])])}: {item['msg'].removeprefix('Value error, ')}" for item in found]
        raise ConfigError("\n".join(problems), hint="`nearfar policy schema` lists the keys of each section") from error


def as_path(name: str, given: object, *, otherwise: str = "") -> Path:
    """Return a path as a `Path`, with `~` expanded; `otherwise` names what else the parameter takes. Raises `ConfigError`."""
    if not isinstance(given, (str, os.PathLike)) or not isinstance(os.fspath(given), str):
        raise wrong_type(name, given, f"{otherwise} or a path" if otherwise else "a path")
    if not os.fspath(given):
        raise ConfigError(f"{name} is an empty path", hint="name a file or a folder")
    if "\0" in os.fspath(given):
        raise ConfigError(f"{name} cannot be {os.fspath(given)!r:.80}", hint="a path has no zero character")
    try:
        return Path(given).expanduser()
    except RuntimeError as error:
        hint = "begin the path with / or with another folder"
        raise ConfigError(f"{name} begins with ~, and that user's folder is not known", hint=hint) from error


def as_choice(name: str, given: object, kind: type[Choice]) -> Choice:
    """Return a member of an enumeration by its value. Raises `ConfigError` that lists them."""
    if isinstance(given, str):
        with suppress(ValueError):
            return kind(given)
    raise ConfigError(f"{name} cannot be {given!r:.80}", hint=f"it is one of {', '.join(kind)}")


def as_tuple(name: str, given: object, of: Callable[[object], bool], wanted: str, *, hint: str = "") -> tuple[Any, ...]:
    """Return a sequence as a tuple. Raises `ConfigError` for anything else, for a text, and for a part that `of` does not accept."""
    if isinstance(given, (str, bytes, Mapping)) or not hasattr(given, "__iter__"):
        raise wrong_type(name, given, wanted, hint=hint)
    parts = tuple(given)
    for part in parts:
        if not of(part):
            raise ConfigError(f"{name} must be {wanted}, and {part!r:.80} is none", hint=hint)
    return parts
