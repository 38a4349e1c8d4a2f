"""The parts of a head, in training, in torch.

The words part is, for each agent, a logistic regression over hashed n-grams and the surface of the prompt.

The likeness part says how much better or worse the agents did on prompts like this one than the words make expect: for each agent a
kernel logistic regression, with the log-odds of the words part as its offset. The kernel falls with the angle between two vectors: the
embedding, centred, and with less weight the surface. It is evaluated against some of the training prompts, the landmarks (subset of
regressors: Rasmussen & Williams 2006, section 8.3.1), so that training takes time linear in the number of prompts and a prediction takes
the same time always.

On the same kernel, a ridge regression predicts by how much each agent does better or worse than the mean of all agents: its difference
between two of them is that of a regression of their gain.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Final

from ...routing.head import BUCKETS, hashed, surface
from ...routing.success import length_gain

if TYPE_CHECKING:
    import numpy
    import torch
    from numpy.typing import NDArray

    from ...routing.training import Floats, Rows

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


_WORDS_DECAY: Final = 1.6
"""Added to the summed loss, times half of the squared weights: the inverse of the usual C of a logistic regression."""
_STEPS: Final = 60
LANDMARKS: Final = 2048
REACH: Final = 0.2
"""By how much less than 1 a cosine must be for the kernel to fall to 1/e."""
SURFACE_WEIGHT: Final = 0.4
"""Root mean square of the measures of the surface, in standard deviations, over the length of the embedding."""
MOST_DEVIATIONS: Final = 3.0
"""By which a measure may differ from its mean."""
_LIKENESS_DECAY: Final = 4.0
"""The inverse of the variance, in squared log-odds, that the correction is expected to have."""
NEAREST: Final = 5
"""Landmarks whose mean similarity says whether a prompt is familiar."""
UNFAMILIAR: Final = 0.05
"""Share of the training prompts that count as unlike the others."""
_NEWTON_STEPS: Final = 4
"""Steps of Newton's method; each about squares the error."""
_JITTER: Final = 1e-3
_LEAST_VARIANCE: Final = 0.02
"""Least variance of an outcome: one that is expected with certainty and does not come would else count without bound."""


@dataclass(frozen=True, slots=True)
class WordsPart:
    """The numbers of the words part."""

    rarity: "Floats"
    """(buckets,): what an n-gram counts by how rare it was."""
    words: "Floats"
    """(buckets, agents)."""
    surface: "Floats"
    """(measures, agents)."""
    bias: "Floats"
    """(agents,)."""
    centre: "Floats"
    scale: "Floats"
    """(measures,): what the surface is standardised with."""


@dataclass(frozen=True, slots=True)
class Features:
    """The features of many prompts: n-grams in compressed rows, and the surface."""

    starts: "Rows"
    """(prompts + 1,): where the n-grams of a prompt begin."""
    buckets: "Rows"
    surface: "Floats"
    """(prompts, measures)."""

    @classmethod
    def of(cls, prompts: Sequence[str]) -> "Features":
        """Look at each prompt."""
        import numpy

        rows = [hashed(prompt) for prompt in prompts]
        return cls(
            starts=numpy.cumsum([0, *map(len, rows)]),
            buckets=numpy.concatenate(rows),
            surface=numpy.array([surface(prompt) for prompt in prompts], dtype=numpy.float32),
        )

    def part(self, rows: "Rows") -> "Features":
        """Return the features of some of the prompts."""
        import numpy

        lengths = self.starts[rows + 1] - self.starts[rows]
        places = numpy.concatenate([numpy.arange(self.starts[row], self.starts[row + 1]) for row in rows])
        return Features(numpy.cumsum([0, *lengths]), self.buckets[places], self.surface[rows])


def fit_words(features: Features, outcomes: "Floats") -> WordsPart:
    """Fit the part by L-BFGS. `outcomes` has shape (prompts, agents), NaN where unknown."""
    import numpy
    import torch

    rarity = _rarity(features)
    centre, scale = features.surface.mean(0), features.surface.std(0) + numpy.float32(1e-6)
    agents = outcomes.shape[1]
    # Weights of n-grams that no prompt has stay 0.
    used, places = numpy.unique(features.buckets, return_inverse=True)
    table, slopes, bias = (torch.zeros(shape, requires_grad=True) for shape in ((len(used), agents), (len(centre), agents), (agents,)))
    _, starts, values = _bags(features, rarity)
    bags = torch.from_numpy(places), starts, values
    plain = torch.from_numpy((features.surface - centre) / scale)
    wanted = torch.from_numpy(outcomes)

    def loss() -> "torch.Tensor":
        logits = _logits(bags, table, plain, slopes, bias)
        return errors(logits, wanted) + _WORDS_DECAY / 2 * (table.square().sum() + slopes.square().sum())

    minimise([table, slopes, bias], loss)
    words = numpy.zeros((BUCKETS, agents), dtype=numpy.float32)
    words[used] = table.detach().numpy()
    return WordsPart(rarity, words, slopes.detach().numpy(), bias.detach().numpy(), centre, scale)


def words_logits(part: WordsPart, features: Features) -> "Floats":
    """Return the log-odds of the words part, of shape (prompts, agents)."""
    import torch

    plain = torch.from_numpy((features.surface - part.centre) / part.scale)
    table, slopes, bias = (torch.from_numpy(array) for array in (part.words, part.surface, part.bias))
    found: Floats = _logits(_bags(features, part.rarity), table, plain, slopes, bias).numpy()
    return found


def minimise(parameters: "list[torch.Tensor]", loss: "Callable[[], torch.Tensor]") -> None:
    """Change the parameters so that a convex loss becomes least, by L-BFGS."""
    import torch

    optimizer = torch.optim.LBFGS(parameters, max_iter=_STEPS, history_size=6, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return float(value.detach())

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine, threads that wait for each other take minutes for what one does in seconds
    try:
        optimizer.step(closure)
    finally:
        torch.set_num_threads(threads)


def errors(logits: "torch.Tensor", wanted: "torch.Tensor") -> "torch.Tensor":
    """Return the summed logarithmic loss of all known outcomes."""
    import torch
    from torch.nn import functional

    known = ~torch.isnan(wanted)
    return functional.binary_cross_entropy_with_logits(logits[known], wanted[known], reduction="sum")


def _rarity(features: Features) -> "Floats":
    """Return for each n-gram the smoothed logarithm of the inverse of the share of prompts that have it."""
    import numpy

    counts = numpy.bincount(features.buckets, minlength=BUCKETS)
    weights: Floats = (numpy.log(len(features.starts) / (1 + counts)) + 1).astype(numpy.float32)
    return weights


def _bags(features: Features, rarity: "Floats") -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor]":
    """Return buckets, starts and values of the prompts, each of unit length."""
    import numpy
    import torch

    weighted = rarity[features.buckets]
    owner = numpy.repeat(numpy.arange(len(features.surface)), numpy.diff(features.starts))
    lengths = numpy.sqrt(numpy.maximum(numpy.bincount(owner, weights=weighted**2, minlength=len(features.surface)), 1e-12))
    values = (weighted / lengths[owner]).astype(numpy.float32)
    return torch.from_numpy(features.buckets), torch.from_numpy(features.starts[:-1]), torch.from_numpy(values)


def _logits(
    bags: "tuple[torch.Tensor, torch.Tensor, torch.Tensor]",
    table: "torch.Tensor",
    plain: "torch.Tensor",
    slopes: "torch.Tensor",
    bias: "torch.Tensor",
) -> "torch.Tensor":
    from torch.nn import functional

    buckets, starts, values = bags
    return functional.embedding_bag(buckets, table, starts, mode="sum", per_sample_weights=values) + plain @ slopes + bias


@dataclass(frozen=True, slots=True)
class LikenessPart:
    """The numbers of the likeness part."""

    centre: "Floats"
    """(768,): subtracted from an embedding."""
    surface_centre: "Floats"
    surface_scale: "Floats"
    """(measures,): what the surface is standardised with."""
    landmarks: "Floats"
    """(landmarks, 768 + measures): their vectors, of unit length."""
    embeddings: "Floats"
    """(landmarks, 768): their embeddings. By their cosines, not centred, a prompt is familiar or not: prompts of another kind are all far
    from the centre, and so in about the same direction of it."""
    weights: "Floats"
    """(landmarks, agents)."""
    familiar: float
    """Mean similarity to the nearest landmarks, below which a prompt is unlike all of them."""
    relative: "Floats"
    """(landmarks, agents): weights of the ridge regression."""
    relative_mean: "Floats"
    """(agents,): what it adds."""


@dataclass(frozen=True, slots=True)
class LikenessFit:
    """The fitted likeness part, and what it says of each prompt as if it had not seen that prompt's outcomes. Both have shape
    (prompts, agents)."""

    part: LikenessPart
    unseen: "Floats"
    """Corrections, in log-odds."""
    relative: "Floats"
    """Outcomes less their mean over agents, by the ridge regression."""


def fit_likeness(embeddings: "Floats", surface: "Floats", outcomes: "Floats", offset: "Floats", folds: "Rows", seed: int) -> LikenessFit:
    """Fit the likeness part.

    `embeddings` have shape (prompts, 768), `surface` has shape (prompts, measures). `outcomes` and `offset`, in log-odds, have shape
    (prompts, agents); an outcome is NaN where it is unknown. `folds`, of shape (prompts,), are those of the offset.
    """
    import numpy
    import torch

    centre, surface_centre = embeddings.mean(0), surface.mean(0)
    surface_scale = surface.std(0) + numpy.float32(1e-6)
    deviations = numpy.clip((surface - surface_centre) / surface_scale, -MOST_DEVIATIONS, MOST_DEVIATIONS)
    directions = _unit(numpy.concatenate([_unit(embeddings - centre), surface_weight(surface.shape[1]) * deviations], axis=1))
    chosen = numpy.random.default_rng(seed).permutation(len(embeddings))[:LANDMARKS]
    landmarks = directions[chosen]
    similar, meanings = directions @ landmarks.T, _unit(embeddings)
    factor = torch.linalg.cholesky(_kernel(landmarks @ landmarks.T) + _JITTER * torch.eye(len(chosen), dtype=torch.float64))
    inputs = torch.linalg.solve_triangular(factor, _kernel(similar).T, upper=False).T
    wanted, start = torch.from_numpy(outcomes).double(), torch.from_numpy(offset).double()
    fits = [_fit_agent(inputs, wanted[:, agent], start[:, agent]) for agent in range(outcomes.shape[1])]
    slopes, unseen = (torch.stack([fit[place] for fit in fits], dim=-1) for place in range(2))
    gains = fit_ridge(inputs, relative_outcomes(wanted), torch.from_numpy(folds))
    weights, relative = (torch.linalg.solve_triangular(factor.T, each, upper=True) for each in (slopes, gains.slopes))
    part = LikenessPart(
        *(centre, surface_centre, surface_scale, landmarks, embeddings[chosen]),
        weights=_floats(weights),
        familiar=_familiar(meanings @ meanings[chosen].T, chosen),
        relative=_floats(relative),
        relative_mean=_floats(gains.mean),
    )
    return LikenessFit(part, _floats(unseen), _floats(gains.unseen))


def surface_weight(measures: int) -> "numpy.float32":
    """Return the weight of each of so many measures, for an embedding of unit length."""
    import numpy

    return numpy.float32(SURFACE_WEIGHT / sqrt(measures))


def _unit(vectors: "Floats") -> "Floats":
    """Scale vectors to length 1."""
    import numpy

    scaled: Floats = vectors / numpy.maximum(numpy.linalg.norm(vectors, axis=-1, keepdims=True), 1e-6)
    return scaled


def _kernel(similar: "Floats") -> "torch.Tensor":
    import torch

    return torch.exp((torch.from_numpy(similar).double() - 1) / REACH)


def _fit_agent(inputs: "torch.Tensor", outcomes: "torch.Tensor", offset: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
    """Fit one agent by Newton's method. Return its slopes, and the corrections of all prompts, each as if its outcome had been left out.

    Leaving one out takes no second fit: near the optimum, the logistic regression is a weighted linear one (Rasmussen & Williams 2006,
    sections 3.4 and 5.4.2).
    """
    import torch

    known = ~torch.isnan(outcomes)
    seen, wanted, start = inputs[known], outcomes[known], offset[known]
    slopes = torch.zeros(seen.shape[1], dtype=torch.float64)
    for _ in range(_NEWTON_STEPS):
        expected, _, factor = _curvature(seen, start + seen @ slopes)
        gradient = seen.T @ (wanted - expected) - _LIKENESS_DECAY * slopes
        slopes = slopes + torch.cholesky_solve(gradient[:, None], factor)[:, 0]
    expected, variance, factor = _curvature(seen, start + seen @ slopes)
    leverage = variance * torch.linalg.solve_triangular(factor, seen.T, upper=False).square().sum(0)
    corrections = inputs @ slopes
    corrections[known] -= (wanted - expected) / variance * leverage / (1 - leverage)
    return slopes, corrections


def _curvature(inputs: "torch.Tensor", logits: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor]":
    """Return expected outcomes, their variances, and the Cholesky factor of the second derivatives of the loss."""
    import torch

    expected = torch.sigmoid(logits)
    variance = (expected * (1 - expected)).clamp(min=_LEAST_VARIANCE)
    hessian = inputs.T @ (variance[:, None] * inputs) + _LIKENESS_DECAY * torch.eye(inputs.shape[1], dtype=torch.float64)
    return expected, variance, torch.linalg.cholesky(hessian)


def _familiar(similar: "Floats", chosen: "NDArray[numpy.int64]") -> float:
    import numpy

    others = similar.copy()
    others[chosen, numpy.arange(len(chosen))] = -1.0
    nearest = numpy.sort(others, axis=1)[:, -NEAREST:].mean(1)
    return float(numpy.quantile(nearest, UNFAMILIAR))


def _floats(tensor: "torch.Tensor") -> "Floats":
    floats: Floats = tensor.float().numpy()
    return floats
