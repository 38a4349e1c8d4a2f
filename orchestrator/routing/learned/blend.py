"""How the parts of a head are put together: a weighted sum of their log-odds, calibrated by a temperature and a bias for each agent."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import exp
from typing import TYPE_CHECKING

from pydantic import Field

from ....protocols.messages import Value

if TYPE_CHECKING:
    import torch

    from .examples import Floats


class Part(StrEnum):
    """What a head looks at."""

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
    """Of each part; that of the words is 1."""
    temperature: float = Field(gt=0)
    """What the weighted log-odds are divided by; more than 1 where the parts are too sure of themselves."""
    bias: tuple[float, ...] = Field(min_length=1)
    """Added for each agent, in log-odds."""

    def raw(self, logits: Mapping[Part, Sequence[float]]) -> list[float]:
        """Each agent's weighted log-odds, before they are calibrated."""
        sums = [0.0] * len(self.bias)
        for part, weight in self.weights.items():
            for place, logit in enumerate(logits[part]):
                sums[place] += weight * logit
        return sums

    def calibrated(self, raw: Sequence[float]) -> list[float]:
        """The agents' probabilities."""
        return [sigmoid(logit / self.temperature + bias) for logit, bias in zip(raw, self.bias, strict=True)]


def sigmoid(logit: float) -> float:
    """The probability of log-odds."""
    return 1 / (1 + exp(-min(max(logit, -30.0), 30.0)))


def fit_blend(parts: "Mapping[Part, Floats]", outcomes: "Floats") -> Blend:
    """Fit a blend on what the parts said of prompts that they had not seen, each of shape (prompts, agents); NaN where unknown."""
    import numpy
    import torch

    from ...lab.training.words import errors, minimise

    inputs, wanted = torch.from_numpy(numpy.stack(list(parts.values()), axis=-1)), torch.from_numpy(outcomes)
    logarithms = torch.zeros(len(parts), requires_grad=True)
    bias = torch.zeros(outcomes.shape[1], requires_grad=True)

    def loss() -> "torch.Tensor":
        return errors((inputs * logarithms.exp()).sum(-1) + bias, wanted) + logarithms.square().sum()

    minimise([logarithms, bias], loss)
    slopes = dict(zip(parts, logarithms.detach().exp().tolist(), strict=True))
    weights = {part: slope / slopes[Part.WORDS] for part, slope in slopes.items()}
    return Blend(weights=weights, temperature=1 / slopes[Part.WORDS], bias=tuple(bias.detach().tolist()))
