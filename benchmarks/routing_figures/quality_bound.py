"""Guarantees of quality: how often `calibrate --quality 0.95 --confidence 0.95` is broken, over random splits of recorded outcomes.

One half of the tasks of a split chooses the threshold; on the other, the mean score has to be 95 % of the far side's. The gains are those
of the evidence after a draft, of a head, and of prompt length, none of which has seen the task. A split in which the half is too small for
any guarantee counts as refused, and breaks nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import numpy

from nearfar.orchestrator.lab.statistics import Margins, guaranteed_threshold
from nearfar.orchestrator.routing.success import length_gain
from nearfar.protocols import ConfigError

from . import data
from .budget import LinearHead, inputs_of, outcomes_of
from .evidence_measures import folds
from .pairings import USUAL, pairing_examples, pairing_gains

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]

QUALITY: Final = 0.95
CONFIDENCE: Final = 0.95
SPLITS: Final = 200
QUICK: Final = 40
MOST: Final = 4000
"""Prompts of MMLU."""


@dataclass(frozen=True, slots=True)
class Gained:
    """Recorded tasks with what the far side is expected to gain on each."""

    name: str
    gains: "Floats"
    near: "Floats"
    far: "Floats"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One split."""

    is_broken: bool
    """On the other half of the tasks."""
    is_broken_on_all: bool
    """On all tasks, which is the mean that the other half estimates."""
    far_share: float


def figures(folder: Path, *, quick: bool) -> dict[str, Any]:
    """The share of splits in which the quality was not kept, the greatest of all sets and each; a quick run makes fewer splits."""
    found = {each.name: _over_splits(each, QUICK if quick else SPLITS) for each in _recorded(folder)}
    return {
        "quality_bound": max(each["broken"] for each in found.values()),
        "quality_bound_on_all": max(each["broken_on_all"] for each in found.values()),
        "quality_bound_by_set": found,
    }


def _recorded(folder: Path) -> Iterator[Gained]:
    for pairing in USUAL.values():
        examples, short = pairing_examples(pairing, folder), pairing.name.partition("_")[0]
        yield Gained(f"{short}_evidence", pairing_gains(pairing, folder), examples.draft_scores, examples.far_scores)
    traces = data.mmlu(folder)
    traces = [traces[place] for place in numpy.random.default_rng(0).permutation(len(traces))[:MOST]]
    prompts, outcomes = [trace.prompt for trace in traces], outcomes_of(traces)
    yield Gained("mmlu_head", _head_gains(prompts, outcomes), *outcomes.T)
    yield Gained("mmlu_length", numpy.array([length_gain(prompt) for prompt in prompts]), *outcomes.T)


def _head_gains(prompts: list[str], outcomes: "Floats") -> "Floats":
    inputs, gains = inputs_of(prompts), numpy.zeros(len(prompts))
    for known, held in folds(len(prompts)):
        chances = LinearHead(inputs[known], outcomes[known]).predict(inputs[held])
        gains[held] = chances[:, 1] - chances[:, 0]
    return gains


def _over_splits(tasks: Gained, splits: int) -> dict[str, float]:
    found = [each for split in range(splits) if (each := _split(tasks, split)) is not None]
    return {
        "broken": sum(each.is_broken for each in found) / splits,
        "broken_on_all": sum(each.is_broken_on_all for each in found) / splits,
        "refused": 1 - len(found) / splits,
        "far_share": round(fmean(each.far_share for each in found), 4) if found else 1.0,
    }


def _split(tasks: Gained, split: int) -> Outcome | None:
    """Choose on one half and look at the other; None where the half is too small."""
    order = numpy.random.default_rng(split).permutation(len(tasks.gains))
    known, held = order[: len(order) // 2], order[len(order) // 2 :]
    try:
        threshold = guaranteed_threshold(_margins(tasks, known), confidence=CONFIDENCE).threshold
    except ConfigError:
        return None
    goes_far = tasks.gains > threshold
    over = numpy.where(goes_far, tasks.far, tasks.near) - QUALITY * tasks.far
    return Outcome(bool(over[held].mean() < 0), bool(over.mean() < 0), float(goes_far.mean()))


def _margins(tasks: Gained, rows: "NDArray[numpy.int64]") -> Margins:
    return Margins.of_share(tasks.gains[rows], tasks.near[rows], tasks.far[rows], share=QUALITY)
