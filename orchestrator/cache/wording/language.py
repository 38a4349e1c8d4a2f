"""Tell English, the one language of which the cache reads more than the words themselves."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from .lists import listed

_ENGLISH: Final = listed(
    "the what how why who where when which does did can could should would are have has must may whose whom you"
    " your my with from this that and it if not"
)
"""Frequent words, and hardly any of them a frequent one of another language too."""
_SIGNS: Final = listed("a the to for by or than be")
"""They tell an English text that begins with `is` from a Dutch one."""
_OPENINGS: Final = frozenset(
    f"{first} {second}"
    for first, others in (
        ("is", "a it the there this he she my your"),
        ("do", "i people they we you all some most many any not these those"),
        ("i", "am need want"),
        ("can", "i you we they it my the a"),
        ("was", "it he she"),
        ("will", "i it he she they we you"),
    )
    for second in others.split()
)
"""Beginnings by which it is known although their first word is one of other languages too."""
_ASKING: Final = listed("what how why which where when does should would could tell")
_NEAR: Final = 5
"""Words at the beginning among which one of these is a sign of English."""
_SHARE: Final = 0.2
"""Share of a text's words that must be among these for it to count as English; ordinary questions reach twice as many."""


def is_english(words: Sequence[str]) -> bool:
    """Tell whether words in lower case are those of an English text."""
    if not words:
        return False
    if words[0] == "is" and _SIGNS.intersection(words[1:]):
        return True
    if words[0] in _ENGLISH or _ASKING.intersection(words[:_NEAR]) or _OPENINGS.intersection(map(" ".join, pairwise(words[:_NEAR]))):
        return True
    return sum(word in _ENGLISH for word in words) >= _SHARE * len(words)
