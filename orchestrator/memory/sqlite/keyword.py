"""Search by words, ranked with bm25."""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from ..engine import Hit
from .connections import Connection
from .selecting import Where
from .words import phrases

MOST_RANKED: Final = 300
"""Items, for the words of a query together. To rank one costs as much as to find forty."""
MOST_READ: Final = 3_000
"""Items whose words are read to rank others."""
_GROWTH: Final = 10
"""Words are counted anew when a tenth has been added to the store."""
_COUNT: Final = f"SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ? LIMIT {MOST_READ + 1})"


class Counted(NamedTuple):
    """A phrase of the query, by the number of items that have it."""

    items: int
    phrase: str


class KeywordSearch:
    """The words that most items have say the least and cost the most. So the items are ranked that have one of the query's rarest words,
    for as long as these are few; other words count where they stand beside one of them. Only where that finds too little, the newest of
    the items with any of the words follow. In a store of up to `MOST_RANKED` items, all of this comes to plain bm25.
    """

    def __init__(self) -> None:
        self._position = 0
        self._counts: dict[str, int] = {}

    def best(self, connection: Connection, query: str, where: Where, limit: int) -> list[Hit]:
        """Within `where.active`."""
        counted = self._counted(connection, phrases(query))
        rare = _affordable(counted, MOST_RANKED)
        if counted and len(rare) == len(counted):
            return _ranked(connection, _any(counted), where, limit)
        hits: list[Hit] = []
        for expression in _expressions(rare, counted[len(rare) :]):
            found = {hit.row for hit in hits}
            more = _ranked(connection, expression, where, limit)
            least = min((hit.score for hit in hits), default=math.inf)
            hits += (Hit(row, min(score, least)) for row, score in more if row not in found)
            if len(hits) >= limit:
                break
        return hits[:limit]

    def _counted(self, connection: Connection, wanted: Sequence[str]) -> list[Counted]:
        """Those that any item has, the rarest first."""
        (position,) = connection.execute("SELECT position FROM replica").fetchone()
        if position > self._position + self._position // _GROWTH:
            self._position, self._counts = position, {}
        counts = self._counts
        for phrase in wanted:
            if phrase not in counts:
                (counts[phrase],) = connection.execute(_COUNT, (phrase,)).fetchone()
        return sorted(Counted(counts[phrase], phrase) for phrase in wanted if counts[phrase])


def _affordable(counted: Sequence[Counted], most: int) -> list[Counted]:
    """The first of them, for as long as together not more than `most` items have them."""
    sums = accumulate(one.items for one in counted)
    return [one for one, total in zip(counted, sums, strict=True) if total <= most]


def _expressions(rare: Sequence[Counted], others: Sequence[Counted]) -> Iterator[str]:
    """The narrower first. FTS5 has no operator for what may be there and need not: rare words stand there twice, and count twice."""
    beside = _affordable(others, MOST_READ)
    if rare:
        yield f"({_any(rare)}) AND ({_any([*rare, *beside])})" if beside else _any(rare)
    elif len(beside) > 1:
        yield f"{beside[0].phrase} AND ({_any(beside[1:])})"
    if others:
        yield _any([*rare, *beside] if beside else others[:1])


def _any(counted: Sequence[Counted]) -> str:
    return " OR ".join(one.phrase for one in counted)


def _ranked(connection: Connection, expression: str, where: Where, limit: int) -> list[Hit]:
    """The best of the newest that match and pass."""
    query = (
        "SELECT rowid, score FROM (SELECT rowid, -bm25(words) AS score FROM words WHERE words MATCH ? AND EXISTS "
        f"(SELECT 1 FROM items WHERE item = words.rowid AND {where.sql}) ORDER BY rowid DESC LIMIT {MOST_RANKED}) "
        "ORDER BY score DESC, rowid LIMIT ?"
    )
    return [Hit(*columns) for columns in connection.execute(query, (expression, *where.parameters, limit))]
