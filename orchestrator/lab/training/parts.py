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
from .gain import fit_ridge, relative_outcomes

if TYPE_CHECKING:
    import numpy
    import torch
    from numpy.typing import NDArray

    from ...routing.training import Floats, Rows

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
    values: "Floats"
    surface: "Floats"
    """(prompts, measures)."""

    @classmethod
    def of(cls, prompts: Sequence[str]) -> "Features":
        """Look at each prompt."""
        import numpy

        rows = [hashed(prompt) for prompt in prompts]
        return cls(
            starts=numpy.cumsum([0, *(len(buckets) for buckets, _ in rows)]),
            buckets=numpy.array([bucket for buckets, _ in rows for bucket in buckets], dtype=numpy.int64),
            values=numpy.array([value for _, values in rows for value in values], dtype=numpy.float32),
            surface=numpy.array([surface(prompt) for prompt in prompts], dtype=numpy.float32),
        )

    def part(self, rows: "Rows") -> "Features":
        """Return the features of some of the prompts."""
        import numpy

        lengths = self.starts[rows + 1] - self.starts[rows]
        places = numpy.concatenate([numpy.arange(self.starts[row], self.starts[row + 1]) for row in rows])
        return Features(numpy.cumsum([0, *lengths]), self.buckets[places], self.values[places], self.surface[rows])


def fit_words(features: Features, outcomes: "Floats") -> WordsPart:
    """Fit the part by L-BFGS. `outcomes` has shape (prompts, agents), NaN where unknown."""
    import numpy
    import torch

    rarity = _rarity(features)
    centre, scale = features.surface.mean(0), features.surface.std(0) + numpy.float32(1e-6)
    agents = outcomes.shape[1]
    table, slopes, bias = (torch.zeros(shape, requires_grad=True) for shape in ((BUCKETS, agents), (len(centre), agents), (agents,)))
    bags = _bags(features, rarity)
    plain = torch.from_numpy((features.surface - centre) / scale)
    wanted = torch.from_numpy(outcomes)

    def loss() -> "torch.Tensor":
        logits = _logits(bags, table, plain, slopes, bias)
        return errors(logits, wanted) + _WORDS_DECAY / 2 * (table.square().sum() + slopes.square().sum())

    minimise([table, slopes, bias], loss)
    words, of_surface, constant = (tensor.detach().numpy() for tensor in (table, slopes, bias))
    return WordsPart(rarity, words, of_surface, constant, centre, scale)


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

    weighted = features.values * rarity[features.buckets]
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
    meanings: "Floats"
    """(landmarks, 768): their embeddings, of unit length and not centred. Prompts of another kind are all far from the centre, and so in
    about the same direction of it."""
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
        *(centre, surface_centre, surface_scale, landmarks, meanings[chosen]),
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
