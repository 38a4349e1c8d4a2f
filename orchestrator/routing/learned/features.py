"""What a prompt shows at a glance: hashed n-grams of its words, and its surface. Pure Python, tens of microseconds."""

import math
import re
from collections import Counter
from typing import Final
from zlib import crc32

BUCKETS: Final = 1 << 17
"""Of the hashing trick (arXiv 0902.2206): n-grams that share one share a weight."""
WINDOW: Final = 300
"""Words read from the head and from the tail of a prompt that is longer than both."""

_WORD: Final = re.compile(r"\w+|[^\w\s]")
_CODE: Final = re.compile(r"[{}();=<>_]|->|::")
_FORMULA: Final = re.compile(r"[\\^$]|\d\s*[-+*/=]\s*\d")

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
"""What `surface` measures, in its order."""


def windowed(text: str) -> str:
    """The head and the tail of a long text, the whole of a short one."""
    words = text.split(" ")
    return text if len(words) <= 2 * WINDOW else " ".join([*words[:WINDOW], *words[-WINDOW:]])


def hashed(text: str) -> tuple[list[int], list[float]]:
    """Buckets of the text's words and pairs of neighbouring words, each once, and 1 + the logarithm of how often it occurs."""
    words = _WORD.findall(windowed(text).lower())
    counts = Counter(words)
    counts.update(f"{first} {second}" for first, second in zip(words, words[1:], strict=False))
    found: dict[int, float] = {}
    for gram, count in counts.items():
        bucket = crc32(gram.encode("utf-8", "replace")) % BUCKETS
        found[bucket] = found.get(bucket, 0.0) + 1.0 + math.log(count)
    return list(found), list(found.values())


def surface(text: str) -> tuple[float, ...]:
    """The figures that `SURFACE` names: counts as logarithms, the others as shares of characters or words."""
    length = max(len(text), 1)
    words = windowed(text).split()
    count = max(len(words), 1)
    return (
        math.log1p(len(text)),
        math.log1p(len(words)),
        math.log1p(text.count("\n")),
        sum(map(str.isdigit, text)) / length,
        sum(map(str.isupper, text)) / length,
        sum(not character.isalnum() and not character.isspace() for character in text) / length,
        len(set(words)) / count,
        sum(map(len, words)) / count,
        len(_FORMULA.findall(text)) / count,
        len(_CODE.findall(text)) / count,
        text.count("?") / count,
    )
