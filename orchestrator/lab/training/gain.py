"""The ridge regression of the gain, in torch, and the weights with which it, the parts of a head and prompt length are blended."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ...routing.success import length_gain

if TYPE_CHECKING:
    import torch

    from ...routing.training import Floats

_PENALTIES: Final = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Penalties on the squared slopes that are tried."""
_LEAST_PROMPTS: Final = 20
"""Prompts with an outcome of every agent, below which no gain is learned."""
_MOST_LEVERAGE: Final = 0.999
_PRIOR: Final = (0.01, 0.5)
"""Summed squared difference of two predictors, in outcomes of an agent, below which the data hardly tell them apart; and the share of the
first then."""
HEAD_PRIOR: Final = (1.0, 1.0)
"""The prior for a head against prompt length: on few labels the data cannot tell, and on most sets length is hardly better than chance."""


@dataclass(frozen=True, slots=True)
class Ridge:
    """A fitted ridge regression of relative outcomes."""

    slopes: "torch.Tensor"
    """(inputs, agents)."""
    mean: "torch.Tensor"
    """(agents,)."""
    unseen: "torch.Tensor"
    """(prompts, agents): predictions of each fold by a fit on the others."""


def relative_outcomes(outcomes: "torch.Tensor") -> "torch.Tensor":
    """Return outcomes less their mean over agents, of shape (prompts, agents); NaN for a prompt that lacks one of them."""
    return outcomes - outcomes.mean(1, keepdim=True)


def fit_ridge(inputs: "torch.Tensor", wanted: "torch.Tensor", folds: "torch.Tensor") -> Ridge:
    """Fit a ridge regression with the penalty that predicts left-out prompts best. All agents share it, so that the difference between
    two of them is the ridge regression of their difference.

    Args:
        inputs: of shape (prompts, inputs).
        wanted: of shape (prompts, agents); prompts with NaN are left out. With fewer than 20 others, 0 is predicted throughout.
        folds: of shape (prompts,); those of the other parts of a head, which would lose in a blend with predictions that have seen more.

    For the penalty, leaving one out takes no second fit: the residual is divided by 1 less the leverage (Allen 1974, PRESS).
    """
    import torch

    known = ~torch.isnan(wanted).any(1)
    if known.sum() < _LEAST_PROMPTS:
        nothing = torch.zeros_like(wanted)
        return Ridge(torch.zeros(inputs.shape[1], wanted.shape[1], dtype=inputs.dtype), nothing[0], nothing)
    seen = inputs[known]
    rest = wanted[known] - wanted[known].mean(0)
    values, axes = torch.linalg.eigh(seen.T @ seen)
    rotated = seen @ axes
    pulled = rotated.T @ rest
    best = None
    for penalty in _PENALTIES:
        shrunk = 1 / (values.clamp(min=0) + penalty)
        leverage = (rotated.square() @ shrunk + 1 / len(seen)).clamp(max=_MOST_LEVERAGE)
        residuals = (rest - rotated @ (shrunk[:, None] * pulled)) / (1 - leverage)[:, None]
        error = float(residuals.square().sum())
        if best is None or error < best[0]:
            best = (error, penalty)
    assert best is not None, "there are penalties"
    slopes, mean = _solved(seen, wanted[known], best[1])
    unseen = inputs @ slopes + mean
    for fold in folds.unique():
        others = known & (folds != fold)
        if others.any():
            of_others, mean_of_others = _solved(inputs[others], wanted[others], best[1])
            unseen[folds == fold] = inputs[folds == fold] @ of_others + mean_of_others
    return Ridge(slopes, mean, unseen)


def _solved(inputs: "torch.Tensor", wanted: "torch.Tensor", penalty: float) -> "tuple[torch.Tensor, torch.Tensor]":
    """Return the slopes of a ridge regression, and what it adds."""
    import torch

    mean = wanted.mean(0)
    squares = inputs.T @ inputs + penalty * torch.eye(inputs.shape[1], dtype=inputs.dtype)
    return torch.cholesky_solve(inputs.T @ (wanted - mean), torch.linalg.cholesky(squares)), mean


def share_of(first: "Floats", second: "Floats", wanted: "Floats", prior: tuple[float, float] = _PRIOR) -> float:
    """Return the share of `first` in the blend with `second` that is nearest to what is wanted, by least squares (stacking: Wolpert 1992).

    All have shape (prompts, agents) and were predicted without the prompt's outcomes; NaN where unknown. `prior`: see `_PRIOR`.
    """
    import numpy

    known = ~numpy.isnan(wanted).any(1)
    apart, off = (first - second)[known], (wanted - second)[known]
    doubt, share = prior[0] * apart.shape[1], prior[1]
    return float(numpy.clip(((apart * off).sum() + doubt * share) / ((apart**2).sum() + doubt), 0, 1))


def relative_by_length(prompts: Sequence[str], base: Sequence[float]) -> "Floats":
    """Return what prompt length says of the relative outcomes, of shape (prompts, agents): agents that are better than the middle one gain
    on long prompts, and the others lose."""
    import numpy

    means = numpy.array(base, dtype=numpy.float32)
    gains = numpy.array([length_gain(prompt) for prompt in prompts], dtype=numpy.float32)
    sides = numpy.sign(means - numpy.median(means))
    found: Floats = means - means.mean() + gains[:, None] * (sides - sides.mean()) / 2
    return found
