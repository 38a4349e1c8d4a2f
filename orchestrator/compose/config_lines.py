"""Find the line of each key of a TOML document, for error messages."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

KeyPath = tuple[str, ...]
"""The keys from the top of the document; the place in an array is a key too, as a decimal number."""

_BLANK: Final = re.compile(r"(?:\s|#[^\n]*)*")
_KEY: Final = re.compile(r"""\s*(?:([\w-]+)|"((?:[^"\\]|\\.)*)"|'([^']*)')\s*""")
_STRING: Final = re.compile(
    r"\"{3}(?:[^\\]|\\.)*?\"{3,5}" r"|'{3}.*?'{3,5}" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'",
    re.DOTALL,
)
_SCALAR: Final = re.compile(r"[^,\]}#\n]+")


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
