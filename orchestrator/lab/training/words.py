"""The words part of a head, in training: for each agent a logistic regression over hashed n-grams and the surface, in torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ...routing.head import BUCKETS, hashed, surface

if TYPE_CHECKING:
    import torch

    from ...routing.training import Floats, Rows

WEIGHT_DECAY: Final = 1.6
"""Added to the summed loss, times half of the squared weights: the inverse of the usual C of a logistic regression."""
_STEPS: Final = 60


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
        return errors(logits, wanted) + WEIGHT_DECAY / 2 * (table.square().sum() + slopes.square().sum())

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
