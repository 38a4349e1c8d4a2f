"""Find the words of a question that are worth searching for."""

import re
from typing import Final

_WORD: Final = re.compile(r"\w+")
_COMMON_WORDS: Final = """
a about am an and any are as at be been being but by can could did do does for from had has have having he her here him his how i if in into
is it its just me may might my no not of on or our out over s she should so some t than that the their them then there these they this those
to up us was we were what when where which who whom whose why will with would you your
"""
_COMMON: Final = frozenset(_COMMON_WORDS.split())


def words(text: str) -> frozenset[str]:
    """Return the words of a text, each once, in lower case."""
    return frozenset(_WORD.findall(text.casefold()))


def keywords(question: str) -> str:
    """Return the words of a question that can find its answer; the whole question if all its words are common.

    bm25 gives common words little weight, but half of a question is made of them, and turns of a conversation are short.
    """
    rare = [word for word in _WORD.findall(question) if word.casefold() not in _COMMON]
    return " ".join(rare) or question
