"""The index of words (FTS5, https://www.sqlite.org/fts5.html).

Words are cut at every character that is no letter or digit, and stripped of diacritics and of English endings. Scripts that put no
spaces between words are cut into characters; a query for several of them searches for each two neighbours.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from ...storage.sqlite.connections import Connection

_UNSPACED: Final = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff"  # Burmese, Khmer
    "\u3040-\u30ff\u31f0-\u31ff"  # Japanese syllables
    "\u1100-\u11ff\uac00-\ud7af"  # Korean, which sets endings close to its words
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Chinese characters
)
_CHARACTER: Final = re.compile(f"[{_UNSPACED}]")
_WORD: Final = re.compile(f"[{_UNSPACED}]+|[^\\W{_UNSPACED}]+")
MOST_PHRASES: Final = 64
"""The most phrases of a query; further ones are not searched for."""


def indexed(texts: Sequence[str]) -> str:
    """Return the text that the index gets of an item."""
    text = "\n".join(texts)
    return text if text.isascii() else _CHARACTER.sub(r" \g<0> ", text)


def add(connection: Connection, items: Iterable[tuple[int, Sequence[str]]]) -> None:
    connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", [(item, indexed(texts)) for item, texts in items])


def remove(connection: Connection, item: int, texts: Sequence[str]) -> None:
    """Remove an item from the index. The texts must be those that it was added with."""
    connection.execute("INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)", (item, indexed(texts)))


def phrases(query: str) -> list[str]:
    """Return the phrases of a query that can be searched for, whatever else it contains."""
    found = (phrase for word in _WORD.findall(query) for phrase in _phrases(word.casefold()))
    return [f'"{phrase}"' for phrase in dict.fromkeys(found)][:MOST_PHRASES]


def _phrases(word: str) -> list[str]:
    if not _CHARACTER.match(word):
        return [word]
    return [f"{first} {second}" for first, second in zip(word, word[1:], strict=False)] or [word]
