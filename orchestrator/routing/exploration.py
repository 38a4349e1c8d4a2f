"""Exploration: choose another agent than the best one known now and then, and the probability with which such a choice was made.

Logged outcomes are weighted by its inverse (Horvitz and Thompson 1952): what another policy would have come to is then estimated without a
bias.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import erf, exp, log, log1p, pi, sqrt
from random import Random
from threading import Lock
from typing import Final, Self

from ...protocols import ConfigError

_REACH: Final = 6.0
"""Standard deviations around the mean over which is integrated."""
_STEPS: Final = 400
_LEAST_DEVIATION: Final = 1e-9
_LEAST_CHANCE: Final = 1e-9
"""Probability as which a smaller one counts, so that its inverse is finite."""
_CELLS: Final = 120
_REACHED: Final = 8.0
"""Standard deviations of the log odds that the cells reach to, where both parameters of a Beta distribution are large."""
_HAS_TAILS: Final = 2.0
"""Parameter below which the distribution has a tail towards 0, or 1, that no deviation describes."""
_END: Final = 30.0
"""Log odds that stand for all of a tail: the scores there are as good as 0, or 1."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """An agent that the task may have."""

    agent: str
    utility: float
    """Predicted."""
    deviation: float
    """Standard deviation of the utility: that of the probability times what success is worth."""
    propensity: float = 1.0
    """Probability with which it was chosen, given all that came before; 1 where nothing was explored."""


class Explorer:
    """Chooses among agents, mostly the best one known. Calls may come from any thread.

    Args:
        explore_share: largest share of decisions, at any time, that may be for another agent than the best one; 0 never explores.
        seed: of the draws; None: another one each time.

    Raises `ConfigError` for a share outside 0 to 1.
    """

    def __init__(self, explore_share: float = 0.0, *, seed: int | None = None) -> None:
        if not 0 <= explore_share <= 1:
            raise ConfigError(f"explore_share lies between 0 and 1, not at {explore_share}", hint="0.02 explores with one task in fifty")
        self._share = explore_share
        self._random = Random(seed)
        self.decisions = 0
        self.explored = 0
        """Decisions for another agent than the best one known."""
        self._lock = Lock()

    def choose(self, prospects: Sequence[Prospect], *, best: str | None = None) -> Prospect:
        """Return the best prospect or, when exploration is due, the one that is best in one draw from the beliefs: Thompson sampling
        (arXiv 1111.1797).

        Args:
            prospects: at least one, all of which the task may have; of equals the first counts as the best.
            best: the agent that would serve without exploration; None: the one with the highest utility.
        """
        named = (prospect for prospect in prospects if prospect.agent == best)
        known = next(named, None) or max(prospects, key=lambda prospect: prospect.utility)
        with self._lock:
            self.decisions += 1
            is_due = self.explored + 1 <= self._share * self.decisions
            chosen = max(prospects, key=self._drawn) if is_due else known
            self.explored += chosen is not known
        return replace(chosen, propensity=_propensity(prospects, chosen)) if is_due else chosen

    def _drawn(self, prospect: Prospect) -> float:
        return self._random.gauss(prospect.utility, prospect.deviation)


def _propensity(prospects: Sequence[Prospect], chosen: Prospect) -> float:
    means, deviations = zip(*((each.utility, each.deviation) for each in prospects), strict=True)
    return chance_of_greatest(means, deviations, prospects.index(chosen))


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


@dataclass(frozen=True, slots=True)
class BetaWorth:
    """A constant, and a score whose belief is a Beta distribution."""

    constant: float
    mean: float
    """Inside of 0 to 1."""
    weight: float
    """Number of outcomes that the belief is worth."""


def chance_of_best(worths: Sequence[BetaWorth], place: int) -> float:
    """Return the probability that, of independent draws, the one at a place is worth most.

    The log odds of each score are cut into cells, in which the density has no poles; the sum over the cells is as that of
    `chance_of_greatest`.
    """
    spreads = [_Spread.of(worth) for worth in worths]
    own = spreads.pop(place)
    constants = [worth.constant for worth in worths]
    leads = [constants[place] - constant for constant in constants[:place] + constants[place + 1 :]]
    total = 0.0
    for score, mass in zip(own.scores, own.masses, strict=True):
        for other, lead in zip(spreads, leads, strict=True):
            mass *= other.below(score + lead)
        total += mass
    return min(max(total, _LEAST_CHANCE), 1.0)


@dataclass(frozen=True, slots=True)
class _Spread:
    """A Beta distribution, cut into cells."""

    scores: Sequence[float]
    """In the middle of each cell, ascending."""
    masses: Sequence[float]
    cumulated: Sequence[float]
    """Probability of a score below each of the middles."""

    @classmethod
    def of(cls, worth: BetaWorth) -> Self:
        alpha, beta = worth.mean * worth.weight, (1 - worth.mean) * worth.weight
        bounded = max(alpha, _HAS_TAILS), max(beta, _HAS_TAILS)
        middle, reach = log(bounded[0] / bounded[1]), _REACHED * sqrt(1 / bounded[0] + 1 / bounded[1])
        low = middle - reach if alpha > _HAS_TAILS else -_END
        high = middle + reach if beta > _HAS_TAILS else _END
        width = (high - low) / _CELLS
        places = [low + width * (cell + 0.5) for cell in range(_CELLS)]
        densities = [-alpha * log1p(exp(-odds)) - beta * log1p(exp(odds)) for odds in places]
        largest = max(densities)
        masses = [width * exp(density - largest) for density in densities]
        masses[0] += exp(densities[0] - largest) / alpha if low == -_END else 0.0  # the tail, in which the density falls exponentially
        masses[-1] += exp(densities[-1] - largest) / beta if high == _END else 0.0
        whole = sum(masses)
        masses = [mass / whole for mass in masses]
        cumulated = [upto - mass / 2 for upto, mass in zip(accumulate(masses), masses, strict=True)]
        return cls([1 / (1 + exp(-odds)) for odds in places], masses, cumulated)

    def below(self, score: float) -> float:
        """Return the probability of a lower score."""
        if not 0 < score < 1:
            return float(score >= 1)
        after = bisect_left(self.scores, score)
        left = (self.scores[after - 1], self.cumulated[after - 1]) if after else (0.0, 0.0)
        right = (self.scores[after], self.cumulated[after]) if after < len(self.scores) else (1.0, 1.0)
        share = (score - left[0]) / (right[0] - left[0])
        return left[1] + share * (right[1] - left[1])
