"""Search by words: bm25 in SQL, as Postgres's own ranking does not know how rare a word is.

Robertson and Zaragoza, *The Probabilistic Relevance Framework: BM25 and Beyond*, 2009.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ..engine import Hit
from ..selection import Selection
from .selecting import Where
from .words import words_asked

if TYPE_CHECKING:
    from .connections import Connection

_SATURATION: Final = 1.2
_LENGTH_WEIGHT: Final = 0.75

# `stem` makes of each word what the index has; words with the same stem are one.
_FREQUENCIES: Final = """
SELECT stem, (SELECT count(*) FROM items WHERE items.words @@ quote_literal(stem)::tsquery), documents, words
FROM replica, (SELECT DISTINCT (tsvector_to_array(to_tsvector('words', word)))[1] AS stem FROM unnest(%s::text[]) AS word) AS stems
WHERE stem IS NOT NULL
"""
_RANKED: Final = """
SELECT number, sum(rarity * frequency * (%s + 1) / (frequency + %s * (1 - %s + %s * length / %s::float8))) AS score
FROM items
CROSS JOIN LATERAL (SELECT lexeme, cardinality(positions)::float8 AS frequency FROM unnest(items.words)) AS occurring
JOIN unnest(%s::text[], %s::float8[]) AS asked (stem, rarity) ON stem = lexeme
WHERE {where} AND items.words @@ %s::tsquery
GROUP BY number ORDER BY score DESC, number LIMIT %s
"""


def best_by_words(connection: "Connection", query: str, selection: Selection, limit: int) -> list[Hit]:
    """The best by bm25, with rarity and length as they are in the whole store."""
    found = connection.execute(_FREQUENCIES, [words_asked(query)]).fetchall()
    rarity = {
        stem: math.log(1 + (documents - containing + 0.5) / (containing + 0.5)) for stem, containing, documents, _ in found if containing
    }
    if not rarity:
        return []
    _, _, documents, words = found[0]
    where = Where(selection)
    weights = [_SATURATION, _SATURATION, _LENGTH_WEIGHT, _LENGTH_WEIGHT, words / documents]
    parameters = [*weights, list(rarity), list(rarity.values()), *where.parameters, _any(list(rarity)), limit]
    return [Hit(*row) for row in connection.execute(_RANKED.format(where=where.sql), parameters)]


def _any(stems: Sequence[str]) -> str:
    """The tsquery for items that have any of the words, which are letters and digits."""
    return " | ".join(f"'{stem}'" for stem in stems)
