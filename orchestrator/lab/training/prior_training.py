"""Fitting the prior to several kinds of prompts at once, so that it holds what they have in common."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ....protocols import ConfigError
from ...routing.learned.features import MEASURES, measures
from ...routing.learned.prior import MOST_DEVIATIONS, PriorNumbers
from ...routing.traces import Trace, agents_of

if TYPE_CHECKING:
    from ..statistics import Floats


LEAST_GAP: Final = 0.1
"""Between the mean outcomes of two agents, from which one counts as the near side and the other as the far side."""
RIDGE: Final = 0.2
"""Added to the variance of each measure, which is 1: the larger, the smaller the weights."""
UNFAMILIAR: Final = 0.02
"""Share of the prompts that count as unlike the others."""
LEAST_SCALE: Final = 0.05
"""A measure that hardly varies in training would be magnified without bounds."""
LEAST_LENGTH: Final = 0.01
"""Least weight of the length: without any bearing on the gain in training, longer prompts still go first."""


def fit_prior(kinds: Sequence[Sequence[Trace]]) -> PriorNumbers:
    """Fit a prior by ridge regression.

    Args:
        kinds: traces of each kind of prompts. All kinds count the same, and only how gains differ within each.

    Raises `ConfigError` for no kind, or one without two agents whose mean outcomes differ by 10 points.
    """
    import numpy

    if not kinds:
        raise ConfigError("a prior is fitted to at least one kind of traces", hint="several kinds make it hold for others")
    raw = [numpy.array([measures(trace.prompt) for trace in kind]) for kind in kinds]
    gains = [_gains(kind) for kind in kinds]
    shares = numpy.concatenate([numpy.full(len(kind), 1 / len(kind) / len(kinds)) for kind in kinds])
    every = numpy.concatenate(raw)
    centre = shares @ every
    scale = numpy.maximum(numpy.sqrt(shares @ (every - centre) ** 2), LEAST_SCALE)
    standardised = (every - centre) / scale
    bounded = numpy.clip(standardised, -MOST_DEVIATIONS, MOST_DEVIATIONS)
    weighted = bounded * shares[:, None]
    weights = numpy.linalg.solve(weighted.T @ bounded + RIDGE * numpy.eye(len(MEASURES)), weighted.T @ numpy.concatenate(gains))
    slopes = [_slope((values[:, 0] - centre[0]) / scale[0], gain) for values, gain in zip(raw, gains, strict=True)]
    return PriorNumbers(
        centre=_round(centre),
        scale=_round(scale),
        weights=_round(weights),
        length=max(round(float(numpy.mean(slopes)), 6), LEAST_LENGTH),
        farthest=round(_quantile(numpy.abs(standardised).max(1), shares, 1 - UNFAMILIAR), 6),
    )


def _gains(traces: Sequence[Trace]) -> "Floats":
    """Return the far side's gain on each task, less the mean gain: the mean over all pairs of agents that differ enough."""
    import numpy

    agents = agents_of(traces)
    scores = [[trace.outcomes[agent].score if agent in trace.outcomes else None for agent in agents] for trace in traces]
    outcomes = numpy.array(scores, dtype=numpy.float64)
    known = ~numpy.isnan(outcomes)
    means = numpy.nan_to_num(outcomes).sum(0) / numpy.maximum(known.sum(0), 1)
    pairs = [(near, far) for near in range(len(agents)) for far in range(len(agents)) if means[far] - means[near] >= LEAST_GAP]
    if not pairs:
        raise ConfigError("no two agents of the traces differ by 10 points", hint="a prior learns where a better agent gains")
    # Where one side of a pair was not tried, the pair says nothing: its gain is the mean one.
    differences = [numpy.nan_to_num(outcomes[:, far] - outcomes[:, near] - (means[far] - means[near])) for near, far in pairs]
    gains = numpy.mean(differences, axis=0)
    centred: Floats = gains - gains.mean()
    return centred


def _slope(values: "Floats", gains: "Floats") -> float:
    """Return the slope of a line through gains, which have mean 0."""
    centred = values - values.mean()
    return float(centred @ gains / max(centred @ centred, 1e-9))


def _quantile(values: "Floats", shares: "Floats", wanted: float) -> float:
    """Return the smallest value that at least a share of all are not above."""
    import numpy

    order = numpy.argsort(values)
    place = int(numpy.searchsorted(numpy.cumsum(shares[order]), wanted))
    return float(values[order][min(place, len(order) - 1)])


def _round(values: "Floats") -> tuple[float, ...]:
    return tuple(round(float(value), 6) for value in values)
