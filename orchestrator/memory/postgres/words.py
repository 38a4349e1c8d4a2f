"""How texts are cut into the words that are searched for, the same for what is kept and for what is asked.

It is done here and not by Postgres's parser, since that one goes by the database's locale, takes addresses and hyphenated words for one
word, and knows no script that is written without spaces.
"""

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

_UNSPACED: Final = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff"  # Burmese, Khmer
    "\u3040-\u30ff\u31f0-\u31ff"  # Japanese syllables
    "\u1100-\u11ff\uac00-\ud7af"  # Korean, which sets endings close to its words
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Chinese characters
)
"""Scripts in which words are not cut by spaces."""
_WORD: Final = re.compile(f"([{_UNSPACED}]+)|[^\\W_{_UNSPACED}]+")
_DIACRITICS: Final = re.compile("[\u0300-\u036f]")
_LONGEST: Final = 64
"""Characters of a word that are looked at."""
_MOST_BYTES: Final = 1_000_000
"""A tsvector has room for a megabyte."""
_OVERHEAD: Final = 6
"""Bytes of a tsvector for each occurrence of a word, beside the word itself."""
MOST_QUERIED: Final = 64
"""Words of a query; those that follow are not looked for."""


def words_of(text: str) -> list[str]:
    """The words of a text that is kept, in order and as often as they occur, for as long as they fit.

    Of a script without spaces, it is each character and each two that are neighbours.
    """
    kept: list[str] = []
    size = 0
    for match in _WORD.finditer(_plain(text)):
        for word in _parts(match[0], with_characters=True) if match[1] else (match[0][:_LONGEST],):
            size += len(word.encode()) + _OVERHEAD
            if size > _MOST_BYTES:
                return kept
            kept.append(word)
    return kept


def words_asked(query: str) -> list[str]:
    """The different words of a query. Of a script without spaces, it is each two characters that are neighbours: one is not enough."""
    found: dict[str, None] = {}
    for match in _WORD.finditer(_plain(query)):
        found.update(dict.fromkeys(_parts(match[0], with_characters=False) if match[1] else (match[0][:_LONGEST],)))
        if len(found) >= MOST_QUERIED:
            break
    return list(found)[:MOST_QUERIED]


def _parts(run: str, *, with_characters: bool) -> Iterator[str]:
    if with_characters or len(run) == 1:
        yield from run
    for first, second in zip(run, run[1:], strict=False):
        yield first + second


def _plain(text: str) -> str:
    """In small letters, and freed of the diacritics of European scripts: those of others tell words apart."""
    return unicodedata.normalize("NFC", _DIACRITICS.sub("", unicodedata.normalize("NFKD", text.casefold())))
