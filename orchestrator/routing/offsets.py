"""Nested offsets: how far, in log-odds, outcomes lie from what was predicted, for all tasks, for each class and for each class within.

The offset of a class is that of the wider class plus a Gaussian difference, so that the classes form a tree; above the root it is 0. What
outcomes say of a class is kept as a Gaussian over its offset. Beliefs follow exactly by Gaussian belief propagation (Weiss and Freeman
2001, doi:10.1162/089976601750541769), along the path to the class alone.
"""

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Final

from pydantic import Field, FiniteFloat

from ...protocols.messages import Value
from .auto.classes import lineage

Message = tuple[float, float]
"""A Gaussian by its precision and its mean times the precision, so that what is independent adds up."""

_NOTHING: Final = (0.0, 0.0)


class Evidence(Value):
    """Evidence about the offset of a class from its own outcomes, without those of the classes inside it."""

    precision: float = Field(default=0.0, ge=0)
    shift: FiniteFloat = 0.0
    """The mean that they speak for, times the precision."""
    outcomes: int = Field(default=0, ge=0)
    """Faded or not."""

    def faded(self, kept: float) -> "Evidence":
        """Return the evidence with a share of its precision."""
        return Evidence(precision=kept * self.precision, shift=kept * self.shift, outcomes=self.outcomes)


class NestedOffsets:
    """The offsets of one agent, by the name of the class. Not for several threads at a time.

    Args:
        deviation: standard deviation of the difference between a class and the wider one, before any outcome.
        evidence: what is known from the start.
    """

    def __init__(self, deviation: float, evidence: Mapping[str, Evidence]) -> None:
        self.evidence: dict[str, Evidence] = {}
        self._variance = deviation**2
        self._inside: dict[str, Message] = {}
        """Sum of what the classes inside each class tell it."""
        self._outcomes: Counter[str] = Counter()
        for name, known in evidence.items():
            self.put(name, known)

    def of(self, task_class: str) -> Evidence:
        """Return the evidence of a class; empty if the class was never met."""
        return self.evidence.get(task_class, _NO_EVIDENCE)

    def outcomes(self, task_class: str) -> int:
        """Return the number of outcomes of a class and those inside it."""
        return self._outcomes[task_class]

    def belief(self, task_class: str) -> tuple[float, float]:
        """Return mean and variance of the offset of a class; one that was never met inherits from the wider ones."""
        path = _path(task_class)
        if not self.evidence:
            return 0.0, len(path) * self._variance
        told = [*(self._told(name) for name in path[1:]), _NOTHING]
        mean = variance = 0.0
        for name, (counted, shifted) in zip(path, told, strict=True):
            variance += self._variance
            precision, shift = self._known(name)
            # What the class inside has told follows from its own evidence, which the next step brings in.
            precision, shift = precision - counted + 1 / variance, shift - shifted + mean / variance
            mean, variance = shift / precision, 1 / precision
        return mean, variance

    def put(self, task_class: str, evidence: Evidence) -> None:
        """Replace the evidence of a class."""
        path = _path(task_class)
        before = {name: self._told(name) for name in path}
        self._outcomes.update(dict.fromkeys(path, evidence.outcomes - self.of(task_class).outcomes))
        self.evidence[task_class] = evidence
        for wider, name in reversed(list(pairwise(path))):
            (precision, shift), old, new = self._inside.get(wider, _NOTHING), before[name], self._told(name)
            self._inside[wider] = (precision + new[0] - old[0], shift + new[1] - old[1])

    def _known(self, name: str) -> Message:
        """Return the evidence about a class's offset from its outcomes and those of the classes inside it."""
        own = self.of(name)
        precision, shift = self._inside.get(name, _NOTHING)
        return own.precision + precision, own.shift + shift

    def _told(self, name: str) -> Message:
        """Return the message of a class to the wider one: its evidence, weakened by how much the two may differ."""
        precision, shift = self._known(name)
        doubt = 1 + precision * self._variance
        return precision / doubt, shift / doubt


_NO_EVIDENCE: Final = Evidence()


def _path(task_class: str) -> tuple[str, ...]:
    """Return a class and those above it, the widest first; the class of all tasks has the empty name."""
    return ("", *lineage(task_class))
