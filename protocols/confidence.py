"""Confidence from token log-probabilities, as `protocols.steps.Finished.confidence` defines it."""

import math
from collections import deque

_WINDOW = 4
_LEAST = -10_000.0
"""Log-probability below which all values count as equal: servers write "impossible" as various large numbers, and as minus infinity."""
_ROUNDING = 0.01
"""Tolerance above 0 for the log-probability of a certain token."""


def as_logprob(value: object) -> float:
    """Return a log-probability as a server wrote it, within its possible range; the least one for what is no number."""
    return min(0.0, max(_LEAST, value)) if isinstance(value, int | float) and value == value else _LEAST


class LowestWindow:
    """exp of the lowest mean log-probability over any 4 consecutive tokens, computed as they arrive."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_WINDOW)
        self._lowest: float | None = None
        self._has_gap = False

    def add(self, logprob: float) -> None:
        """Add the next token's log-probability as the server wrote it. A value that is not the logarithm of a probability makes the
        result None."""
        if not logprob <= _ROUNDING:  # nor is NaN
            self._has_gap = True
            return
        self._recent.append(max(_LEAST, min(0.0, logprob)))
        if len(self._recent) == _WINDOW:
            mean = sum(self._recent) / _WINDOW
            self._lowest = mean if self._lowest is None else min(self._lowest, mean)

    @property
    def value(self) -> float | None:
        """Return the confidence, or None before the first token or if a token had no valid value. A text shorter than the window counts
        as one window."""
        if not self._recent or self._has_gap:
            return None
        lowest = sum(self._recent) / len(self._recent) if self._lowest is None else self._lowest
        return min(1.0, math.exp(lowest))
