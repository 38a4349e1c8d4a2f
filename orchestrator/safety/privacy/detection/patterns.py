"""Detectors of private data by a pattern, a check of the match, and the words around it.

Patterns take time in proportion to any text: each repetition has a limit or is possessive (it gives nothing back, so that no text is
tried
in two ways), and each check looks at a limited part of the text.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from .finding import Finding

_DIGIT: Final = re.compile(r"\d")
Check = Callable[[re.Match[str]], bool]
_REACH: Final = 48
"""Characters before a match in which words may tell what it is."""


def always(match: re.Match[str]) -> bool:
    """Accept every match."""
    return True


class PatternDetector:
    """Finds what matches a pattern and passes a check.

    Args:
        group: the part of a match that is private.
        hints: one of these is in any text that has a match, in lower case: without them the pattern is not tried.
    """

    def __init__(self, type: str, pattern: re.Pattern[str], check: Check = always, *, group: int = 0, hints: Sequence[str] = ("",)) -> None:
        self._type = type
        self._pattern = pattern
        self._check = check
        self._group = group
        self._hints = hints

    def find(self, text: str) -> list[Finding]:
        lowered = text.lower()
        if not any(hint in lowered for hint in self._hints):
            return []
        return [self._finding(match) for match in self._pattern.finditer(text) if self._check(match)]

    def _finding(self, match: re.Match[str]) -> Finding:
        return Finding(*match.span(self._group), self._type, match[self._group])


def follows(words: re.Pattern[str], match: re.Match[str]) -> bool:
    """Return whether one of the words stands in the text before a match."""
    return words.search(match.string, max(0, match.start() - _REACH), match.start()) is not None


def precedes(words: re.Pattern[str], match: re.Match[str]) -> bool:
    """Return whether one of the words stands directly behind a match."""
    return words.match(match.string, match.end(), match.end() + _REACH) is not None


def digits_of(text: str) -> str:
    """Return the digits of a number, of any script, as ASCII."""
    return "".join(str(int(character)) for character in text if character.isdecimal())


def has_digits(text: str, least: int) -> bool:
    """Return whether a text has at least `least` digits."""
    return any(count >= least for count, _ in enumerate(_DIGIT.finditer(text), start=1))


def lowered(text: str) -> str:
    """Return the text in lower case, with each letter at its old position."""
    small = text.lower()
    return small if len(small) == len(text) else "".join(one if len(one) == 1 else letter for letter in text for one in [letter.lower()])


def any_of(words: Iterable[str]) -> str:
    """Return a pattern of any of these words, the longest first. Words with one first letter stand together, for speed."""
    by_letter: dict[str, list[str]] = {}
    for word in sorted(words, key=len, reverse=True):
        by_letter.setdefault(word[0], []).append(re.escape(word[1:]))
    return "|".join(f"{re.escape(letter)}(?:{'|'.join(rests)})" for letter, rests in by_letter.items())
