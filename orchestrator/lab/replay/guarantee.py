"""A threshold whose quality is guaranteed on new tasks of the same kind, with finite-sample confidence.

Learn-then-test (Angelopoulos et al., arXiv 2110.01052): thresholds are tested one after the other, in an order that no outcome has a say
in, from everything going far to less and less; the last one before the first that fails is taken. Such fixed-sequence testing needs no
correction for how many are tested. The thresholds are the multiples of a step, so that they do not depend on the tasks either.

The test of a mean of scores of 0 and 1 is the exact binomial one (Clopper and Pearson 1934); of other scores between 0 and 1, that by
betting (Waudby-Smith and Ramdas, arXiv 2010.09686): under the null hypothesis no strategy of bets makes money from the scores, so that
capital c is reached with a probability of at most 1 / c (Ville's inequality).

That bounds the expected score. What a user sees is the mean over the next tasks, which chance moves too: over as many as were tested on,
by as much again. So the test is made at the error at which that mean holds as well, by the normal approximation: 0.01 for confidence 0.95.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, lgamma, log, log1p, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, Self

from ....protocols import ConfigError
from ....protocols.steps import Value

if TYPE_CHECKING:
    from ..statistics import Floats

STEP: Final = 0.005
"""Distance of the thresholds that are tested, in what a right answer is worth."""
_LARGEST_BET: Final = 0.75
"""Share of the capital that a bet may lose at most."""
_MOST_LOG_CAPITAL: Final = 700.0
"""Logarithm of a capital that a float can hold; more of it proves no more."""
_TIMES: Final = (2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200)
"""Times as many tasks as there are, for which is looked whether they would do."""


class Guarantee(Value):
    """A quality that a threshold keeps with confidence, and the test of it."""

    confidence: float
    """With which the quality is reached, in the mean over as many new tasks as it was tested on."""
    threshold: float
    tasks: int
    """Tasks that it was tested on."""
    p_value: float
    """p-value of the hypothesis that the quality is missed at this threshold."""
    far_share: float
    """Share of the tasks that it was tested on."""
    tested: int
    """Thresholds that were tested."""


def p_value(scores: "Floats", wanted: float, *, error: float = 0.05) -> float:
    """Return a p-value of the hypothesis that scores between 0 and 1, in random order, have a mean below `wanted`.

    `error`: at which the test is to be most powerful.
    """
    import numpy

    if wanted <= 0:
        return 0.0
    if wanted >= 1:
        return 1.0
    if numpy.isin(scores, (0.0, 1.0)).all():
        return _binomial_tail(len(scores), int(scores.sum()), wanted)
    return min(1.0, 1 / float(_capital(scores, wanted, error).max()))


@dataclass(frozen=True, slots=True)
class Margins:
    """The tasks that thresholds are tested on, in random order. All arrays have shape (tasks,)."""

    advantages: "Floats"
    """Utility that the far side is ahead by; a task goes far above the threshold."""
    near: "Floats"
    """A figure between 0 and 1 where the task stays near, whose mean over tasks has to reach `wanted`."""
    far: "Floats"
    """The figure where it goes far."""
    wanted: float

    @classmethod
    def of_share(cls, advantages: "Floats", near: "Floats", far: "Floats", *, share: float) -> Self:
        """Return the margins of a share of the far side's score, given scores between 0 and 1 in random order.

        It is one of means: what a task has over that share of its far score lies between -share and 1, and shall not be negative in the
        mean.
        """
        over = [(scores - share * far + share) / (1 + share) for scores in (near, far)]
        return cls(advantages, over[0], over[1], wanted=share / (1 + share))

    def p_value(self, threshold: float, *, error: float, times: int = 1) -> float:
        """Return the p-value of missing the quality at a threshold; `times`: as if there were as many times the tasks."""
        import numpy

        served = numpy.where(self.advantages > threshold, self.far, self.near)
        return p_value(numpy.tile(served, times), self.wanted, error=error)

    def last_kept(self, thresholds: Sequence[float], *, error: float, times: int = 1) -> int:
        """Return the place of the last threshold before the first that fails; -1 where already the first does."""
        failed = (place for place, each in enumerate(thresholds) if self.p_value(each, error=error, times=times) > error)
        return next(failed, len(thresholds)) - 1


def guaranteed_threshold(margins: Margins, *, confidence: float, worth: float = 1.0) -> Guarantee:
    """Return the highest threshold at which the quality is guaranteed.

    Args:
        margins: of the tasks that it is tested on.
        confidence: with which the quality shall be reached on new tasks, above 0 and below 1.
        worth: what the objective gives for a right answer, the unit of the steps between thresholds.

    Raises `ConfigError` where nothing can be guaranteed but that everything far would do; it tells how many tasks would about be needed.
    """
    check_confidence(confidence)
    thresholds, error = _multiples(margins.advantages, STEP * worth), error_of(confidence)
    place = margins.last_kept(thresholds, error=error)
    if place < 1:
        raise _refusal(margins, thresholds, confidence)
    threshold = thresholds[place]
    return Guarantee(
        confidence=confidence,
        threshold=threshold,
        tasks=len(margins.advantages),
        p_value=margins.p_value(threshold, error=error),
        far_share=float((margins.advantages > threshold).mean()),
        tested=min(place + 2, len(thresholds)),
    )


def check_confidence(confidence: float) -> None:
    """Raise `ConfigError` for a confidence outside 0 to 1."""
    if not 0 < confidence < 1:
        raise ConfigError(f"a confidence lies between 0 and 1, not at {confidence:g}", hint="0.95 is usual")


def error_of(confidence: float) -> float:
    """Return the error of a test of the expected score that leaves room for the luck of as many new tasks: a difference of two means of as
    many tasks has the square root of 2 times the deviation of one."""
    usual = NormalDist()
    return 1 - usual.cdf(sqrt(2) * max(usual.inv_cdf(confidence), 0.0))


def _multiples(advantages: "Floats", step: float) -> list[float]:
    """Return the multiples of a step from below all advantages to above them, without those that send the same tasks far as the one
    before."""
    import numpy

    first, last = floor(float(advantages.min()) / step) - 1, floor(float(advantages.max()) / step) + 1
    every = numpy.arange(first, last + 1) * step
    counts = numpy.searchsorted(numpy.sort(advantages), every, side="right")
    return [float(each) for each in every[numpy.flatnonzero(numpy.diff(counts, prepend=-1))]]


def _refusal(margins: Margins, thresholds: Sequence[float], confidence: float) -> ConfigError:
    """Explain that the tasks are too few, with about how many would do if all others were like them."""
    error, tasks = error_of(confidence), len(margins.advantages)
    kept = [times for times in _TIMES if margins.last_kept(thresholds[:2], error=error, times=times) >= 1]
    enough = f"about {kept[0] * tasks:,} such tasks would be needed" if kept else "no number of such tasks would do: ask for less quality"
    return ConfigError(
        f"on {tasks:,} tasks that quality cannot be guaranteed with confidence {confidence:g} unless everything goes far", hint=enough
    )


def _binomial_tail(tasks: int, right: int, chance: float) -> float:
    """Return the probability of at least so many successes."""
    import numpy

    counts = range(right, tasks + 1)
    logs = [lgamma(tasks + 1) - lgamma(k + 1) - lgamma(tasks - k + 1) + k * log(chance) + (tasks - k) * log1p(-chance) for k in counts]
    return min(float(numpy.exp(logs).sum()), 1.0)


def _capital(scores: "Floats", wanted: float, error: float) -> "Floats":
    """Return the capital after each score of one who bets that the mean is higher, with bets that only earlier scores decide on."""
    import numpy

    tasks = len(scores)
    counts = numpy.arange(1, tasks + 1)
    means = (0.5 + numpy.cumsum(scores)) / (counts + 1)
    variances = (0.25 + numpy.cumsum((scores - means) ** 2)) / (counts + 1)
    known = numpy.concatenate([[0.25], variances[:-1]])
    bets = numpy.minimum(numpy.sqrt(-2 * log(error) / (tasks * known)), _LARGEST_BET / wanted)
    logs = numpy.cumsum(numpy.log1p(bets * (scores - wanted)))
    capital: Floats = numpy.exp(numpy.minimum(logs, _MOST_LOG_CAPITAL))
    return capital
