"""Cut texts into searchable words, in the same way for stored texts and for queries.

Postgres's own parser depends on the database's locale, takes addresses and hyphenated words for one word, and knows no script that is
written without spaces.
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
"""Scripts in which words are not separated by spaces."""
_WORD: Final = re.compile(f"([{_UNSPACED}]+)|[^\\W_{_UNSPACED}]+")
_DIACRITICS: Final = re.compile("[\u0300-\u036f]")
_LONGEST: Final = 64
"""Characters of a word that are compared."""
_MOST_BYTES: Final = 1_000_000
"""The capacity of a tsvector is a megabyte."""
_OVERHEAD: Final = 6
"""Bytes of a tsvector for each occurrence of a word, apart from the word itself."""
MOST_QUERIED: Final = 64
"""The most words of a query; further ones are not searched for."""


def words_of(text: str) -> list[str]:
    """Return the words of a stored text, in order and as often as they occur, for as long as they fit.

    In a script without spaces, the words are each character and each two neighbours.
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
    """Return the different words of a query. In a script without spaces, they are each two neighbours: single characters are too common."""
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
    """Return the text in small letters, without the diacritics of European scripts: those of others distinguish words."""
    return unicodedata.normalize("NFC", _DIACRITICS.sub("", unicodedata.normalize("NFKD", text.casefold())))
