"""How well a router trades calls of the far side for right answers: the measures of RouteLLM (arXiv 2406.18665) on recorded outcomes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ....protocols.messages import Value

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]

QUANTILES: Final = 10
"""Equally large groups of tasks whose edges are the thresholds that a curve is drawn from."""
RESAMPLES: Final = 200


class Interval(Value):
    """A figure with its 95 % bootstrap interval over tasks."""

    value: float
    low: float
    high: float


class Point(Value):
    """What one threshold comes to."""

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
        """APGR: the mean share of the gap between the sides that is recovered, over all shares of far calls. Routing at random gives 0.5."""
        area = sum(
            (right.far_share - left.far_share) * (left.quality + right.quality) / 2
            for left, right in zip(self.points, self.points[1:], strict=False)
        )
        return (area - self.near) / (self.far - self.near)

    def far_share_for(self, gap_share: float) -> float:
        """CPT: the smallest share of far calls at which so much of the gap is recovered, between points linearly."""
        wanted = self.near + gap_share * (self.far - self.near)
        before = self.points[0]
        for point in self.points:
            if point.quality >= wanted:
                rise = point.quality - before.quality
                part = (wanted - before.quality) / rise if rise > 0 else 1.0
                return before.far_share + part * (point.far_share - before.far_share)
            before = point
        return 1.0


def routing_curve(scores: Sequence[float], near: Sequence[float], far: Sequence[float]) -> RoutingCurve:
    """The curve of a router.

    Args:
        scores: what it expects to gain from the far side, per task; the highest go there first.
        near: outcome of the near side, per task, between 0 and 1.
        far: the same of the far side.

    Raises `ValueError` for no task, lengths that differ, or sides that do equally well, between which there is no gap to recover.
    """
    import numpy

    gains, one, other = (numpy.asarray(values, dtype=numpy.float64) for values in (scores, near, far))
    if not len(gains) or not len(gains) == len(one) == len(other):
        raise ValueError("a curve needs a score and two outcomes for each of at least one task")
    if one.mean() == other.mean():
        raise ValueError("both sides do equally well")
    return _curve(gains, one, other)


def with_interval(
    scores: Sequence[float], near: Sequence[float], far: Sequence[float], *, seed: int = 0
) -> tuple[RoutingCurve, Interval]:
    """The curve, and APGR with its interval. Raises what `routing_curve` raises."""
    import numpy

    curve = routing_curve(scores, near, far)
    gains, one, other = (numpy.asarray(values, dtype=numpy.float64) for values in (scores, near, far))
    random = numpy.random.default_rng(seed)
    values = []
    for _ in range(RESAMPLES):
        drawn = random.integers(0, len(gains), len(gains))
        if one[drawn].mean() != other[drawn].mean():
            values.append(_curve(gains[drawn], one[drawn], other[drawn]).recovered)
    low, high = numpy.quantile(values, (0.025, 0.975))
    return curve, Interval(value=curve.recovered, low=float(low), high=float(high))


def _curve(scores: "Floats", near: "Floats", far: "Floats") -> RoutingCurve:
    import numpy

    thresholds = numpy.unique(numpy.quantile(scores, numpy.linspace(0, 1, QUANTILES + 1)))
    points = {(0.0, float(near.mean()))}
    for threshold in thresholds:
        goes_far = scores >= threshold
        points.add((float(goes_far.mean()), float(numpy.where(goes_far, far, near).mean())))
    return RoutingCurve(
        points=tuple(Point(far_share=share, quality=quality) for share, quality in sorted(points)),
        near=float(near.mean()),
        far=float(far.mean()),
    )
