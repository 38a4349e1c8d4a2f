"""How well a router trades calls of the far side for right answers: the measures of RouteLLM (arXiv 2406.18665) on recorded outcomes."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from ....protocols.messages import Value
from ..study.statistics import Estimate

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]
    Column = Sequence[float] | Floats

QUANTILES: Final = 10
"""Equally large groups of tasks whose edges are the thresholds that a curve is drawn from."""
RESAMPLES: Final = 200
Interval = Estimate
"""A figure with its 95 % bootstrap interval over tasks, as the study has it; the router calls something else an estimate."""
_OUTER: Final = (0.025, 0.975)
"""Quantiles of the resamples that are the ends of an interval."""


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

    recovered: Interval
    """APGR: 0.5 is random."""
    far_share_for_half: Interval
    """CPT(50 %): share of far calls that recovers half of the gap between the sides."""
    far_share_for_most: Interval
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


def with_interval(scores: "Column", near: "Column", far: "Column", *, seed: int = 0) -> tuple[RoutingCurve, Interval]:
    """Return the curve, and APGR with its 95 % bootstrap interval over tasks. Raises what `routing_curve` raises."""
    columns = _columns(scores, near, far)
    curve = _curve(*columns)
    return curve, _interval(curve.recovered, [drawn.recovered for drawn in _resampled(columns, seed)])


def curve_figures(scores: "Column", near: "Column", far: "Column", *, seed: int = 0) -> CurveFigures:
    """Return APGR, CPT(50 %) and CPT(80 %). Raises what `routing_curve` raises."""
    columns = _columns(scores, near, far)
    curve, resampled = _curve(*columns), list(_resampled(columns, seed))
    half, most = (_interval(curve.far_share_for(part), [drawn.far_share_for(part) for drawn in resampled]) for part in (0.5, 0.8))
    recovered = _interval(curve.recovered, [drawn.recovered for drawn in resampled])
    return CurveFigures(recovered=recovered, far_share_for_half=half, far_share_for_most=most)


def estimated_means(columns: "Sequence[Floats]", *, seed: int = 0) -> list[Interval]:
    """Return the mean of each column, one value per task, with its interval: every resample takes the same tasks of all columns."""
    import numpy

    table = numpy.stack(columns, axis=1)
    random = numpy.random.default_rng(seed)
    tasks = len(table)
    drawn = numpy.stack(
        [numpy.bincount(random.integers(0, tasks, tasks), minlength=tasks) @ table / tasks for _ in range(RESAMPLES)], axis=1
    )
    return [_interval(float(mean), means) for mean, means in zip(table.mean(axis=0), drawn, strict=True)]


def _interval(value: float, resampled: "Column") -> Interval:
    """Return a figure and the 95 % percentile interval of its resamples. Where there are none, it is a point."""
    import numpy

    low, high = numpy.quantile(resampled, _OUTER) if len(resampled) else (value, value)
    return Interval(value=value, low=float(low), high=float(high))


def _columns(scores: "Column", near: "Column", far: "Column") -> "tuple[Floats, Floats, Floats]":
    import numpy

    gains, one, other = (numpy.asarray(values, dtype=numpy.float64) for values in (scores, near, far))
    if not len(gains) or not len(gains) == len(one) == len(other):
        raise ValueError("a curve needs a score and two outcomes for each of at least one task")
    if one.mean() == other.mean():
        raise ValueError("both sides do equally well")
    return gains, one, other


def _resampled(columns: "tuple[Floats, Floats, Floats]", seed: int) -> Iterator[RoutingCurve]:
    """Yield curves of the same tasks, drawn with replacement; draws without a gap between the sides are skipped."""
    import numpy

    random = numpy.random.default_rng(seed)
    tasks = len(columns[0])
    for _ in range(RESAMPLES):
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


def quantiles(scores: "Floats") -> "Floats":
    """Return the thresholds that a curve is drawn from: the edges of ten equally large groups, each once, in ascending order."""
    import numpy

    edges: Floats = numpy.unique(numpy.quantile(scores, numpy.linspace(0, 1, QUANTILES + 1)))
    return edges
