"""Measures by which prompts of any kind can be compared: length, density and formality. Tens of microseconds of pure Python."""

import re
from math import log1p
from typing import Final

from ...util.function_words import FUNCTION_WORDS
from .features import windowed

MEASURES: Final = (
    "characters",
    "words",
    "lines",
    "sentences",
    "digits",
    "operators",
    "brackets",
    "backslashes",
    "commas",
    "questions",
    "capitals",
    "choices",
    "indented lines",
    "assignments",
    "loops",
    "single letters",
    "negations",
    "quantifiers",
    "distinct words",
    "function words",
    "letters in a word",
    "words in a sentence",
)
"""Names of the measures of `measures`, in its order."""


def _words(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


_WORD: Final = re.compile(r"[a-z]+")
_CHOICE: Final = re.compile(r"\n\(?[A-J][.)] ")
_DIGITS: Final = b"0123456789"
_OPERATORS: Final = b"-+*/=<>^%|"
_BRACKETS: Final = b"([{"
_CAPITALS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LOOPS: Final = frozenset({"for", "while"})
_LETTERS: Final = frozenset("bcdefghjklmnopqrstuvwxyz")
"""Single letters that are no English words."""
_NEGATIONS: Final = _words("not no except never neither nor without none false incorrect cannot")
_QUANTIFIERS: Final = _words("all every each any some least most only exactly both more less greater fewer than")


def measures(text: str) -> tuple[float, ...]:
    """Measure what `MEASURES` names: counts as logarithms, then shares and means. Of a long text, the head and the tail count."""
    seen = windowed(text)
    raw = seen.encode("utf-8", "replace")
    words = _WORD.findall(seen.lower())
    count = max(len(words), 1)
    sentences = seen.count(". ") + seen.count("? ") + seen.count("! ") + 1
    counts = (
        len(text),
        len(words),
        seen.count("\n"),
        sentences,
        _count(raw, _DIGITS),
        _count(raw, _OPERATORS),
        _count(raw, _BRACKETS),
        seen.count("\\"),
        seen.count(","),
        seen.count("?"),
        _count(raw, _CAPITALS),
        len(_CHOICE.findall(seen)),
        seen.count("\n  "),
        seen.count(" = "),
        sum(map(_LOOPS.__contains__, words)),
        sum(map(_LETTERS.__contains__, words)),
        sum(map(_NEGATIONS.__contains__, words)),
        sum(map(_QUANTIFIERS.__contains__, words)),
    )
    return (
        *map(log1p, counts),
        len(set(words)) / count,
        sum(map(FUNCTION_WORDS.__contains__, words)) / count,
        sum(map(len, words)) / count,
        len(words) / sentences,
    )


def _count(raw: bytes, characters: bytes) -> int:
    # Deleting them all and looking how much is left is far faster than a look at each.
    return len(raw) - len(raw.translate(None, characters))
