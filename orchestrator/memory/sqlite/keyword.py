"""Search by words, ranked with bm25."""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from typing import Final, NamedTuple

from ...storage.sqlite.connections import Connection
from ..engine import Hit
from .selecting import Where
from .words import phrases

MOST_RANKED: Final = 200
"""Items, for the words of a query together. To rank one costs as much as to find forty."""
MOST_READ: Final = 1_000
"""Items whose words are read to rank others."""
_BEHIND_ALL: Final = 1 << 62
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
        self._position = -1
        self._items = 0
        self._counts: dict[str, int] = {}

    def best(self, connection: Connection, query: str, where: Where, limit: int) -> list[Hit]:
        """Within `where.active`. The first hits are the same for every limit, so that pages fit together."""
        hits: dict[int, Hit] = {}
        counted = self._counted(connection, phrases(query))
        for expression in _expressions(counted, self._items):
            for ranked in _windows(connection, expression, where):
                least = next(reversed(hits.values())).score if hits else math.inf
                new = (Hit(row, min(-negative, least)) for negative, row in ranked if row not in hits)
                hits |= {hit.row: hit for hit in islice(new, limit - len(hits))}
                if len(hits) == limit:
                    return list(hits.values())
        return list(hits.values())

    def _counted(self, connection: Connection, wanted: Sequence[str]) -> list[Counted]:
        """Those that any item has, the rarest first."""
        (position,) = connection.execute("SELECT position FROM replica").fetchone()
        if position > self._position + max(self._position, 0) // _GROWTH:
            self._position, self._counts = position, {}
            (self._items,) = connection.execute("SELECT count(*) FROM items").fetchone()
        counts = self._counts
        for phrase in wanted:
            if not counts.get(phrase):  # what nothing had so far may be in the item that was written last
                (counts[phrase],) = connection.execute(_COUNT, (phrase,)).fetchone()
        return sorted(Counted(counts[phrase], phrase) for phrase in wanted if counts[phrase])


def _affordable(counted: Sequence[Counted], most: int) -> list[Counted]:
    """The first of them, for as long as together not more than `most` items have them."""
    sums = accumulate(one.items for one in counted)
    return [one for one, total in zip(counted, sums, strict=True) if total <= most]


def _expressions(counted: Sequence[Counted], items: int) -> Iterator[str]:
    """What to match, the rarer first.

    FTS5 has no operator for what may be there and need not, so that rare words stand there twice, and count twice.
    """
    rare = counted if items <= MOST_RANKED else _affordable(counted, MOST_RANKED)
    others = counted[len(rare) :]
    beside = _affordable(others, MOST_READ)
    if rare:
        yield f"({_any(rare)}) AND ({_any([*rare, *beside])})" if beside else _any(rare)
    elif len(beside) > 1:
        yield f"{beside[0].phrase} AND ({_any(beside[1:])})"
    if beside:
        yield _any([*rare, *beside])
    if len(beside) < len(others):
        yield _any(counted)


def _any(counted: Sequence[Counted]) -> str:
    return " OR ".join(one.phrase for one in counted)


def _windows(connection: Connection, expression: str, where: Where) -> Iterator[list[tuple[float, int]]]:
    """Negative scores with the items that match and pass, the best first: of the newest ones, then of those before."""
    query = (
        "SELECT bm25(words), item FROM words CROSS JOIN items ON item = words.rowid "
        f"WHERE words MATCH ? AND words.rowid < ? AND {where.sql} ORDER BY words.rowid DESC LIMIT {MOST_RANKED}"
    )
    ranked: list[tuple[float, int]] = []
    before = _BEHIND_ALL
    while before == _BEHIND_ALL or len(ranked) == MOST_RANKED:
        ranked = connection.execute(query, (expression, before, *where.parameters)).fetchall()
        before = ranked[-1][1] if ranked else 0
        ranked.sort()
        yield ranked
