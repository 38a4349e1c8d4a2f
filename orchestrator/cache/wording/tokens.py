"""Split a text into tokens, and tell whether it is English."""

import re
import unicodedata
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from .word_lists import NAMES, listed

_TOKEN: Final = re.compile(
    r"(?:[^\W\d_]\.){2,}"  # U.S., a.m.
    r"|\d+(?:[.,:/-]\d+)*[^\W\d_]*"  # 3.10, 10:30, 03/04, 16GB, 5th
    r"|[^\W_]+(?:[.'&/_-][^\W_]+)*(?:\+\+|\#(?!\w))?"  # don't, part-time, a.txt, C++
    r"|\S"
)
_QUOTED: Final = re.compile(r"[\"`\u00ab\u00bb\u201e\u201c\u201d\u300c\u300e]|(?<!\w)'[^'\n]+'(?!\w)")
_FORMAL: Final = re.compile(r"[=*<>{}\[\]\\^|~@_#]|\w\(|://|(?<![\w.])[./]\w|\)\s*[-+/]|[-+/]\s*\(|\d\s*[-+/]\s+\d|\n")
"""Code, formulas, paths and addresses, where every character counts."""
_SHARP: Final = re.compile(r"\b[CFcf]#(?!\w)")
_ENDS: Final = frozenset("?!.\u2026")
_FACTORIAL: Final = re.compile(r"\d !$")
_FIRST: Final = re.compile(r"[A-Z][a-z]*(?:'[a-z]+)?")
_LAZY: Final = listed(
    "i i'm i've i'll i'd an the in on at for of to by with from and or what which who whom whose when where why how is are was were"
    " do does did can could should would will has have had please hi hello hey"
)
"""Words that are no names, whatever their case."""
_SMALL_I: Final = re.compile(r"\bi\b")
_FEWEST_SHOUTED: Final = 3


def normalised(text: str) -> str:
    """Return a text in one form of its accents, apostrophes and spaces."""
    return " ".join(unicodedata.normalize("NFC", text).replace("\u2019", "'").split())


def is_literal(text: str) -> bool:
    """Tell whether a text holds a quotation, code, a formula, a path or an address: no word of it may be read for another."""
    return _QUOTED.search(text) is not None or _FORMAL.search(_SHARP.sub("", text)) is not None


def is_caseless(text: str) -> bool:
    """Tell whether a text is written without capitals, not even a first one or `I`, or in nothing but capitals."""
    return text.islower() or text.isupper() or (text[1:].islower() and _SMALL_I.search(text) is not None)


def tokens(text: str) -> list[str]:
    """Return the words and signs of a text but those at its end, with the case of what may be a name.

    Case is dropped where a sentence begins, in words that are no names (`What`), in names that are no words (`japanese`), and in a text
    that is written in capitals throughout.
    """
    found = _TOKEN.findall(text)
    while found and found[-1] in _ENDS and not _FACTORIAL.search(" ".join(found[-2:])):
        found.pop()
    if text.isupper() and len(found) >= _FEWEST_SHOUTED:
        return [word.lower() for word in found]
    return [_cased(word, begins=place == 0 or found[place - 1] in _ENDS) for place, word in enumerate(found)]


def _cased(word: str, *, begins: bool) -> str:
    lower = word.lower()
    if word == "I" or lower in NAMES:
        return lower
    return lower if _FIRST.fullmatch(word) and (begins or lower in _LAZY) else word


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
