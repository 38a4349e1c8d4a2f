"""How the parts of a head are put together: a weighted sum of their log-odds, calibrated by a temperature and a bias for each agent."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import exp
from typing import TYPE_CHECKING

from pydantic import Field

from ....protocols.messages import Value

if TYPE_CHECKING:
    pass


class Part(StrEnum):
    """A part of a head, by the input that it looks at."""

    WORDS = "words"
    """N-grams and the surface of a prompt. Always there."""
    LIKENESS = "likeness"
    """How the agents did on prompts like this one."""
    CLASS = "class"
    """How they did on tasks of the same class."""


class Blend(Value):
    """The weights of some of the parts, and their calibration (temperature scaling: Guo et al., arXiv 1706.04599).

    All agents share the weights and the temperature: with their own, the difference between two agents would be that of their calibrations.
    """

    weights: Mapping[Part, float] = Field(min_length=1)
    """Weight of each part; that of the words is 1."""
    temperature: float = Field(gt=0)
    """Divisor of the weighted log-odds; more than 1 where the parts are overconfident."""
    bias: tuple[float, ...] = Field(min_length=1)
    """Added for each agent, in log-odds."""

    def raw(self, logits: Mapping[Part, Sequence[float]]) -> list[float]:
        """Return each agent's weighted log-odds, before calibration."""
        sums = [0.0] * len(self.bias)
        for part, weight in self.weights.items():
            for place, logit in enumerate(logits[part]):
                sums[place] += weight * logit
        return sums

    def calibrated(self, raw: Sequence[float]) -> list[float]:
        """Return the agents' calibrated probabilities."""
        return [sigmoid(logit / self.temperature + bias) for logit, bias in zip(raw, self.bias, strict=True)]


def sigmoid(logit: float) -> float:
    """Convert log-odds to a probability."""
    return 1 / (1 + exp(-min(max(logit, -30.0), 30.0)))
