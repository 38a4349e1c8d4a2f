"""Translate a selection into a condition in SQL, and search by words with the index FTS5 (https://www.sqlite.org/fts5.html).

Words are cut at every character that is no letter or digit, and stripped of diacritics and of English endings. Scripts that put no spaces
between words are cut into characters; a query for several of them searches for each two neighbours.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import accumulate, islice
from typing import Final, NamedTuple

from ....protocols.items import Namespace, Tier
from ...storage.sqlite import Connection
from ..engine import UNSPACED, Condition, Hit, ItemSelection, meets
from ..operation import Principal
from .tables import end_of_prefix, namespace_range, value_of

_conditions: Final[ContextVar[tuple[Condition, ...]]] = ContextVar("conditions of the query that runs")


def add_functions(connection: Connection) -> None:
    """Add the SQL function that `WhereClause` uses: conditions on values are checked in Python, where JSON has exactly one meaning."""
    connection.create_function("meets_conditions", 1, _meets_conditions, deterministic=True)


class WhereClause:
    """The condition `sql` with its `parameters`, on columns of `items`. Run queries with it within `active`."""

    def __init__(self, selection: ItemSelection) -> None:
        self.parameters: list[object] = []
        self._terms = ["NOT is_deleted"]
        self._selection = selection
        self._add("(expires_at IS NULL OR expires_at > ?)", selection.now)
        self._add_prefix(selection.prefix)
        self._add_key_prefix(selection.key_prefix)
        if selection.valid_at is not None:
            self._add("(valid_from IS NULL OR valid_from <= ?)", selection.valid_at)
            self._add("(invalid_from IS NULL OR invalid_from > ?)", selection.valid_at)
        if selection.principal is not None:
            self._add_principal(selection.principal)
        if selection.conditions:
            self._add("meets_conditions((SELECT content FROM contents WHERE contents.item = items.item))")
        self.sql = " AND ".join(self._terms)

    @contextmanager
    def active(self) -> Iterator[None]:
        token = _conditions.set(self._selection.conditions)
        try:
            yield
        finally:
            _conditions.reset(token)

    def _add(self, term: str, *parameters: object) -> None:
        self._terms.append(term)
        self.parameters.extend(parameters)

    def _add_prefix(self, prefix: Namespace) -> None:
        if prefix:
            self._add("namespace >= ? AND namespace < ?", *namespace_range(prefix))

    def _add_key_prefix(self, prefix: str) -> None:
        if not prefix:
            return
        self._add("key >= ?", prefix)
        end = end_of_prefix(prefix)
        if end is not None:
            self._add("key < ?", end)

    def _add_principal(self, principal: Principal) -> None:
        self._add("trust >= ?", principal.minimum_trust)
        user, device = principal.user, principal.device
        if not principal.believes_others:
            self._add("user IN ('', ?)", user)
        self._add("(tier = ? OR (user = ? AND (tier = ? OR (tier = ? AND device = ?))))", Tier.SHARED, user, Tier.USER, Tier.DEVICE, device)
        if () in principal.prefixes:
            return
        ranges = [namespace_range(prefix) for prefix in principal.prefixes]
        allowed = " OR ".join("(namespace >= ? AND namespace < ?)" for _ in ranges) or "FALSE"
        self._add(f"({allowed})", *(bound for bounds in ranges for bound in bounds))


def _meets_conditions(content: bytes) -> bool:
    value = value_of(content)
    return all(meets(condition, value) for condition in _conditions.get())


_CHARACTER: Final = re.compile(f"[{UNSPACED}]")
_WORD: Final = re.compile(f"[{UNSPACED}]+|[^\\W{UNSPACED}]+")
MOST_PHRASES: Final = 64
"""The most phrases of a query; further ones are not searched for."""


def indexed(texts: Sequence[str]) -> str:
    """Return the text that the index gets of an item."""
    text = "\n".join(texts)
    return text if text.isascii() else _CHARACTER.sub(r" \g<0> ", text)


def add_words(connection: Connection, items: Iterable[tuple[int, Sequence[str]]]) -> None:
    connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", [(item, indexed(texts)) for item, texts in items])


def remove_words(connection: Connection, item: int, texts: Sequence[str]) -> None:
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


MOST_RANKED: Final = 200
"""The most items that are ranked for the words of a query together. Ranking an item costs as much as finding forty."""
MOST_READ: Final = 1_000
"""The most items whose words are read to rank others."""
_BEHIND_ALL: Final = 1 << 62
_GROWTH: Final = 10
"""Words are counted again when a tenth has been added to the store."""
_COUNT: Final = f"SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ? LIMIT {MOST_READ + 1})"


class Counted(NamedTuple):
    """A phrase of the query, by the number of items that have it."""

    items: int
    phrase: str


class KeywordSearch:
    """Search by the rarest words of a query.

    The most common words say the least and cost the most. Therefore only items with the rarest words are ranked, for as long as these
    are few; other words count only in such items. If too few are found, the newest items with any of the words follow. In a store of up
    to `MOST_RANKED` items, the result is plain bm25.
    """

    def __init__(self) -> None:
        self._position = -1
        self._items = 0
        self._counts: dict[str, int] = {}

    def best(self, connection: Connection, query: str, where: WhereClause, limit: int) -> list[Hit]:
        """Return the best hits; call it within `where.active`. The first hits are the same for every limit, so that pages fit together."""
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
        """Return the phrases that any item has, the rarest first."""
        (position,) = connection.execute("SELECT position FROM replica").fetchone()
        if position > self._position + max(self._position, 0) // _GROWTH:
            self._position, self._counts = position, {}
            (self._items,) = connection.execute("SELECT count(*) FROM items").fetchone()
        counts = self._counts
        for phrase in wanted:
            if not counts.get(phrase):  # the last written item may be the first with this phrase
                (counts[phrase],) = connection.execute(_COUNT, (phrase,)).fetchone()
        return sorted(Counted(counts[phrase], phrase) for phrase in wanted if counts[phrase])


def _affordable(counted: Sequence[Counted], most: int) -> list[Counted]:
    """Return the first phrases that together at most `most` items have."""
    sums = accumulate(one.items for one in counted)
    return [one for one, total in zip(counted, sums, strict=True) if total <= most]


def _expressions(counted: Sequence[Counted], items: int) -> Iterator[str]:
    """Yield the expressions to match, the rarer words first.

    FTS5 has no operator for an optional word, so rare words occur twice in an expression, and count twice.
    """
    rare = counted if items <= MOST_RANKED else _affordable(counted, MOST_RANKED)
    others = counted[len(rare) :]
    further = _affordable(others, MOST_READ)
    if rare:
        yield f"({_any(rare)}) AND ({_any([*rare, *further])})" if further else _any(rare)
    elif len(further) > 1:
        yield f"{further[0].phrase} AND ({_any(further[1:])})"
    if further:
        yield _any([*rare, *further])
    if len(further) < len(others):
        yield _any(counted)


def _any(counted: Sequence[Counted]) -> str:
    return " OR ".join(one.phrase for one in counted)


def _windows(connection: Connection, expression: str, where: WhereClause) -> Iterator[list[tuple[float, int]]]:
    """Yield negative scores with the items that match and pass, the best first: of the newest items, then of earlier ones."""
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
