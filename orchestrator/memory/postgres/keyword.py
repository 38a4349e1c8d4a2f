"""Search by words with bm25 in SQL, since Postgres's own ranking does not know how rare a word is.

Robertson and Zaragoza, *The Probabilistic Relevance Framework: BM25 and Beyond*, 2009. Rarity and length are those of the whole store.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from ..engine import Hit
from ..selection import Selection
from .selecting import Where, is_small
from .words import words_asked

if TYPE_CHECKING:
    from ...storage.postgres.connections import Connection

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
