"""One ranking of two: by words and by meaning."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...protocols import InvalidRequest
from .engine import Hit, Row

MEANING: Final = 4.0
"""The weight of a cosine similarity of 1, where the best match by words has 1. Similarities of unlike texts lie close together."""
WINDOW: Final = 50
"""So many of the best of each ranking are fused at a time."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """What counts in a search. The score of an item is

        (keyword * score by words / best score by words + semantic * 4 * cosine similarity)
            * (1 - recency + recency * 2 ** (-age / half_life)) * (1 - trust + trust * trust of the item)

    An item that only one of the two rankings has is as bad in the other as its last one: no score by words, and the least similarity,
    both 0 at least. Such scores say nothing beyond the order within one search. In a search by words alone the first line is the
    database's own score (bm25), and by meaning alone it is the cosine similarity.
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
    best = max((hit.score for hit in keyword), default=0.0) or 1.0
    words = _Scores(keyword, ranking.keyword / best)
    meanings = _Scores(nearest, MEANING * ranking.semantic, least=True)
    return _windowed([one for one in (words, meanings) if one.weight > 0], factors)


def weighed(hits: Sequence[Hit], factors: Mapping[int, float] | None = None) -> Iterator[Hit]:
    """The items of a single ranking, whose own scores are kept, times the factors if there are some."""
    return iter(hits) if factors is None else _windowed([_Scores(hits)], factors)


def depth(count: int) -> int:
    """How many hits of each ranking are needed for the first `count` items: whole windows."""
    return -(-count // WINDOW) * WINDOW


@dataclass(frozen=True, slots=True)
class _Scores:
    """A ranking and the weight of its scores."""

    hits: Sequence[Hit]
    weight: float = 1.0
    least: bool = False
    """An item that the window does not have counts as much as the last one that it has; else it counts nothing."""

    def missing(self, end: int) -> float:
        """The weighed score of an item that is not among the first `end`."""
        return self._weighed(self.hits[min(end, len(self.hits)) - 1].score) if self.least and self.hits else 0.0

    def scores(self, end: int) -> dict[int, float]:
        """The weighed scores of the first `end` items, by row."""
        return {hit.row: self._weighed(hit.score) for hit in self.hits[:end]}

    def _weighed(self, score: float) -> float:
        return self.weight * (max(0.0, score) if self.least else score)


def _windowed(rankings: Sequence[_Scores], factors: Mapping[int, float] | None) -> Iterator[Hit]:
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


def _sums(rankings: Sequence[_Scores], end: int, done: set[int]) -> dict[int, float]:
    scored = [(ranking.scores(end), ranking.missing(end)) for ranking in rankings]
    rows = {row for scores, _ in scored for row in scores} - done
    return {row: sum(scores.get(row, missing) for scores, missing in scored) for row in rows}


def _ordered(scores: Mapping[int, float], factors: Mapping[int, float] | None) -> list[tuple[float, int]]:
    """Negative scores with rows, the best first; of equals, the older one."""
    if factors is not None:
        scores = {row: score * factors[row] for row, score in scores.items() if row in factors}
    return sorted((-score, row) for row, score in scores.items())
