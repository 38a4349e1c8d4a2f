"""Statistics of recorded runs: bootstrap intervals, paired comparisons, the Pareto front. Needs numpy.

Intervals are 95 % percentile bootstraps (Efron 1979) over tasks: a task's runs under several seeds stay together and are resampled
inside it, so that repeating a task does not pass for having more tasks. Where all runs agree the interval is a point.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ....protocols.messages import Value

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]

RESAMPLES: Final = 2000
_SEED: Final = 20_260_530
_CHUNK: Final = 100
"""Resamples made at once, which bounds the memory."""

Unit = Mapping[str, Sequence[float]]
"""Values by task: one for each run of it."""


class Estimate(Value):
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def mean(values: Unit) -> Estimate:
    """Return the mean over tasks. Raises `ValueError` without a value."""
    means = _resampled([values])
    return _estimate(_mean(values), means[:, 0])


def difference(first: Unit, second: Unit) -> Estimate:
    """Return the mean of `first` less the mean of `second`. Both have the same tasks and seeds, and each resample takes the same of
    both."""
    means = _resampled([first, second])
    return _estimate(_mean(first) - _mean(second), means[:, 0] - means[:, 1])


def ratio(first: Unit, second: Unit) -> Estimate | None:
    """Return the mean of `first` over the mean of `second`, paired as in `difference`; None where the second may be 0."""
    means = _resampled([first, second])
    if not means[:, 1].all() or _mean(second) == 0:
        return None
    return _estimate(_mean(first) / _mean(second), means[:, 0] / means[:, 1])


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


def median(values: Iterable[float]) -> float:
    """Return the middle value, or the mean of the two in the middle."""
    import statistics

    return statistics.median(values)


def _mean(values: Unit) -> float:
    return sum(sum(runs) / len(runs) for runs in values.values()) / len(values)


def _estimate(value: float, resampled: "Floats") -> Estimate:
    import numpy

    low, high = numpy.percentile(resampled, [2.5, 97.5])
    return Estimate(value=value, low=float(low), high=float(high))


def _resampled(measures: Sequence[Unit]) -> "Floats":
    """Return resampled means, one column per measure; all measures have the same tasks with as many runs."""
    import numpy

    table, counts = _table(measures)
    random = numpy.random.default_rng(_SEED)
    parts = [_resample(table, counts, random, _CHUNK) for _ in range(RESAMPLES // _CHUNK)]
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
