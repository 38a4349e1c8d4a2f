"""Settings as users give them: checks of arguments, whose errors name the parameter, and the line of each key of a TOML document."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from ...protocols import ConfigError

T = TypeVar("T")
Choice = TypeVar("Choice", bound=StrEnum)

Location = str | os.PathLike[str]
"""The path of a file or a folder."""
KeyPath = tuple[str, ...]
"""The keys from the top of the document; the place in an array is a key too, as a decimal number."""

_BLANK: Final = re.compile(r"(?:\s|#[^\n]*)*")
_KEY: Final = re.compile(r"""\s*(?:([\w-]+)|"((?:[^"\\]|\\.)*)"|'([^']*)')\s*""")
_STRING: Final = re.compile(
    r"\"{3}(?:[^\\]|\\.)*?\"{3,5}" r"|'{3}.*?'{3,5}" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'",
    re.DOTALL,
)
_SCALAR: Final = re.compile(r"[^,\]}#\n]+")


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


def require_callable(name: str, given: object, wanted: str) -> None:
    """Raise `ConfigError` unless `given` is None or can be called."""
    if given is not None and not callable(given):
        raise wrong_type(name, given, wanted)


def require_methods(name: str, given: object, methods: Sequence[str], wanted: str) -> None:
    """Raise `ConfigError` unless `given` is None or has these attributes, as a protocol asks for them."""
    if given is not None and not all(hasattr(type(given), method) or hasattr(given, method) for method in methods):
        raise wrong_type(name, given, wanted)


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


def line_of(text: str, path: Sequence[str]) -> int:
    """Return the line of a key in a valid TOML document, else that of the nearest table around it, else the first."""
    lines = key_lines(text)
    return next((lines[found] for end in range(len(path), 0, -1) if (found := tuple(path[:end])) in lines), 1)


def key_lines(text: str) -> Mapping[KeyPath, int]:
    """Return the line at which each key of a valid TOML document is first set, tables and array items included."""
    scanner = _Scanner(text)
    scanner.read_document()
    return scanner.lines


class _Scanner:
    """Reads a document that `tomllib` has accepted, so that nothing needs to be checked again."""

    def __init__(self, text: str) -> None:
        self.lines: dict[KeyPath, int] = {}
        self._text = text
        self._at = 0
        self._line, self._counted = 1, 0
        self._arrays: dict[KeyPath, int] = {}
        """The index of the last item of each array of tables."""

    def read_document(self) -> None:
        table: KeyPath = ()
        while self._skip_blank() < len(self._text):
            if self._text[self._at] == "[":
                table = self._read_header()
            else:
                self._read_pair(table)

    def _read_header(self) -> KeyPath:
        start = self._at
        is_array = self._text.startswith("[[", start)
        self._at += 2 if is_array else 1
        *outer, last = self._read_key()
        self._at += 2 if is_array else 1
        path: KeyPath = ()
        for part in outer:
            path = (*path, part)
            self._note(path, start)
            path = self._inside(path)
        path = (*path, last)
        if is_array:
            self._note(path, start)
            self._arrays[path] = self._arrays.get(path, -1) + 1
        path = self._inside(path)
        self._note(path, start)
        return path

    def _inside(self, path: KeyPath) -> KeyPath:
        """Return the path of the newest item where `path` is an array of tables."""
        return (*path, str(self._arrays[path])) if path in self._arrays else path

    def _read_pair(self, table: KeyPath) -> None:
        start = self._at
        path = table
        for part in self._read_key():
            path = (*path, part)
            self._note(path, start)
        self._at += 1  # the equals sign
        self._read_value(path)

    def _read_key(self) -> list[str]:
        parts = []
        while True:
            match = _KEY.match(self._text, self._at)
            assert match is not None, "tomllib has accepted the document"
            parts.append(next(part for part in match.groups() if part is not None))
            self._at = match.end()
            if not self._text.startswith(".", self._at):
                return parts
            self._at += 1

    def _read_value(self, path: KeyPath) -> None:
        self._skip_blank()
        if self._text[self._at] == "[":
            self._read_items(path, "]")
        elif self._text[self._at] == "{":
            self._read_items(path, "}")
        else:
            match = _STRING.match(self._text, self._at) or _SCALAR.match(self._text, self._at)
            assert match is not None, "tomllib has accepted the document"
            self._at = match.end()

    def _read_items(self, path: KeyPath, closing: str) -> None:
        """Read the inside of an array or an inline table."""
        self._at += 1
        place = 0
        while self._text[self._skip_blank()] != closing:
            if self._text[self._at] == ",":
                self._at += 1
                place += 1
            elif closing == "}":
                self._read_pair(path)
            else:
                item = (*path, str(place))
                self._note(item, self._at)
                self._read_value(item)
        self._at += 1

    def _skip_blank(self) -> int:
        match = _BLANK.match(self._text, self._at)
        assert match is not None, "it may be empty"
        self._at = match.end()
        return self._at

    def _note(self, path: KeyPath, start: int) -> None:
        self._line += self._text.count("\n", self._counted, start)
        self._counted = start
        self.lines.setdefault(path, self._line)
