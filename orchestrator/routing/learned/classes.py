"""The class part of a head: how the agents did on tasks of the same class, in training."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ..auto.classes import lineage

if TYPE_CHECKING:
    from .examples import Floats

PRIOR: Final = 10.0
"""Outcomes that the class above counts for."""
SURE: Final = 0.98
"""The most that a mean may be, and 1 minus the least."""
ALL: Final = ""
"""The class above all."""

ClassLogits = Mapping[str, tuple[float, ...]]
"""Log-odds of each agent, by class."""


def fit_classes(classes: Sequence[str], outcomes: "Floats") -> "tuple[ClassLogits, Floats]":
    """Return the agents' log-odds by class, and for each prompt the log-odds as if its outcomes had not been seen.

    `outcomes` has shape (prompts, agents), NaN where unknown. A class has the mean of its outcomes and of ten more, which are those of
    the
    class above it.
    """
    import numpy

    right, tried = numpy.nan_to_num(outcomes), (~numpy.isnan(outcomes)).astype(numpy.float32)
    sums: defaultdict[str, Floats] = defaultdict(lambda: numpy.zeros((2, outcomes.shape[1]), dtype=numpy.float32))
    for name, row in zip(classes, numpy.stack([right, tried], axis=1), strict=True):
        for level in (ALL, *lineage(name)):
            sums[level] += row
    nothing = numpy.zeros((2, outcomes.shape[1]), dtype=numpy.float32)
    known = {name: tuple(_logits(_mean(sums, name, nothing)).tolist()) for name in sums}
    unseen = [_mean(sums, name, row) for name, row in zip(classes, numpy.stack([right, tried], axis=1), strict=True)]
    return known, _logits(numpy.stack(unseen))


def _mean(sums: "Mapping[str, Floats]", name: str, without: "Floats") -> "Floats":
    """Return the mean outcomes in a class, without those of one prompt."""
    right, tried = sums[ALL] - without
    mean: Floats = (right + 0.5) / (tried + 1)
    for level in lineage(name):
        right, tried = sums[level] - without
        mean = (right + PRIOR * mean) / (tried + PRIOR)
    return mean


def _logits(means: "Floats") -> "Floats":
    import numpy

    clipped = numpy.clip(means, 1 - SURE, SURE)
    logits: Floats = numpy.log(clipped / (1 - clipped)).astype(numpy.float32)
    return logits
