"""A text as words and signs. Nothing is lost but spaces, and punctuation at the end."""

import re
import unicodedata
from typing import Final

from .lists import listed
from .names import NAMES

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
