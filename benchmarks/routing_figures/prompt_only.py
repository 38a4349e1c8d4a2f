"""Routing by the prompt alone, with the learned head, in distribution: Mixtral-8x7B to GPT-4 on the 14,042 questions of MMLU.

Five-fold cross-validation, where the same prompt is always in the same fold. Every test prompt is predicted by a head that was trained on
the other folds, written to disk and loaded. The same method and constants serve all sizes of training data; inside a fold the weights of
the head's parts and their calibration come from its training prompts alone.

Chosen by looking at MMLU, on fifths and thousands of these same prompts: that embeddings come from the second and the fourth layer of
MiniLM (`MiniLmEmbedder.early`) and from 64 tokens, all constants of the likeness part, and the weight decay of the words part. The last
thirty variants that were tried lie between 0.695 and 0.702 of APGR, so that of the best a little is luck.

``python benchmarks/routing.py --data ../shared/data/routing --only prompt_only`` prints these figures alone.
"""

from dataclasses import replace
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Final

import numpy

from nearfar.orchestrator.lab.statistics import IntervalEstimate, curve_figures, routing_curve
from nearfar.orchestrator.lab.training import train_head
from nearfar.orchestrator.lab.training.report import Remembered, load_head, predictions
from nearfar.orchestrator.routing.training import Examples, examples_of, folds_of
from nearfar.orchestrator.util.embedding import MiniLmEmbedder

from . import data

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]
    Rows = NDArray[numpy.int64]

NEAR: Final = "mistralai/Mixtral-8x7B-Instruct-v0.1"
FAR: Final = "gpt-4-1106-preview"
FOLDS: Final = 5
FEW: Final = 1000
"""Labels of the figure for little data."""
DRAWS: Final = 10
"""Of these labels."""
T_QUANTILE: Final = 2.262
"""97.5 % of Student's distribution with nine degrees of freedom."""
QUICK: Final = 400
"""Prompts that a quick run draws; it tests a single fold of them, and none with few labels."""


def figures(folder: Path, *, quick: bool) -> dict[str, Any]:
    """All figures by name; shares of far calls in percent."""
    examples = mmlu(folder, most=QUICK if quick else None)
    folds = folds_of(examples.prompts, FOLDS, seed=0)
    tested = range(1) if quick else range(FOLDS)
    rows = numpy.flatnonzero(numpy.isin(folds, tested))
    gains, gains_by_class = cross_validated(examples, folds, tested)
    found = _summed_up("mmlu", examples, rows, gains) | _summed_up("mmlu_with_class", examples, rows, gains_by_class)
    found |= _references(examples, rows, found["mmlu_apgr"])
    return found if quick else found | _few("mmlu_apgr_1000_labels", [with_few_labels(examples, draw) for draw in range(DRAWS)])


def mmlu(folder: Path, *, most: int | None) -> Examples:
    """MMLU with its embeddings and, as the classes, its subjects; where `most` is given, as many of its prompts at random."""
    traces = data.mmlu(folder)
    if most is not None:
        traces = [traces[place] for place in numpy.random.default_rng(0).permutation(len(traces))[:most]]
    examples = examples_of(traces, (NEAR, FAR))
    return replace(examples, embeddings=MiniLmEmbedder().early_all(examples.prompts))


def cross_validated(examples: Examples, folds: "Rows", tested: range) -> "tuple[Floats, Floats]":
    """What each prompt of the tested folds is expected to gain from the far side, in order, without and with its class."""
    pairs = [(numpy.flatnonzero(folds != fold), numpy.flatnonzero(folds == fold)) for fold in tested]
    order = numpy.argsort(numpy.concatenate([asked for _, asked in pairs]))
    both = [expected_gains(examples.part(known), examples.part(asked)) for known, asked in pairs]
    without, given = (numpy.concatenate(column)[order] for column in zip(*both, strict=True))
    return without, given


def expected_gains(known: Examples, asked: Examples) -> "tuple[Floats, Floats]":
    """By a head that was trained on the known prompts, without and with the class: P(far right) - P(near right)."""
    assert asked.embeddings is not None, "MMLU is embedded as a whole"
    with load_head(train_head(known), Remembered(asked.prompts, asked.embeddings)) as head:
        without, given = (predictions(head, examples)[1] for examples in (replace(asked, classes=()), asked))
    return _gain(without), _gain(given)


def with_few_labels(examples: Examples, draw: int) -> dict[str, float]:
    """APGR on all others of a head that was trained on 1,000 random prompts, without and with the class."""
    shuffled = numpy.random.default_rng(1000 + draw).permutation(len(examples.prompts))
    asked = examples.part(shuffled[FEW:])
    without, given = expected_gains(examples.part(shuffled[:FEW]), asked)
    return {"": _apgr(without, asked), "_with_class": _apgr(given, asked)}


def _gain(probabilities: "NDArray[numpy.float32]") -> "Floats":
    gain: Floats = (probabilities[:, 1] - probabilities[:, 0]).astype(numpy.float64)
    return gain


def _apgr(gains: "Floats", examples: Examples) -> float:
    near, far = examples.outcomes.astype(numpy.float64).T
    return routing_curve(gains, near, far).recovered


def _summed_up(name: str, examples: Examples, rows: "Rows", gains: "Floats") -> dict[str, Any]:
    """APGR and both CPTs with their intervals over prompts."""
    near, far = examples.outcomes[rows].astype(numpy.float64).T
    curve = curve_figures(gains, near, far)
    return (
        _with_interval(name.replace("mmlu", "mmlu_apgr"), curve.recovered, 1, 4)
        | _with_interval(name.replace("mmlu", "mmlu_cpt50"), curve.far_share_for_half, 100, 1)
        | _with_interval(name.replace("mmlu", "mmlu_cpt80"), curve.far_share_for_most, 100, 1)
    )


def _with_interval(name: str, figure: IntervalEstimate, scale: int, digits: int) -> dict[str, Any]:
    value, low, high = (round(scale * bound, digits) for bound in (figure.value, figure.low, figure.high))
    return {name: value, f"{name}_interval": [low, high]}


def _references(examples: Examples, rows: "Rows", apgr: float) -> dict[str, float]:
    """The oracle, how much of its lead over random routing is reached, and what prompt length and a random order come to."""
    asked = examples.part(rows)
    near, far = asked.outcomes.astype(numpy.float64).T
    oracle = _apgr(far - near, asked)
    lengths = numpy.array([len(prompt) for prompt in asked.prompts], dtype=numpy.float64)
    random = fmean(_apgr(numpy.random.default_rng(seed).random(len(rows)), asked) for seed in range(20))
    return {
        "mmlu_apgr_oracle": round(oracle, 4),
        "mmlu_share_of_oracle": round((apgr - 0.5) / (oracle - 0.5), 4),
        "mmlu_apgr_length": round(_apgr(lengths, asked), 4),
        "mmlu_apgr_random": round(random, 4),
    }


def _few(name: str, draws: list[dict[str, float]]) -> dict[str, Any]:
    """The mean over the draws and, where there are some, its 95 % interval by Student's distribution."""
    found: dict[str, Any] = {}
    for suffix in draws[0]:
        values = [draw[suffix] for draw in draws]
        found[name + suffix] = round(fmean(values), 4)
        if len(values) == DRAWS:
            reach = T_QUANTILE * stdev(values) / sqrt(DRAWS)
            found[f"{name}{suffix}_interval"] = [round(fmean(values) - reach, 4), round(fmean(values) + reach, 4)]
    return found
