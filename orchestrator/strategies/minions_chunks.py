"""A long text in pieces that a small model can read."""

import re

_BORDERS = (re.compile(r"\n\s*\n"), re.compile(r"\n"), re.compile(r"[.!?]['\")\]]*\s|[。！？]"), re.compile(r"\s"))
"""Places where a chunk may end, best first: a paragraph, a line, a sentence, a word."""


def cut_into_chunks(text: str, *, characters: int, overlap: int) -> tuple[str, ...]:
    """Cut `text` into pieces of at most `characters`, which end at a border where the second half of a piece holds one.

    Each piece but the first begins with the last `overlap` characters of the one before, so that what a cut goes through is whole in one
    of the two. Without these, the pieces are the text. `overlap` is at most half of `characters`.
    """
    chunks: list[str] = []
    start = end = 0
    while end < len(text):
        least = start + max(characters // 2, overlap + 1)
        end = start + characters
        if end < len(text):
            end = _last_border(text, least, end) or end
        chunks.append(text[start:end])
        start = max(end - overlap, 0)
    return tuple(chunks)


def _last_border(text: str, start: int, end: int) -> int | None:
    """Return the end of the last border of the best kind between two places."""
    for border in _BORDERS:
        ends = [match.end() for match in border.finditer(text, start, end)]
        if ends:
            return ends[-1]
    return None
