"""Confidence from token log-probabilities, as `protocols.steps.Finished.confidence` defines it."""

import math
from collections import deque

_WINDOW = 4


class LowestWindow:
    """exp of the lowest mean log-probability over any 4 consecutive tokens, computed as they arrive."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_WINDOW)
        self._lowest: float | None = None

    def add(self, logprob: float) -> None:
        """Take the next token's log-probability."""
        self._recent.append(logprob)
        if len(self._recent) == _WINDOW:
            mean = sum(self._recent) / _WINDOW
            self._lowest = mean if self._lowest is None else min(self._lowest, mean)

    @property
    def value(self) -> float | None:
        """None before the first token; an answer shorter than the window is one window."""
        if not self._recent:
            return None
        lowest = sum(self._recent) / len(self._recent) if self._lowest is None else self._lowest
        return min(1.0, math.exp(lowest))
