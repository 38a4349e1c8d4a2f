"""Training a head of the router on recorded outcomes, with torch, and writing it as ONNX."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ....protocols import ConfigError
from .features import BUCKETS, hashed, surface
from .head import CARD, MEANING, WORDS, HeadCard

if TYPE_CHECKING:
    import numpy
    import torch
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float32]

WEIGHT_DECAY: Final = 1.6
"""Of the words part, over the number of prompts: the inverse of the usual C of a logistic regression."""
TEMPERATURE: Final = 0.1
"""Of the softmax over the similarities of the nearest prompts."""
FOLDS: Final = 3
"""Of the training data, in which each part predicts what it has not seen, so that both can be weighed and calibrated."""
PRIOR: Final = 0.02
"""Share of a neighbourhood that the mean outcome counts for."""
UNFAMILIAR: Final = 0.02
"""Share of training prompts that count as unlike the others."""
MOST_NEIGHBOURS: Final = 16_384
"""Prompts that the meaning part remembers."""
_STEPS: Final = 60
_LEAST_PROMPTS: Final = 20


@dataclass(frozen=True, slots=True)
class Examples:
    """Prompts and what each agent came to on them.

    `outcomes` has shape (prompts, agents), from 0 (wrong) to 1 (right); NaN where an agent was not tried. `embeddings` has shape
    (prompts, 384), or is None.
    """

    prompts: Sequence[str]
    agents: Sequence[str]
    outcomes: "Floats"
    embeddings: "Floats | None" = None

    def part(self, rows: "NDArray[numpy.int64]") -> "Examples":
        """Some of them."""
        embeddings = None if self.embeddings is None else self.embeddings[rows]
        return Examples([self.prompts[row] for row in rows], self.agents, self.outcomes[rows], embeddings)


@dataclass(frozen=True, slots=True)
class Parts:
    """The numbers of a head."""

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
    blend: "Floats"
    """(3, agents): weight of the words, weight of the meaning, bias."""
    alone: "Floats"
    """(2, agents): weight of the words where there is no meaning, bias."""
    familiar: float


def train_head(examples: Examples, *, seed: int = 0) -> Parts:
    """Fit both parts, and what each counts for.

    Raises `ConfigError` for fewer than 20 prompts, or an agent whose outcomes are all missing or all the same.
    """
    import numpy

    _check(examples)
    folds = numpy.random.default_rng(seed).permutation(len(examples.prompts)) % FOLDS
    matrix = _Matrix.of(examples.prompts)
    words, meaning, similarity = (numpy.zeros(shape, dtype=numpy.float32) for shape in (*(2 * [examples.outcomes.shape]), len(folds)))
    for fold in range(FOLDS):
        known, unknown = numpy.flatnonzero(folds != fold), numpy.flatnonzero(folds == fold)
        fitted = _fit_words(matrix, known, examples.outcomes)
        words[unknown] = _word_logits(matrix, unknown, *fitted)
        if examples.embeddings is not None:
            found, near = neighbourhood(examples.embeddings[unknown], examples.part(known))
            meaning[unknown], similarity[unknown] = found, near
    blend, alone = _weighed(words, meaning, examples.outcomes, has_meaning=examples.embeddings is not None)
    rarity, table, slopes, bias = _fit_words(matrix, numpy.arange(len(folds)), examples.outcomes)
    familiar = float(numpy.quantile(similarity, UNFAMILIAR)) if examples.embeddings is not None else 0.0
    return Parts(rarity, table, slopes, bias, matrix.centre, matrix.scale, blend, alone, familiar)


def neighbours_of(prompts: int) -> int:
    """How many of the nearest prompts are asked."""
    return max(5, min(prompts, round(1.3 * sqrt(prompts))))


def neighbourhood(embeddings: "Floats", known: Examples) -> "tuple[Floats, Floats]":
    """For each row: the agents' mean outcomes on the nearest known prompts, as logits, and how near those are."""
    import numpy

    assert known.embeddings is not None, "asked for only where there are embeddings"
    count = neighbours_of(len(known.prompts))
    logits, nearness = [], []
    tried, right = ~numpy.isnan(known.outcomes), numpy.nan_to_num(known.outcomes)
    mean = right.sum(0) / numpy.maximum(tried.sum(0), 1)
    for start in range(0, len(embeddings), 1024):
        similar = embeddings[start : start + 1024] @ known.embeddings.T
        nearest = numpy.argpartition(-similar, count - 1, axis=1)[:, :count]
        values = numpy.take_along_axis(similar, nearest, axis=1)
        weights = numpy.exp((values - values.max(1, keepdims=True)) / TEMPERATURE)
        weights /= weights.sum(1, keepdims=True)
        sums = numpy.einsum("rk,rka->ra", weights, right[nearest])
        counts = numpy.einsum("rk,rka->ra", weights, tried[nearest].astype(numpy.float32))
        chances = (sums + PRIOR * mean) / (counts + PRIOR)
        logits.append(numpy.log(numpy.clip(chances, 1e-4, 1 - 1e-4) / (1 - numpy.clip(chances, 1e-4, 1 - 1e-4))))
        nearness.append(numpy.sort(values, axis=1)[:, -5:].mean(1))
    return numpy.concatenate(logits).astype(numpy.float32), numpy.concatenate(nearness).astype(numpy.float32)


def _check(examples: Examples) -> None:
    import numpy

    if len(examples.prompts) < _LEAST_PROMPTS:
        raise ConfigError(f"{len(examples.prompts)} prompts are too few to train a head on", hint=f"at least {_LEAST_PROMPTS}, better 1,000")
    for place, agent in enumerate(examples.agents):
        known = examples.outcomes[:, place][~numpy.isnan(examples.outcomes[:, place])]
        if len(numpy.unique(known)) < 2:
            raise ConfigError(f"the outcomes of {agent!r} are missing or all the same", hint="a head learns from successes and failures")


@dataclass(frozen=True, slots=True)
class _Matrix:
    """The features of all prompts: n-grams in compressed rows, and the standardised surface."""

    starts: "NDArray[numpy.int64]"
    buckets: "NDArray[numpy.int64]"
    values: "Floats"
    surface: "Floats"
    centre: "Floats"
    scale: "Floats"

    @classmethod
    def of(cls, prompts: Sequence[str]) -> "_Matrix":
        import numpy

        rows = [hashed(prompt) for prompt in prompts]
        starts = numpy.cumsum([0, *(len(buckets) for buckets, _ in rows)])
        raw = numpy.array([surface(prompt) for prompt in prompts], dtype=numpy.float32)
        centre, scale = raw.mean(0), raw.std(0) + 1e-6
        return cls(
            starts=starts,
            buckets=numpy.array([bucket for buckets, _ in rows for bucket in buckets], dtype=numpy.int64),
            values=numpy.array([value for _, values in rows for value in values], dtype=numpy.float32),
            surface=(raw - centre) / scale,
            centre=centre,
            scale=scale,
        )

    def rows(self, chosen: "NDArray[numpy.int64]") -> "tuple[NDArray[numpy.int64], NDArray[numpy.int64], Floats]":
        """Starts, buckets and values of some rows."""
        import numpy

        lengths = self.starts[chosen + 1] - self.starts[chosen]
        places = numpy.concatenate([numpy.arange(self.starts[row], self.starts[row + 1]) for row in chosen])
        return numpy.cumsum([0, *lengths[:-1]]), self.buckets[places], self.values[places]

    def rarity(self, chosen: "NDArray[numpy.int64]") -> "Floats":
        """Of each n-gram among some rows: the smoothed logarithm of the inverse of its frequency."""
        import numpy

        counts = numpy.bincount(self.rows(chosen)[1], minlength=BUCKETS)
        weights: Floats = (numpy.log((1 + len(chosen)) / (1 + counts)) + 1).astype(numpy.float32)
        return weights


def _scaled(matrix: _Matrix, chosen: "NDArray[numpy.int64]", rarity: "Floats") -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor]":
    """Buckets, starts and values of some rows, each row of unit length."""
    import numpy
    import torch

    starts, buckets, values = matrix.rows(chosen)
    weighted = values * rarity[buckets]
    lengths = numpy.sqrt(numpy.maximum(numpy.add.reduceat(weighted**2, starts), 1e-12)) if len(weighted) else numpy.ones(len(starts))
    counts = numpy.diff([*starts, len(weighted)])
    return torch.from_numpy(buckets), torch.from_numpy(starts), torch.from_numpy(weighted / numpy.repeat(lengths, counts)).float()


def _fit_words(
    matrix: _Matrix, chosen: "NDArray[numpy.int64]", outcomes: "Floats"
) -> "tuple[Floats, Floats, Floats, Floats]":
    """Rarity, table, slopes and bias of the words part: logistic regressions, one for each agent, by L-BFGS."""
    import torch
    from torch.nn import functional

    rarity = matrix.rarity(chosen)
    buckets, starts, values = _scaled(matrix, chosen, rarity)
    plain = torch.from_numpy(matrix.surface[chosen])
    wanted = torch.from_numpy(outcomes[chosen])
    known = ~torch.isnan(wanted)
    agents = wanted.shape[1]
    table = torch.zeros(BUCKETS, agents, requires_grad=True)
    slopes = torch.zeros(plain.shape[1], agents, requires_grad=True)
    bias = torch.zeros(agents, requires_grad=True)
    optimizer = torch.optim.LBFGS([table, slopes, bias], max_iter=_STEPS, history_size=6, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        logits = functional.embedding_bag(buckets, table, starts, mode="sum", per_sample_weights=values) + plain @ slopes + bias
        errors = functional.binary_cross_entropy_with_logits(logits, torch.nan_to_num(wanted), reduction="none")[known].sum()
        total = errors + WEIGHT_DECAY / 2 * (table.square().sum() + slopes.square().sum())
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    found = [tensor.detach().numpy() for tensor in (table, slopes, bias)]
    return rarity, found[0], found[1], found[2]


def _word_logits(
    matrix: _Matrix, chosen: "NDArray[numpy.int64]", rarity: "Floats", table: "Floats", slopes: "Floats", bias: "Floats"
) -> "Floats":
    import torch
    from torch.nn import functional

    buckets, starts, values = _scaled(matrix, chosen, rarity)
    logits = functional.embedding_bag(buckets, torch.from_numpy(table), starts, mode="sum", per_sample_weights=values)
    found: Floats = logits.numpy() + matrix.surface[chosen] @ slopes + bias
    return found


def _weighed(words: "Floats", meaning: "Floats", outcomes: "Floats", *, has_meaning: bool) -> "tuple[Floats, Floats]":
    """What both parts count for, and the words alone: logistic regressions on predictions of what was not seen, which calibrates them.

    All agents share the slopes: with slopes of their own, the difference between two agents would be that of their calibrations.
    """
    import numpy

    agents = outcomes.shape[1]
    known = ~numpy.isnan(outcomes)
    who = numpy.broadcast_to(numpy.arange(agents), outcomes.shape)[known]
    slopes, bias = _logistic([words[known]], outcomes[known], who, agents)
    alone = numpy.stack([numpy.full(agents, slopes[0]), bias])
    if has_meaning:
        slopes, bias = _logistic([words[known], meaning[known]], outcomes[known], who, agents)
    else:
        slopes = [*slopes, 0.0]
    return numpy.stack([*(numpy.full(agents, slope) for slope in slopes), bias]).astype(numpy.float32), alone.astype(numpy.float32)


def _logistic(
    columns: "Sequence[Floats]", wanted: "Floats", who: "NDArray[numpy.int64]", agents: int
) -> "tuple[list[float], Floats]":
    """Slopes and, for each agent, the bias of a logistic regression on few columns."""
    import numpy
    import torch
    from torch.nn import functional

    inputs, target = torch.from_numpy(numpy.stack(columns, axis=1)), torch.from_numpy(wanted)
    row = torch.from_numpy(who)
    slopes = torch.full((len(columns),), 0.5, requires_grad=True)
    bias = torch.zeros(agents, requires_grad=True)
    optimizer = torch.optim.LBFGS([slopes, bias], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        total = functional.binary_cross_entropy_with_logits(inputs @ slopes + bias[row], target, reduction="sum")
        total = total + (slopes - 0.5).square().sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return [float(slope) for slope in slopes.detach()], bias.detach().numpy()
