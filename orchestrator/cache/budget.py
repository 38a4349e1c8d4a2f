"""The false-hit budget: from judged pairs of questions, how close two have to be for an answer to be shared at an acceptable risk."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ..task.sections.cache import LEAST_THRESHOLD

CONFIDENCE: Final = 0.95
"""With which the share of false hits is below the budget, and of the intervals that are reported."""
STEP: Final = 0.01


@dataclass(frozen=True, slots=True)
class Judgement:
    """Two questions that no guard tells apart, and whether the answer to one was right for the other."""

    similarity: float
    is_same: bool


@dataclass(frozen=True, slots=True)
class Interval:
    """A share, and the interval that holds the true one with `CONFIDENCE`."""

    false: int
    judged: int

    @property
    def share(self) -> float | None:
        """None where nothing was judged."""
        return self.false / self.judged if self.judged else None

    @property
    def low(self) -> float:
        return lower_bound(self.false, self.judged, (1 + CONFIDENCE) / 2)

    @property
    def high(self) -> float:
        return upper_bound(self.false, self.judged, (1 + CONFIDENCE) / 2)


def learned_threshold(judgements: Sequence[Judgement], budget: float) -> float | None:
    """Return the lowest similarity above which the share of false hits is below `budget` with `CONFIDENCE`; None where none is proved to
    be.

    Thresholds are tested from the strictest one that has enough judgements to pass at all, downwards until the first fails: a fixed
    sequence of tests, so that looking at many thresholds does not weaken the confidence in the one chosen (Learn then Test, arXiv
    2110.01052). Each test is the bound of Clopper and Pearson (1934), which needs no assumption but that the pairs were drawn alike.
    """
    found = None
    least = needed(budget)
    for step in range(round((1 - LEAST_THRESHOLD) / STEP) + 1):
        threshold = round(1 - step * STEP, 6)
        above = [judgement for judgement in judgements if judgement.similarity >= threshold]
        if len(above) < least:
            continue
        if upper_bound(sum(not judgement.is_same for judgement in above), len(above), CONFIDENCE) > budget:
            break
        found = threshold
    return found


def is_exceeded(judgements: Sequence[Judgement], budget: float, threshold: float) -> bool:
    """Return whether it is proved that more than `budget` of the hits from `threshold` on are false."""
    above = [judgement for judgement in judgements if judgement.similarity >= threshold]
    return lower_bound(sum(not judgement.is_same for judgement in above), len(above), CONFIDENCE) > budget


def needed(budget: float) -> int:
    """Judgements without a false one that prove a budget."""
    return math.ceil(math.log(1 - CONFIDENCE) / math.log1p(-budget))


def upper_bound(false: int, judged: int, confidence: float) -> float:
    """Return the largest share under which so few false ones among so many would still be seen with a probability of 1 - `confidence`."""
    if false >= judged:
        return 1.0
    return _solved(lambda share: _at_most(false, judged, share) > 1 - confidence)


def lower_bound(false: int, judged: int, confidence: float) -> float:
    """Return the smallest share under which so many false ones among so many would still be seen with a probability of 1 - `confidence`."""
    return 0.0 if false <= 0 else 1 - upper_bound(judged - false, judged, confidence)


def _solved(is_below: Callable[[float], bool]) -> float:
    """Return the place between 0 and 1 at which a test that holds at 0 ceases to hold."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return high


def _at_most(count: int, trials: int, share: float) -> float:
    """Return the probability of at most `count` successes (the binomial distribution), summed by logarithms so that no term overflows."""
    if share <= 0.0 or share >= 1.0:
        return float(share <= 0.0)
    odds = math.log(share) - math.log1p(-share)
    term = trials * math.log1p(-share)
    total = 0.0
    for successes in range(count + 1):
        total += math.exp(term)
        term += odds + math.log(trials - successes) - math.log(successes + 1) if successes < trials else 0.0
    return min(total, 1.0)
