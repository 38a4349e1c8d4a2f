"""Cut a text into pieces that make sense by themselves: sentences and lines of prose, objects and entries of JSON."""

import re
from collections.abc import Iterable, Iterator

Span = tuple[int, int]
"""Start and end of a piece in the text."""

SHORTEST = 24
"""Characters of a piece; a shorter piece joins the piece before it."""
LONGEST = 240
"""Characters of a piece of structured text that is not cut further, and of the pieces of a text without any border."""

_PROSE_BORDER = re.compile(r"\n+|(?<=[.!?])[\"')\]]*\s+|(?<=[。！？])")
_STRUCTURE = re.compile(r'\\.|["\[\]{},]')
_ENTRIES = 3
"""A text with at least this many pairs of key and value at its beginning counts as structured."""
_PAIR = re.compile(r'["\']?[\w-]+["\']?\s*:\s*\S')


def pieces(text: str) -> list[Span]:
    """Return consecutive spans that together are the text."""
    cut = _structured if _is_structured(text) else _prose
    joined: list[Span] = []
    for start, end in _bounded(cut(text)):
        if joined and (end - start < SHORTEST or joined[-1][1] - joined[-1][0] < SHORTEST) and end - joined[-1][0] <= LONGEST:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _is_structured(text: str) -> bool:
    return text.lstrip()[:1] in ("{", "[") and len(_PAIR.findall(text[:1000])) >= _ENTRIES


def _prose(text: str) -> Iterator[Span]:
    start = 0
    for border in _PROSE_BORDER.finditer(text):
        if border.end() > start:
            yield start, border.end()
            start = border.end()
    if start < len(text):
        yield start, len(text)


def _structured(text: str) -> Iterator[Span]:
    """Yield each object or list as a whole if it is short, else its entries."""
    marks = list(_marks(text))
    short = _short_ends(marks)
    start = behind = 0
    for place, mark in marks:
        if place < behind:
            continue
        behind = short.get(place, behind)
        if mark == ",":
            yield start, place + 1
            start = place + 1
    if start < len(text):
        yield start, len(text)


def _short_ends(marks: Iterable[tuple[int, str]]) -> dict[int, int]:
    """Return the ends of objects and lists that are no longer than a piece, by their starts."""
    opened: list[int] = []
    ends: dict[int, int] = {}
    for place, mark in marks:
        if mark in "[{":
            opened.append(place)
        elif mark in "]}" and opened:
            start = opened.pop()
            if place + 1 - start <= LONGEST:
                ends[start] = place + 1
    return ends


def _marks(text: str) -> Iterator[tuple[int, str]]:
    """Yield brackets and commas outside strings, with their places."""
    is_string = False
    for match in _STRUCTURE.finditer(text):
        mark = match.group()
        if mark == '"':
            is_string = not is_string
        elif not is_string and len(mark) == 1:
            yield match.start(), mark


def _bounded(spans: Iterator[Span]) -> Iterator[Span]:
    """Yield the spans; a long span without borders of its own is cut at the greatest length."""
    for start, end in spans:
        if end - start <= 2 * LONGEST:
            yield start, end
        else:
            yield from ((place, min(place + LONGEST, end)) for place in range(start, end, LONGEST))
