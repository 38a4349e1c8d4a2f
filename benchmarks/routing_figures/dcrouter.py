"""Routing by the prompt alone among nine agents, in distribution: the 5,608 prompts of three kinds that LLMRouter recorded.

Five-fold cross-validation with one head for all agents. The figure is the mean over the pairs whose accuracies differ by 10 points or more.
"""

from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy

from nearfar.orchestrator.lab.statistics import routing_curve
from nearfar.orchestrator.lab.training import train_head
from nearfar.orchestrator.lab.training.report import Remembered, load_head, predictions
from nearfar.orchestrator.routing.traces import agents_of
from nearfar.orchestrator.routing.training import Examples, examples_of, folds_of
from nearfar.orchestrator.util.embedding import MiniLmEmbedder

from . import data

FOLDS: Final = 5
QUICK: Final = 150
"""Prompts that a quick run draws; it tests a single fold of them."""


def figures(folder: Path, *, quick: bool) -> dict[str, Any]:
    """The mean over pairs of agents, and the least and the greatest of them."""
    traces = data.dcrouter(folder)
    if quick:
        traces = [traces[place] for place in numpy.random.default_rng(0).permutation(len(traces))[:QUICK]]
    examples = examples_of(traces, agents_of(traces))
    examples = replace(examples, classes=(), embeddings=MiniLmEmbedder().early_all(examples.prompts))
    folds = folds_of(examples.prompts, FOLDS, seed=0)
    tested = range(1) if quick else range(FOLDS)
    found = [_recovered(examples, numpy.flatnonzero(folds != fold), numpy.flatnonzero(folds == fold)) for fold in tested]
    pairs = {pair: fmean(fold[pair] for fold in found) for pair in found[0]}
    values = list(pairs.values())
    return {
        "dcrouter_apgr": round(fmean(values), 4),
        "dcrouter_apgr_range": [round(min(values), 4), round(max(values), 4)],
        "dcrouter_pairs": len(pairs),
    }


def _recovered(examples: Examples, known: "numpy.ndarray[Any, Any]", asked: "numpy.ndarray[Any, Any]") -> dict[tuple[str, str], float]:
    """APGR of each pair of agents that differ enough over all prompts, on those of one fold."""
    tested = examples.part(asked)
    assert tested.embeddings is not None, "they are embedded as a whole"
    with load_head(train_head(examples.part(known)), Remembered(tested.prompts, tested.embeddings)) as head:
        chances = predictions(head, tested)[1].astype(numpy.float64)
    outcomes, quality = tested.outcomes.astype(numpy.float64), examples.outcomes.mean(0)
    agents = range(len(examples.agents))
    pairs = [(near, far) for near in agents for far in agents if quality[far] - quality[near] >= data.LEAST_GAP]
    return {
        (examples.agents[near], examples.agents[far]): routing_curve(
            chances[:, far] - chances[:, near], outcomes[:, near], outcomes[:, far]
        ).recovered
        for near, far in pairs
    }
