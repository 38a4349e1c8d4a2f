"""Fuse two rankings, by words and by meaning, into one."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...protocols import InvalidRequest
from .engine import Hit, Row

MEANING: Final = 4.0
"""Weight of a cosine similarity of 1, if the best match by words has 1. Similarities of unlike texts lie close together."""
WINDOW: Final = 50
"""The number of best hits of each ranking that are fused at a time."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The weights of a search. The score of an item is

        (keyword * score by words / best score by words + semantic * 4 * cosine similarity)
            * (1 - recency + recency * 2 ** (-age / half_life)) * (1 - trust + trust * trust of the item)

    An item that only one of the two rankings has counts in the other one as its last item: no score by words, and the least similarity,
    both 0 at least. Such scores mean nothing beyond the order within one search. In a search by words alone the first line is the
    database's own score (bm25), and by meaning alone it is the cosine similarity.
    """

    keyword: float = 1.0
    semantic: float = 1.0
    recency: float = 0.0
    """From 0 (age does not matter) to 1."""
    half_life: float = 30 * 86400.0
    """Seconds."""
    trust: float = 0.0
    """From 0 (trust does not matter) to 1."""

    def __post_init__(self) -> None:
        weights = (self.keyword, self.semantic)
        if min(weights) < 0 or max(weights) <= 0 or not self.half_life > 0:
            raise InvalidRequest("the weights of a ranking must be 0 or more, one of them above 0, and its half-life above 0")
        if not (0 <= self.recency <= 1 and 0 <= self.trust <= 1):
            raise InvalidRequest("recency and trust of a ranking must be numbers from 0 to 1")

    @property
    def needs_rows(self) -> bool:
        """True if the order depends on more than the two rankings."""
        return self.recency > 0 or self.trust > 0

    def factor(self, row: Row, now: float) -> float:
        """Return the factor of an item's score."""
        age = max(0.0, now - row.updated_at)
        recent = 1 - self.recency + self.recency * math.exp2(-age / self.half_life)
        return recent * (1 - self.trust + self.trust * row.meta.trust)


def fused(keyword: Sequence[Hit], nearest: Sequence[Hit], ranking: Ranking, factors: Mapping[int, float] | None = None) -> Iterator[Hit]:
    """Yield the items of both rankings, the best first; if there are `factors`, items without one are left out."""
    best = max((hit.score for hit in keyword), default=0.0) or 1.0
    words = _Scores(keyword, ranking.keyword / best)
    meanings = _Scores(nearest, MEANING * ranking.semantic, least=True)
    return _windowed([one for one in (words, meanings) if one.weight > 0], factors)


def weighed(hits: Sequence[Hit], factors: Mapping[int, float] | None = None) -> Iterator[Hit]:
    """Yield the items of a single ranking with their own scores, times the factors if there are some."""
    return iter(hits) if factors is None else _windowed([_Scores(hits)], factors)


def depth(count: int) -> int:
    """Return how many hits of each ranking are needed for the first `count` items: whole windows."""
    return -(-count // WINDOW) * WINDOW


@dataclass(frozen=True, slots=True)
class _Scores:
    """A ranking and the weight of its scores."""

    hits: Sequence[Hit]
    weight: float = 1.0
    least: bool = False
    """True: an item outside the window counts as much as the last one in it. False: it counts nothing."""

    def missing(self, end: int) -> float:
        """Return the weighted score of an item that is not among the first `end`."""
        return self._weighed(self.hits[min(end, len(self.hits)) - 1].score) if self.least and self.hits else 0.0

    def scores(self, end: int) -> dict[int, float]:
        """Return the weighted scores of the first `end` items, by row."""
        return {hit.row: self._weighed(hit.score) for hit in self.hits[:end]}

    def _weighed(self, score: float) -> float:
        return self.weight * (max(0.0, score) if self.least else score)


def _windowed(rankings: Sequence[_Scores], factors: Mapping[int, float] | None) -> Iterator[Hit]:
    """Fuse the rankings window by window, the first windows before the second ones.

    Therefore the beginning is the same however many hits there are, and pages fit together; scores do not rise at a window's edge.
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
    """Return negative scores with rows, the best first; of equals, the older one."""
    if factors is not None:
        scores = {row: score * factors[row] for row, score in scores.items() if row in factors}
    return sorted((-score, row) for row, score in scores.items())
