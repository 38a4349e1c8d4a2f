"""Features and measures of a prompt. Pure Python, tens of microseconds.

Features, the hashed n-grams of its words and its surface, are read by a trained head. Measures of length, density and formality compare
prompts of any kind.
"""

import re
from collections import Counter
from math import log, log1p
from typing import Final
from zlib import crc32

from ...compression.scoring import FUNCTION_WORDS

VERSION: Final = "hashed/2"
"""Version of the features; a head trained on another version cannot be used."""
BUCKETS: Final = 1 << 17
"""Buckets of the hashing trick (arXiv 0902.2206): n-grams that share one share a weight."""
WINDOW: Final = 1000
"""Characters read from the head and from the tail of a prompt that is longer than both."""

SURFACE: Final = (
    "characters",
    "words",
    "lines",
    "digits",
    "capitals",
    "signs",
    "distinct words",
    "length of a word",
    "formulas",
    "code",
    "questions",
)
"""Names of the measures of `surface`, in its order."""

_WORD: Final = re.compile(rb"[a-z0-9_\x80-\xff]+|[^\sa-z0-9_\x80-\xff]")
_CODE: Final = re.compile(r"[{}();=<>_]|->|::")
_FORMULA: Final = re.compile(r"[\\^$]|\d\s*[-+*/=]\s*\d")
_DIGITS: Final = b"0123456789"
_CAPITALS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SIGNS: Final = b"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"


def windowed(text: str) -> str:
    """Return the head and the tail of a long text, the whole of a short one."""
    return text if len(text) <= 2 * WINDOW else f"{text[:WINDOW]} {text[-WINDOW:]}"


def hashed(text: str) -> tuple[list[int], list[float]]:
    """Hash the text's words and pairs of neighbouring words. Return each bucket once, and 1 + the logarithm of how often it occurs."""
    words = _WORD.findall(windowed(text).lower().encode("utf-8", "replace"))
    sums = [crc32(word) for word in words]
    # A checksum can be continued: this is that of both words with a space between them.
    sums += [crc32(b" " + word, before) for word, before in zip(words[1:], sums, strict=False)]
    counts = Counter([checksum % BUCKETS for checksum in sums])
    return list(counts), [1.0 if count == 1 else 1.0 + log(count) for count in counts.values()]


def surface(text: str) -> tuple[float, ...]:
    """Measure what `SURFACE` names: counts as logarithms, else shares of characters or words; of a long text, of its windows."""
    seen = windowed(text)
    raw = seen.encode("utf-8", "replace")
    words = seen.split()
    count = max(len(words), 1)
    return (
        log1p(len(text)),
        log1p(len(words)),
        log1p(seen.count("\n")),
        _share(raw, _DIGITS),
        _share(raw, _CAPITALS),
        _share(raw, _SIGNS),
        len(set(words)) / count,
        sum(map(len, words)) / count,
        len(_FORMULA.findall(seen)) / count,
        len(_CODE.findall(seen)) / count,
        seen.count("?") / count,
    )


def _share(raw: bytes, characters: bytes) -> float:
    # Deleting them all and looking how much is left is far faster than a look at each.
    return 1 - len(raw.translate(None, characters)) / len(raw) if raw else 0.0


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


_PLAIN_WORD: Final = re.compile(r"[a-z]+")
_CHOICE: Final = re.compile(r"\n\(?[A-J][.)] ")
_OPERATORS: Final = b"-+*/=<>^%|"
_BRACKETS: Final = b"([{"
_LOOPS: Final = frozenset({"for", "while"})
_LETTERS: Final = frozenset("bcdefghjklmnopqrstuvwxyz")
"""Single letters that are no English words."""
_NEGATIONS: Final = _words("not no except never neither nor without none false incorrect cannot")
_QUANTIFIERS: Final = _words("all every each any some least most only exactly both more less greater fewer than")


def measures(text: str) -> tuple[float, ...]:
    """Measure what `MEASURES` names: counts as logarithms, then shares and means. Of a long text, the head and the tail count."""
    seen = windowed(text)
    raw = seen.encode("utf-8", "replace")
    words = _PLAIN_WORD.findall(seen.lower())
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
