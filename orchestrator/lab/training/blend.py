"""Fit the weights with which the parts of a head are put together."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...routing.head import Blend, HeadPart

if TYPE_CHECKING:
    import torch

    from ...routing.training import Floats


def fit_blend(parts: "Mapping[HeadPart, Floats]", outcomes: "Floats") -> Blend:
    """Fit a blend on what the parts said of prompts that they had not seen, each of shape (prompts, agents); NaN where unknown."""
    import numpy
    import torch

    from .words import errors, minimise

    inputs, wanted = torch.from_numpy(numpy.stack(list(parts.values()), axis=-1)), torch.from_numpy(outcomes)
    logarithms = torch.zeros(len(parts), requires_grad=True)
    bias = torch.zeros(outcomes.shape[1], requires_grad=True)

    def loss() -> "torch.Tensor":
        return errors((inputs * logarithms.exp()).sum(-1) + bias, wanted) + logarithms.square().sum()

    minimise([logarithms, bias], loss)
    slopes = dict(zip(parts, logarithms.detach().exp().tolist(), strict=True))
    weights = {part: slope / slopes[HeadPart.WORDS] for part, slope in slopes.items()}
    return Blend(weights=weights, temperature=1 / slopes[HeadPart.WORDS], bias=tuple(bias.detach().tolist()))
