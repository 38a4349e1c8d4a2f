"""Measure how well the results at one granularity fit a question, and how certain that granularity is about it."""

import math
from collections.abc import Collection, Hashable, Mapping
from typing import Final, TypeVar

from ..fusion import MEANING

Key = TypeVar("Key", bound=Hashable)

_TEMPERATURE: Final = 0.1
"""Differences in relevance of this size matter when a granularity's certainty is measured."""


def relevance(keyword: Mapping[Key, float], semantic: Mapping[Key, float]) -> dict[Key, float]:
    """Return the relevance of each key, from scores by words and cosine similarities. An item that only one of the two searches found
    counts in the other as its last hit.

    Unlike ranks, relevance keeps how much better one item is than the next.
    """
    best = max(keyword.values(), default=0.0) or 1.0
    last = min(semantic.values(), default=0.0)
    return {key: keyword.get(key, 0.0) / best + MEANING * semantic.get(key, last) for key in (*keyword, *semantic)}


def certainty(relevances: Collection[float]) -> float:
    """Return a certainty from 1/e (all fit equally well) to 1 (one stands out): exp of the negative entropy of their softmax, in units
    of the greatest that is possible (MemGAS, arXiv 2505.19549)."""
    if len(relevances) < 2:
        return 1.0
    best = max(relevances)
    weights = [math.exp((one - best) / _TEMPERATURE) for one in relevances]
    total = sum(weights)
    entropy = -sum(weight / total * math.log(weight / total) for weight in weights if weight > 0)
    return math.exp(-entropy / math.log(len(weights)))
