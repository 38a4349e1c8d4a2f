"""Search by words with bm25 in SQL, since Postgres's own ranking does not know how rare a word is.

Robertson and Zaragoza, *The Probabilistic Relevance Framework: BM25 and Beyond*, 2009. Rarity and length are those of the whole store.
Texts are cut into words here, and not by Postgres's own parser: that one depends on the database's locale, takes addresses and hyphenated
words for one word, and knows no script that is written without spaces.
"""

import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from ..engine import Hit
from ..selection import Selection
from .selecting import Where, is_small

if TYPE_CHECKING:
    from ...storage.postgres import Connection


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


_MOST_RANKED: Final = 3_000
"""In a larger selection, only items with the rarest words are ranked: as many words as together are in at most this many items. If they
find too few, all words are searched for, in the items that changed last."""
_COUNTED: Final = 1_000
"""Items with a word are counted up to this number; the counts of more common words are estimated."""
_SAMPLED: Final = 1_000
"""Items from which the counts are estimated."""

# The index has stems; words with the same one are one word.
_COUNTS: Final = """
SELECT stem, (
  SELECT count(*) FROM (SELECT FROM items WHERE items.words @@ quote_literal(stem)::tsquery LIMIT %s) AS containing
), documents, words
FROM replica, (SELECT DISTINCT (tsvector_to_array(to_tsvector('words', word)))[1] AS stem FROM unnest(%s::text[]) AS word) AS stems
WHERE stem IS NOT NULL
"""
_SHARES: Final = """
SELECT stem, count(*) FILTER (WHERE items.words @@ quote_literal(stem)::tsquery)::float8 / count(*)
FROM items TABLESAMPLE SYSTEM (%s) REPEATABLE (0), unnest(%s::text[]) AS stem WHERE items.words IS NOT NULL GROUP BY stem
"""
# For one word that occurs n times, ts_rank is 6/π² (1 + 1/2² + ... + 1/n²); what is missing of 1 is very nearly 6/π² / (n + 1/2).
_RANKED: Final = """
SELECT number, (
  SELECT sum(rarity * occurrences * 2.2 / (occurrences + 1.2 * (0.25 + 0.75 * length / %s::float8)))
  FROM (
    SELECT rarity, round(6 / (pi() * pi() * (1 - ts_rank('{{1, 1, 1, 1}}', words, stem))) - 0.5) AS occurrences
    FROM unnest(%s::tsquery[], %s::float8[]) AS asked (stem, rarity) OFFSET 0
  ) AS terms
) AS score
FROM (SELECT number, words, length FROM items WHERE {where} AND words @@ %s::tsquery ORDER BY number DESC LIMIT %s) AS candidates
ORDER BY score DESC, number LIMIT %s
"""


@dataclass(frozen=True, slots=True)
class _Query:
    """The query's words with their rarity."""

    rarity: dict[str, float]
    """Rarity of each stem, the rarest first."""
    rarest: list[str]
    """The rarest stems that together few enough items have, but at least one."""
    average_length: float
    """Average length of all documents, in words."""


def best_by_words(connection: "Connection", query: str, selection: Selection, limit: int) -> list[Hit]:
    asked = _understood(connection, words_asked(query))
    if asked is None:
        return []
    where = Where(selection)
    stems = list(asked.rarity)
    used = stems if asked.rarest == stems or is_small(connection, where, _MOST_RANKED) else asked.rarest
    hits = _ranked(connection, asked, used, where, limit)
    return hits if len(hits) == limit or used == stems else _ranked(connection, asked, stems, where, limit)


def _understood(connection: "Connection", words: Sequence[str]) -> _Query | None:
    """Return the query's words with their rarity; None if no item has any of them."""
    rows = connection.execute(_COUNTS, [_COUNTED, list(words)]).fetchall()
    counts = {stem: float(count) for stem, count, _, _ in rows if count}
    if not counts:
        return None
    _, _, documents, length = rows[0]
    common = [stem for stem, count in counts.items() if count >= _COUNTED]
    if common:
        sample = connection.execute(_SHARES, [min(100, 100 * _SAMPLED / documents), common])
        counts.update({stem: max(counts[stem], share * documents) for stem, share in sample})
    ordered = sorted(counts, key=lambda stem: (counts[stem], stem))
    rarity = {stem: math.log(1 + (documents - counts[stem] + 0.5) / (counts[stem] + 0.5)) for stem in ordered}
    return _Query(rarity, _rarest(ordered, counts), length / documents)


def _rarest(ordered: Sequence[str], counts: Mapping[str, float]) -> list[str]:
    totals = accumulate(counts[stem] for stem in ordered)
    return [stem for stem, total in zip(ordered, totals, strict=True) if total <= _MOST_RANKED] or list(ordered[:1])


def _ranked(connection: "Connection", asked: _Query, used: Sequence[str], where: Where, limit: int) -> list[Hit]:
    queries = [_matching([stem]) for stem in asked.rarity]
    parameters = [asked.average_length, queries, list(asked.rarity.values()), *where.parameters, _matching(used), _MOST_RANKED, limit]
    return [Hit(*row) for row in connection.execute(_RANKED.format(where=where.sql), parameters)]


def _matching(stems: Sequence[str]) -> str:
    """Return the tsquery for items that have any of the stems, which are letters and digits."""
    return " | ".join(f"'{stem}'" for stem in stems)
