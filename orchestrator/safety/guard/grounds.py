"""Provenance of values: find out whether a value comes from a trusted text.

A value comes from a text that says it: in any spacing, and a number or a date in any notation. A part of a longer word, address or path
is
another value, which an attacker may have chosen. Look-alikes are not equal: an argument reaches its tool as it is. Case makes a
difference,
except in schemes, hosts, and the first letters of plain words.
"""

import json
import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from enum import IntEnum
from functools import cached_property
from typing import Final
from unicodedata import combining

from pydantic import JsonValue

from .casing import folded, is_same
from .common_words import COMMON
from .moments import Moments, moments
from .numbers import numbers_in

_JOINING: Final = frozenset("-_.@/\\:+#~=&%?*")
"""Characters that hold an address, a path or a name together where there is no space."""
_OPENING: Final = frozenset("/\\~*@=&?%+")
"""Before or behind a value these make another one of it, whatever is on their other side."""
_AS_NUMBER: Final = re.compile(r"[$€£]?(-?(?:[1-9]\d{0,2}(?:,\d{3})+|0|[1-9]\d*)(?:\.\d+)?)", re.ASCII)
"""A text that means a number: with zeros in front it is a name."""
_GROUPED: Final = re.compile(r"(?<![\w.@/-])\+?\d(?:[ ().-]{0,2}\d){5,}(?![\w@/-])", re.ASCII)
"""Figures in groups, as those of telephones and accounts are."""
_LIST: Final = re.compile(r" ?; ?| ?, | ,|(?<!\d),|,(?!\d)")
"""Between the members of a list; a comma between two figures is a part of a number."""
_LOCAL: Final = frozenset("!#$%&'*+/=?^_`{|}~-.")
"""Characters allowed in a mailbox's name (RFC 5322): `o'brien@example.com` is another one than `brien@example.com`."""
_LINE_ENDS: Final = r"\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029"
_SCHEME: Final = re.compile(r"\A(?:https?://|#)", re.IGNORECASE)
"""A prefix that a value may have although the text says it without."""
_END: Final = "\0"
"""Marks the end of a text."""
_FAR: Final = 64
"""Number of characters next to a value that are looked at."""
_LEAST: Final = 3
"""Letters of a word that names anything."""


class Strength(IntEnum):
    """Strength of the match between a value and the trusted texts."""

    NONE = 0
    """It was not."""
    WEAK = 1
    """The value is so short or common that the text may mean something else."""
    STRONG = 2


class Grounds:
    """Trusted texts. A text of JSON stands for the values in it."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._known: dict[str, _Said] = {}
        """Parsed texts, shared with the sets made by `extended`, so that each text is parsed once in a run."""
        self._said = self._read(texts)

    def extended(self, texts: Iterable[str]) -> "Grounds":
        """Return a set of these texts and `texts`."""
        more = Grounds(())
        more._known = self._known
        more._said = [*self._said, *self._read(texts)]
        return more

    def strength(self, value: str | float) -> Strength:
        """Return how strongly a value matches the texts."""
        if not isinstance(value, str):
            return self._of_number(Decimal(value) if isinstance(value, int) else Decimal(str(value)))
        value = _normalised(value)
        found = self._of_text(value)
        if found is Strength.NONE and len(parts := [part for part in _LIST.split(value) if part]) > 1:
            return min(map(self._of_text, parts))
        return found

    def _read(self, texts: Iterable[str]) -> "list[_Said]":
        return [self._known.setdefault(text, _Said(text)) for text in texts]

    def _of_number(self, number: Decimal) -> Strength:
        if not any(number in said.numbers for said in self._said):
            return Strength.NONE
        is_lone = number == int(number) and abs(number) < 10
        return Strength.WEAK if is_lone else Strength.STRONG

    def _of_text(self, value: str) -> Strength:
        if not value:
            return Strength.WEAK  # it says nothing, or everything
        if _END in value or not any(letter.isalnum() for letter in value):
            return Strength.NONE  # `*` and `/` say a lot
        if (number := _AS_NUMBER.fullmatch(value)) is not None:
            return self._of_number(Decimal(number[1].replace(",", "")))
        if not (any(said.says(value) for said in self._said) or self._says_figures(value) or self._moments.has(value)):
            return Strength.NONE
        words = re.findall(r"\w+", folded(value))
        return Strength.WEAK if all(len(word) < _LEAST or word in COMMON for word in words) else Strength.STRONG

    def _says_figures(self, value: str) -> bool:
        return _GROUPED.fullmatch(value) is not None and any(_figures(value) in said.figures for said in self._said)

    @cached_property
    def _moments(self) -> Moments:
        found = [said.moments for said in self._said]
        days, clocks, years = (each.days for each in found), (each.clocks for each in found), (each.years for each in found)
        return Moments(frozenset().union(*days), frozenset().union(*clocks), frozenset().union(*years))


class _Said:
    """One text, and the values that it says."""

    def __init__(self, text: str) -> None:
        self._raw = text

    def says(self, value: str) -> bool:
        """Return whether the text says the value, not as a part of a longer one."""
        joining = _JOINING | _LOCAL if "@" in value else _JOINING
        for each in {value, _SCHEME.sub("", value, count=1)}:
            for found in re.finditer(re.escape(folded(each)), self._folded):
                start, end = found.span()
                if _stands_alone(self._folded, start, end, joining) and is_same(each, self._text[start:end]):
                    return True
        return False

    @cached_property
    def numbers(self) -> frozenset[Decimal]:
        return frozenset(numbers_in(self._folded))

    @cached_property
    def figures(self) -> frozenset[str]:
        """Numbers written as groups of digits, without what separates the groups."""
        return frozenset(_figures(found.group()) for found in _GROUPED.finditer(self._text))

    @cached_property
    def moments(self) -> Moments:
        return moments(self._text)

    @cached_property
    def _folded(self) -> str:
        return folded(self._text)

    @cached_property
    def _text(self) -> str:
        return "".join(f"{_normalised(part)}{_END}" for part in _parts(self._raw))


def _parts(text: str) -> Iterator[str]:
    """Yield the values in a text of JSON; yield any other text as it is."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        yield text
        return
    yield from _values(value)


def _values(value: JsonValue) -> Iterator[str]:
    if isinstance(value, dict):
        for name, member in value.items():
            yield name
            yield from _values(member)
    elif isinstance(value, list):
        for member in value:
            yield from _values(member)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def _normalised(text: str) -> str:
    """Return the text with single spaces. Line ends stay, because a command may end there."""
    return re.sub(rf"\s*[{_LINE_ENDS}]\s*", "\n", re.sub(rf"[^\S{_LINE_ENDS}]+", " ", text.strip()))


def _stands_alone(text: str, start: int, end: int, joining: frozenset[str]) -> bool:
    """Return whether the span is no part of a longer word, number, address or path. `joining`: characters that hold one together before
    it."""
    before, behind = text[max(start - _FAR, 0) : start], text[end : end + _FAR]
    return _ends(before[::-1], joining, is_figure=text[start].isdigit()) and _ends(behind, _JOINING, is_figure=text[end - 1].isdigit())


def _ends(neighbours: str, joining: frozenset[str], *, is_figure: bool) -> bool:
    """Return whether a value ends before these neighbouring characters, given with the nearest one first."""
    if is_figure and neighbours[:1] == "," and neighbours[1:2].isdigit():
        return False
    for place, letter in enumerate(neighbours):
        if letter.isalnum() or combining(letter) or (place == 0 and letter in _OPENING):
            return False
        if letter not in joining:
            return True
    return len(neighbours) < _FAR


def _figures(text: str) -> str:
    return re.sub(r"[ ().-]", "", text)
