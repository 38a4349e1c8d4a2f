"""The probability with which an explored choice was made, so that logged outcomes can be weighted by its inverse (Horvitz and Thompson
1952): what another policy would have come to is then estimated without a bias."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from math import erf, exp, pi, sqrt
from random import Random
from typing import Final

_REACH: Final = 6.0
"""Standard deviations around the mean over which is integrated."""
_STEPS: Final = 400
_LEAST_DEVIATION: Final = 1e-9
_LEAST_CHANCE: Final = 1e-9
"""Probability as which a smaller one counts, so that its inverse is finite."""
_DRAWS: Final = 1000
_SEED: Final = 0


def chance_of_greatest(means: Sequence[float], deviations: Sequence[float], place: int) -> float:
    """Return the probability that, of independent Gaussian draws, the one at a place is the greatest.

    It is the integral of its density times the probability that all others lie below, by the trapezoidal rule.
    """
    own, spread = means[place], max(deviations[place], _LEAST_DEVIATION)
    both = enumerate(zip(means, deviations, strict=True))
    others = [(mean, max(deviation, _LEAST_DEVIATION)) for at, (mean, deviation) in both if at != place]
    width = 2 * _REACH / _STEPS
    total = 0.0
    for step in range(_STEPS + 1):
        standard = step * width - _REACH
        density = exp(-(standard**2) / 2) / sqrt(2 * pi)
        for mean, deviation in others:
            density *= (1 + erf((own + spread * standard - mean) / deviation / sqrt(2))) / 2
        total += density * width
    return min(max(total, _LEAST_CHANCE), 1.0)


def chance_of_draw(draw: Callable[[Random], Hashable], chosen: Hashable) -> float:
    """Return the share of 1,000 seeded draws that come to what was chosen; never 0, since it was drawn once."""
    random = Random(_SEED)
    counts = Counter(draw(random) for _ in range(_DRAWS))
    return (counts[chosen] + 1) / (_DRAWS + 1)
