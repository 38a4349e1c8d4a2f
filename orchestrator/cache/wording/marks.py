"""Words that one of two questions may leave out and that do not stand for each other: articles, and the `best` of ways to do something."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from .lists import listed

BEST: Final = "<best>"
GOOD: Final = "<good>"
SOME: Final = "<some>"
"""In front of `how-to`: it was asked for the best way, a good one, or any."""

_ARTICLES: Final = frozenset(("a", "an", "the"))
_CLOSED: Final = listed(
    "a an the this that these those my your his her its our their i me you he him she it we us they them who what which whose when where"
    " why how not no nor and or but if as than so too very only also even just still in on at for of to about from with into onto over"
    " under by off up down out through against between near behind above below without within during before after since until while"
    " be am is are was were been being do does did done has have had can could may might must shall should will would"
    " few little lot lots bit number couple more most less least other others another same such some any all each every both either"
    " people first second third last next only one"
)
"""Words that are neither noun nor adjective, and those that mean something else with an article, as in `a few`."""


_PLURAL: Final = re.compile(r"[^su]s$")


def without_marks(words: Sequence[str]) -> tuple[tuple[str, ...], Mapping[int, str]]:
    """Return the words without those that may be left out, and these by the place of the word that they stand before.

    An article may be left out before an adjective and a noun, or two nouns: `the average cost`. It may not before a single noun, since
    `the time` is not `time`; nor before a plural, since `the red cars` are certain ones; nor next to an auxiliary, where the second word
    may be a verb: `do the people want`.
    """
    kept: list[str] = []
    marks: dict[int, str] = {}
    for place, word in enumerate(words):
        if word in (BEST, GOOD, SOME):
            marks[len(kept)] = word
        elif word in _ARTICLES and _is_spare(words, place):
            marks[len(kept)] = "a" if word == "an" else word
        else:
            kept.append(word)
    return tuple(kept), marks


def _is_spare(words: Sequence[str], place: int) -> bool:
    following = words[place + 1 : place + 3]
    if len(following) < 2 or any(word in _CLOSED or not word[0].isalpha() or _PLURAL.search(word) for word in following):
        return False
    if place == 0 or words[place - 1] in ("~", *_AUXILIARIES):
        return place == 2 and words[:2] in (["what", "is"], ["what", "be"], ["what", "are"])
    return True


_AUXILIARIES: Final = listed(
    "be am is are was were been being do does did has have had can could may might must shall should will would how-to"
)


def agree(mine: Mapping[int, str], theirs: Mapping[int, str]) -> bool:
    """Tell whether no word of one stands where the other has another one."""
    return all(theirs.get(place, word) == word for place, word in mine.items())
