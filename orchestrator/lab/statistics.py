"""Statistics of recorded runs and of routers: bootstrap intervals, the Pareto front, routing curves, guarantees. Needs numpy.

Intervals are 95 % percentile bootstraps (Efron 1979) over tasks. A task's runs under several seeds stay together and are resampled
inside it, so that repeating a task does not pass for having more tasks. Where all runs agree the interval is a point. The measures of
routers are those of RouteLLM (arXiv 2406.18665) on recorded outcomes.

The quality of a threshold is guaranteed on new tasks of the same kind, with finite-sample confidence, by learn-then-test (Angelopoulos et
al., arXiv 2110.01052): thresholds are tested one after the other, in an order that no outcome has a say in, from everything going far to
less and less; the last one before the first that fails is taken. Such fixed-sequence testing needs no correction for how many are tested.
The thresholds are the multiples of a step, so that they do not depend on the tasks either.

The test of a mean of scores of 0 and 1 is the exact binomial one (Clopper and Pearson 1934); of other scores between 0 and 1, that by
betting (Waudby-Smith and Ramdas, arXiv 2010.09686): under the null hypothesis no strategy of bets makes money from the scores, so that
capital c is reached with a probability of at most 1 / c (Ville's inequality).

That bounds the expected score. What a user sees is the mean over the next tasks, which chance moves too: over as many as were tested on,
by as much again. So the test is made at the error at which that mean holds as well, by the normal approximation: 0.01 for confidence 0.95.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import floor, lgamma, log, log1p, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, Self

from ...protocols import ConfigError
from ...protocols.steps import Value

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]
    Column = Sequence[float] | Floats

QUANTILES: Final = 10
"""Equally large groups of tasks whose edges are the thresholds that a curve is drawn from."""
_OUTER: Final = (0.025, 0.975)
"""Quantiles of the resamples that are the ends of an interval."""
_CURVES: Final = 200
"""Resamples of a curve, and of means over its tasks."""
_RESAMPLES: Final = 2000
_CHANCE: Final = 0.5
"""APGR of a router that draws by lot."""
_SEED: Final = 20_260_530
_CHUNK: Final = 100
"""Resamples made at once, which bounds the memory."""

Unit = Mapping[str, Sequence[float]]
"""Values by task: one for each run of it."""
STEP: Final = 0.005
"""Distance of the thresholds that are tested, in what a right answer is worth."""
_LARGEST_BET: Final = 0.75
"""Share of the capital that a bet may lose at most."""
_MOST_LOG_CAPITAL: Final = 700.0
"""Logarithm of a capital that a float can hold; more of it proves no more."""
_TIMES: Final = (2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200)
"""Times as many tasks as there are, for which is looked whether they would do."""


class IntervalEstimate(Value):
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"

    def times(self, factor: float) -> "IntervalEstimate":
        """Return the figure in another unit."""
        return IntervalEstimate(value=factor * self.value, low=factor * self.low, high=factor * self.high)


def mean(values: Unit) -> IntervalEstimate:
    """Return the mean over tasks. Raises `ValueError` without a value."""
    means = _resample_means([values])
    return percentile_interval(_mean(values), means[:, 0])


def difference(first: Unit, second: Unit) -> IntervalEstimate:
    """Return the mean of `first` less the mean of `second`. Both have the same tasks and seeds, and each resample takes the same of
    both."""
    means = _resample_means([first, second])
    return percentile_interval(_mean(first) - _mean(second), means[:, 0] - means[:, 1])


def ratio(first: Unit, second: Unit) -> IntervalEstimate | None:
    """Return the mean of `first` over the mean of `second`, paired as in `difference`; None where the second may be 0."""
    means = _resample_means([first, second])
    if not means[:, 1].all() or _mean(second) == 0:
        return None
    return percentile_interval(_mean(first) / _mean(second), means[:, 0] / means[:, 1])


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the points (cost, score) that no other beats in one without losing in the other, cheapest first."""
    order = sorted(range(len(points)), key=lambda index: (points[index][0], -points[index][1]))
    front: list[int] = []
    best = float("-inf")
    for index in order:
        if points[index][1] > best:
            front.append(index)
            best = points[index][1]
    return front


def _mean(values: Unit) -> float:
    return sum(sum(runs) / len(runs) for runs in values.values()) / len(values)


def percentile_interval(value: float, resampled: "Column") -> IntervalEstimate:
    """Return a figure and the 95 % percentile interval of its resamples. Where there are none, it is a point."""
    import numpy

    low, high = numpy.quantile(resampled, _OUTER) if len(resampled) else (value, value)
    return IntervalEstimate(value=float(value), low=float(low), high=float(high))


def _resample_means(measures: Sequence[Unit]) -> "Floats":
    """Return resampled means, one column per measure; all measures have the same tasks with as many runs."""
    import numpy

    table, counts = _table(measures)
    random = numpy.random.default_rng(_SEED)
    parts = [_resample(table, counts, random, _CHUNK) for _ in range(_RESAMPLES // _CHUNK)]
    return numpy.concatenate(parts)


def _resample(table: "Floats", counts: "NDArray[numpy.int64]", random: "numpy.random.Generator", size: int) -> "Floats":
    import numpy

    tasks, most = table.shape[0], table.shape[1]
    drawn = random.integers(0, tasks, (size, tasks))
    if most == 1:
        once: Floats = table[drawn, 0].mean(axis=1)
        return once
    of_task = counts[drawn]
    runs = (random.random((size, tasks, most)) * of_task[..., None]).astype(numpy.int64)
    is_drawn = numpy.arange(most) < of_task[..., None]
    values = table[drawn[..., None], runs] * is_drawn[..., None]
    means: Floats = (values.sum(axis=2) / of_task[..., None]).mean(axis=1)
    return means


def _table(measures: Sequence[Unit]) -> "tuple[Floats, NDArray[numpy.int64]]":
    """Return an array (task, run, measure), padded with zeros, and the number of runs of each task."""
    import numpy

    tasks = list(measures[0])
    if not tasks:
        raise ValueError("there is nothing to take the mean of")
    counts = numpy.array([len(measures[0][task]) for task in tasks])
    table = numpy.zeros((len(tasks), int(counts.max()), len(measures)))
    for column, measure in enumerate(measures):
        for row, task in enumerate(tasks):
            table[row, : counts[row], column] = measure[task]
    return table, counts


class Point(Value):
    """Share of far tasks and quality under one threshold."""

    far_share: float
    """Share of tasks that the far side serves."""
    quality: float
    """Mean outcome, between 0 and 1."""


class RoutingCurve(Value):
    """Quality against the share of far calls, from none to all, and what it is summed up in."""

    points: tuple[Point, ...]
    near: float
    """Mean outcome of the near side alone."""
    far: float
    """Mean outcome of the far side alone."""

    @property
    def recovered(self) -> float:
        """APGR: the mean share of the gap between the sides that is recovered, over all shares of far calls; 0.5 at random."""
        area = sum(
            (right.far_share - left.far_share) * (left.quality + right.quality) / 2
            for left, right in zip(self.points, self.points[1:], strict=False)
        )
        return (area - self.near) / (self.far - self.near)

    def far_share_for(self, gap_share: float) -> float:
        """Return CPT: the smallest share of far calls at which so much of the gap is recovered, interpolated linearly between points."""
        wanted = self.near + gap_share * (self.far - self.near)
        sign = 1 if self.far > self.near else -1
        for left, right in zip(self.points, self.points[1:], strict=False):
            rise = right.quality - left.quality
            if sign * (left.quality - wanted) >= 0:
                return left.far_share
            if sign * (right.quality - wanted) >= 0:
                return left.far_share + (wanted - left.quality) / rise * (right.far_share - left.far_share)
        return self.points[-1].far_share


class CurveFigures(Value):
    """Summary figures of a curve, with 95 % bootstrap intervals over tasks."""

    recovered: IntervalEstimate
    """APGR: 0.5 is random."""
    far_share_for_half: IntervalEstimate
    """CPT(50 %): share of far calls that recovers half of the gap between the sides."""
    far_share_for_most: IntervalEstimate
    """CPT(80 %)."""


def routing_curve(scores: "Column", near: "Column", far: "Column") -> RoutingCurve:
    """Return the curve of a router.

    Args:
        scores: what it expects to gain from the far side, per task; the highest go there first.
        near: outcome of the near side, per task, between 0 and 1.
        far: the same of the far side.

    Raises `ValueError` for no task, lengths that differ, or sides that do equally well, between which there is no gap to recover.
    """
    return _curve(*_columns(scores, near, far))


def with_interval(scores: "Column", near: "Column", far: "Column", *, seed: int = 0) -> tuple[RoutingCurve, IntervalEstimate]:
    """Return the curve, and APGR with its 95 % bootstrap interval over tasks. Raises what `routing_curve` raises."""
    columns = _columns(scores, near, far)
    curve = _curve(*columns)
    return curve, percentile_interval(curve.recovered, [drawn.recovered for drawn in _resample_curves(columns, seed)])


def curve_figures(scores: "Column", near: "Column", far: "Column", *, seed: int = 0) -> CurveFigures:
    """Return APGR, CPT(50 %) and CPT(80 %). Raises what `routing_curve` raises."""
    columns = _columns(scores, near, far)
    curve, resampled = _curve(*columns), list(_resample_curves(columns, seed))
    half, most = (percentile_interval(curve.far_share_for(part), [drawn.far_share_for(part) for drawn in resampled]) for part in (0.5, 0.8))
    recovered = percentile_interval(curve.recovered, [drawn.recovered for drawn in resampled])
    return CurveFigures(recovered=recovered, far_share_for_half=half, far_share_for_most=most)


def estimated_means(columns: "Sequence[Floats]", *, seed: int = 0) -> list[IntervalEstimate]:
    """Return the mean of each column, one value per task, with its interval: every resample takes the same tasks of all columns."""
    import numpy

    table = numpy.stack(columns, axis=1)
    random = numpy.random.default_rng(seed)
    tasks = len(table)
    drawn = numpy.stack([numpy.bincount(random.integers(0, tasks, tasks), minlength=tasks) @ table / tasks for _ in range(_CURVES)], axis=1)
    return [percentile_interval(float(mean), means) for mean, means in zip(table.mean(axis=0), drawn, strict=True)]


def doubts(gap: IntervalEstimate, recovered: IntervalEstimate | None) -> Iterator[str]:
    """Yield a warning for each figure that is within noise: the gap between the sides in score, and APGR."""
    if gap.low <= 0 <= gap.high:
        yield f"The sides differ by {100 * gap.value:.1f} points [{100 * gap.low:.1f}, {100 * gap.high:.1f}], which is within noise."
    if recovered is not None and recovered.low <= _CHANCE <= recovered.high:
        yield f"The router recovers {recovered} of the gap, and chance 0.5: the difference is within noise."


def quantiles(scores: "Floats") -> "Floats":
    """Return the thresholds that a curve is drawn from: the edges of ten equally large groups, each once, in ascending order."""
    import numpy

    edges: Floats = numpy.unique(numpy.quantile(scores, numpy.linspace(0, 1, QUANTILES + 1)))
    return edges


def _columns(scores: "Column", near: "Column", far: "Column") -> "tuple[Floats, Floats, Floats]":
    import numpy

    gains, one, other = (numpy.asarray(values, dtype=numpy.float64) for values in (scores, near, far))
    if not len(gains) or not len(gains) == len(one) == len(other):
        raise ValueError("a curve needs a score and two outcomes for each of at least one task")
    if one.mean() == other.mean():
        raise ValueError("both sides do equally well")
    return gains, one, other


def _resample_curves(columns: "tuple[Floats, Floats, Floats]", seed: int) -> Iterator[RoutingCurve]:
    """Yield curves of the same tasks, drawn with replacement; draws without a gap between the sides are skipped."""
    import numpy

    random = numpy.random.default_rng(seed)
    tasks = len(columns[0])
    for _ in range(_CURVES):
        chosen = random.integers(0, tasks, tasks)
        gains, near, far = (column[chosen] for column in columns)
        if near.mean() != far.mean():
            yield _curve(gains, near, far)


def _curve(scores: "Floats", near: "Floats", far: "Floats") -> RoutingCurve:
    import numpy

    points = {(0.0, float(near.mean()))}
    for threshold in quantiles(scores):
        goes_far = scores >= threshold
        points.add((float(goes_far.mean()), float(numpy.where(goes_far, far, near).mean())))
    return RoutingCurve(
        points=tuple(Point(far_share=share, quality=quality) for share, quality in sorted(points)),
        near=float(near.mean()),
        far=float(far.mean()),
    )


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
