"""Choosing the next token from logits, and how sure the model was of it."""

import math
from collections import deque
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...protocols import ModelError

Logits: TypeAlias = NDArray[np.float32]
Mask: TypeAlias = NDArray[np.bool_]

_WINDOW: Final = 4


class NearTie(Exception):
    """Two tokens are so close that the rounding of a pass may decide between them; nothing was chosen."""


class Sampler:
    """Greedy at temperature 0, else from the softmax of logits / temperature. The same seed gives the same choices."""

    def __init__(self, temperature: float, seed: int | None) -> None:
        self._temperature = temperature
        self._random = np.random.default_rng(seed)
        self.tolerance = 0.0
        """Possible error of logits. A greedy choice that an error of this size could change is refused with `NearTie`."""

    def pick(self, logits: Logits, allowed: Mask | None = None) -> int:
        """Choose a token; one of `allowed`, if given, of which there must be at least one."""
        if allowed is not None:
            logits = np.where(allowed, logits, np.float32(-np.inf))
        if self._temperature == 0:
            token = int(logits.argmax())
            if self.tolerance and np.count_nonzero(logits > logits[token] - self.tolerance) > 1:
                raise NearTie
            return token
        weights = np.exp((logits - logits.max()).astype(np.float64) / self._temperature)
        cumulative = weights.cumsum()
        index = int(np.searchsorted(cumulative, self._random.random() * cumulative[-1], side="right"))
        return min(index, len(logits) - 1)


def log_probability(logits: Logits, token: int) -> float:
    """Return the natural logarithm of the model's own probability of `token`, before temperature and masks.

    Raises `ModelError` if the logits are no numbers, as those of a damaged model.
    """
    highest = logits.max()
    if not math.isfinite(highest):
        raise ModelError("the model computes logits that are not numbers", hint="it is damaged: download it again")
    return float(logits[token] - highest) - math.log(float(np.exp(logits - highest).sum()))


class Confidence:
    """exp of the lowest mean log-probability over any `_WINDOW` consecutive tokens; over all of them if they are fewer."""

    def __init__(self) -> None:
        self._window: deque[float] = deque(maxlen=_WINDOW)
        self._lowest = 0.0

    def add(self, log_probability: float) -> None:
        window = self._window
        window.append(log_probability)
        if len(window) == _WINDOW:
            self._lowest = min(self._lowest, sum(window))

    @property
    def value(self) -> float | None:
        """The confidence, between 0 and 1; None before the first token."""
        if not self._window:
            return None
        lowest = self._lowest / _WINDOW if len(self._window) == _WINDOW else sum(self._window) / len(self._window)
        return math.exp(min(lowest, 0.0))
