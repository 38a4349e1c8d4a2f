"""One ranking of two: by words and by meaning."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...protocols import InvalidRequest
from .engine import Hit, Row

_SMOOTHING: Final = 60
"""The k of Cormack, Clarke and Büttcher, *Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning Methods*, 2009."""
WINDOW: Final = 50
"""So many of the best of each ranking are fused at a time."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """What counts in a search. The score of an item is

        (keyword / (60 + rank by words) + semantic / (60 + rank by meaning))
            * (1 - recency + recency * 2 ** (-age / half_life)) * (1 - trust + trust * trust of the item)

    where a ranking that does not have the item adds nothing; such scores say nothing beyond the order within one search. In a search by
    words alone the first line is the database's own score (bm25), and by meaning alone it is the cosine similarity.
    """

    keyword: float = 1.0
    semantic: float = 1.0
    recency: float = 0.0
    """From 0, age does not matter, to 1."""
    half_life: float = 30 * 86400.0
    """Seconds."""
    trust: float = 0.0
    """From 0, trust does not matter, to 1."""

    def __post_init__(self) -> None:
        weights = (self.keyword, self.semantic)
        if min(weights) < 0 or max(weights) <= 0 or not self.half_life > 0:
            raise InvalidRequest("weights of a ranking are not negative, one of them is above 0, and so is the half-life")
        if not (0 <= self.recency <= 1 and 0 <= self.trust <= 1):
            raise InvalidRequest("what recency and trust count for is a number from 0 to 1")

    @property
    def needs_rows(self) -> bool:
        """Whether the order depends on more than the two rankings."""
        return self.recency > 0 or self.trust > 0

    def factor(self, row: Row, now: float) -> float:
        """By what an item's score is multiplied."""
        age = max(0.0, now - row.updated_at)
        recent = 1 - self.recency + self.recency * math.exp2(-age / self.half_life)
        return recent * (1 - self.trust + self.trust * row.meta.trust)


def fused(keyword: Sequence[Hit], nearest: Sequence[Hit], ranking: Ranking, factors: Mapping[int, float] | None = None) -> Iterator[Hit]:
    """The items of both rankings, the best first; those without a factor are left out if there are `factors`."""
    weighted = [(keyword, ranking.keyword), (nearest, ranking.semantic)]
    return _windowed([_Ranks(hits, weight) for hits, weight in weighted if weight > 0], factors)


def weighed(hits: Sequence[Hit], factors: Mapping[int, float] | None = None) -> Iterator[Hit]:
    """The items of a single ranking, whose own scores are kept, times the factors if there are some."""
    return iter(hits) if factors is None else _windowed([_Scores(hits)], factors)


def depth(count: int) -> int:
    """How many hits of each ranking are needed for the first `count` items: whole windows."""
    return -(-count // WINDOW) * WINDOW


@dataclass(frozen=True, slots=True)
class _Scores:
    """A ranking whose scores count."""

    hits: Sequence[Hit]

    def scores(self, count: int) -> list[float]:
        return [hit.score for hit in self.hits[:count]]


@dataclass(frozen=True, slots=True)
class _Ranks:
    """A ranking whose order counts."""

    hits: Sequence[Hit]
    weight: float

    def scores(self, count: int) -> list[float]:
        return [self.weight / (_SMOOTHING + rank) for rank in range(1, min(count, len(self.hits)) + 1)]


def _windowed(rankings: Sequence[_Scores | _Ranks], factors: Mapping[int, float] | None) -> Iterator[Hit]:
    """The rankings fused window by window, the first windows before the second ones.

    So the beginning is the same however many hits there are, and pages fit together; scores are kept from rising at a window's edge.
    """
    done: set[int] = set()
    ceiling = math.inf
    for end in range(WINDOW, max((len(one.hits) for one in rankings), default=0) + WINDOW, WINDOW):
        scores = _sums(rankings, end, done)
        done.update(scores)
        for negative, row in _ordered(scores, factors):
            ceiling = min(-negative, ceiling)
            yield Hit(row, ceiling)


def _sums(rankings: Sequence[_Scores | _Ranks], end: int, done: set[int]) -> dict[int, float]:
    sums: dict[int, float] = {}
    for ranking in rankings:
        for (row, _), score in zip(ranking.hits, ranking.scores(end), strict=False):
            if row not in done:
                sums[row] = sums.get(row, 0.0) + score
    return sums


def _ordered(scores: Mapping[int, float], factors: Mapping[int, float] | None) -> list[tuple[float, int]]:
    """Negative scores with rows, the best first; of equals, the older one."""
    if factors is not None:
        scores = {row: score * factors[row] for row, score in scores.items() if row in factors}
    return sorted((-score, row) for row, score in scores.items())
