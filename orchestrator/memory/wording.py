"""Find out whether a text names somebody, or repeats what an item says."""

import html
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

_LEAST_NAME: Final = 2
_DEPTH: Final = 3
"""Layers of escapes that are undone: a result of a tool in a record is JSON in JSON by itself."""
_ESCAPE: Final = re.compile(r"(?:\\u[0-9a-fA-F]{4})+|\\.")
_PLAIN: Final = str.maketrans({**dict.fromkeys("\u2018\u2019\u02bc", "'"), **dict.fromkeys("\u2010\u2012\u2013\u2014\u2212", "-")})
_UNSPACED: Final = ("THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
"""Scripts that are written without spaces and whose letters are not wide."""
_LEAST_TEXT: Final = 8
"""Characters of a text, below which the same text elsewhere says nothing: "yes" and "tea" are in most runs."""


@dataclass(frozen=True, slots=True)
class Wording:
    """A name, and texts of items, as other texts may repeat them: in other cases, forms of Unicode and spacing, or escaped."""

    name: re.Pattern[str] | None = None
    texts: frozenset[str] = frozenset()

    @classmethod
    def of(cls, name: str | None, values: Iterable[Any] = ()) -> "Wording":
        """Return the wording of a name and of values. Short texts, and names that are a number or one letter, are not looked for."""
        folded = (reading for value in values for text in leaves(value) for reading in _readings(text))
        return cls(_pattern(fold(name or "")), frozenset(text for text in folded if len(text) >= _LEAST_TEXT))

    def is_named_in(self, value: Any) -> bool:  # noqa: ANN401 - a value as JSON has it
        """Return whether any text in a value has the name, as whole words."""
        return self.name is not None and any(self.name.search(reading) for text in leaves(value) for reading in _readings(text))

    def is_in(self, text: str) -> bool:
        """Return whether a text has the name, or repeats a text."""
        return any(self._is_in_reading(reading) for reading in _readings(text))

    def _is_in_reading(self, folded: str) -> bool:
        return (self.name is not None and self.name.search(folded) is not None) or any(one in folded for one in self.texts)


def fold(text: str) -> str:
    """Return a text without what makes no difference: case, forms of Unicode, invisible characters, kinds of white space and of marks."""
    plain = unicodedata.normalize("NFKC", text).translate(_PLAIN)
    if not plain.isascii():
        plain = "".join(character for character in plain if unicodedata.category(character) != "Cf")
    return " ".join(plain.casefold().split())


def _readings(text: str) -> Iterator[str]:
    """Yield a text, folded, as it stands and with its escapes undone: tools return JSON and HTML, often one inside of the other."""
    yield fold(text)
    for _ in range(_DEPTH):
        text, before = html.unescape(unquote(_ESCAPE.sub(_unescaped, text))), text
        if text == before:
            return
        yield fold(text)


def _unescaped(escape: re.Match[str]) -> str:
    try:
        return str(json.loads(f'"{escape[0]}"'))
    except ValueError:  # no escape of JSON
        return escape[0]


def leaves(value: Any) -> Iterator[str]:  # noqa: ANN401 - a value as JSON has it
    """Yield all texts and numbers in a value, the names of its fields among them."""
    match value:
        case str():
            yield value
        case Mapping():
            for name, part in value.items():
                yield str(name)
                yield from leaves(part)
        case list() | tuple() | set() | frozenset():
            for part in value:
                yield from leaves(part)
        case int() | float() if not isinstance(value, bool):
            yield str(value)


def _pattern(name: str) -> re.Pattern[str] | None:
    """Return what finds a folded name between other words; scripts that are written without spaces have no such ends of words."""
    if len(name) < _LEAST_NAME or name.isdecimal():
        return None
    before = "" if _is_unspaced(name[0]) else r"(?<!\w)"
    behind = "" if _is_unspaced(name[-1]) else r"(?!\w)"
    return re.compile(before + re.escape(name) + behind)


def _is_unspaced(letter: str) -> bool:
    """Return whether a letter is of a script that puts no spaces between words."""
    return unicodedata.east_asian_width(letter) in "WF" or unicodedata.name(letter, "").startswith(_UNSPACED)
