"""Confidence from token log-probabilities, as `protocols.steps.Finished.confidence` defines it."""

import math
from collections import deque

_WINDOW = 4
_LEAST = -10_000.0
"""Log-probability below which all are one: servers write "impossible" as various large numbers, and as minus infinity."""
_ROUNDING = 0.01
"""What a certain token may have above 0."""


class LowestWindow:
    """exp of the lowest mean log-probability over any 4 consecutive tokens, computed as they arrive."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_WINDOW)
        self._lowest: float | None = None
        self._has_gap = False

    def add(self, logprob: float) -> None:
        """Take the next token's log-probability, as the server wrote it: what is no logarithm of a probability must not pass for one."""
        if not logprob <= _ROUNDING:  # nor is NaN
            self._has_gap = True
            return
        self._recent.append(max(_LEAST, min(0.0, logprob)))
        if len(self._recent) == _WINDOW:
            mean = sum(self._recent) / _WINDOW
            self._lowest = mean if self._lowest is None else min(self._lowest, mean)

    @property
    def value(self) -> float | None:
        """None before the first token, and if one had none; an answer shorter than the window is one window."""
        if not self._recent or self._has_gap:
            return None
        lowest = sum(self._recent) / len(self._recent) if self._lowest is None else self._lowest
        return min(1.0, math.exp(lowest))
