"""What the figures of evidence share: escalations that are trained on other tasks, and how much of the gap they recover."""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import numpy

from nearfar.orchestrator.lab.statistics import percentile_interval, routing_curve, with_interval
from nearfar.orchestrator.routing.escalation import Escalation
from nearfar.orchestrator.routing.looks import PROMPT, Look
from nearfar.orchestrator.routing.training import DraftExamples, train_escalation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]
    Rows = NDArray[numpy.int64]

FOLDS: Final = 5
_RANDOM_ORDERS: Final = 100
_RESAMPLES: Final = 1000
_CALIBRATION_GROUPS: Final = 10

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Fold:
    """An escalation, the rows that it was trained on, and those that it has not seen."""

    escalation: Escalation
    known: "Rows"
    held: "Rows"


@cache
def read_rows(path: Path) -> Sequence[Row]:
    """The recorded tasks of a set, which are read once."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def scores_of(rows: Sequence[Row], model: str) -> "Floats":
    """Whether a model was right, by task."""
    return numpy.array([float(row["outcomes"][model]["correct"]) for row in rows])


def folds(count: int) -> "Iterator[tuple[Rows, Rows]]":
    """Rows to train on and rows to test on, five times."""
    fold = numpy.random.default_rng(0).permutation(count) % FOLDS
    for held in range(FOLDS):
        yield numpy.flatnonzero(fold != held), numpy.flatnonzero(fold == held)


def trained(examples: DraftExamples) -> list[Fold]:
    """One escalation for each fold."""
    return [Fold(Escalation(train_escalation(examples.part(known))), known, held) for known, held in folds(len(examples.findings))]


def gains_of(examples: DraftExamples, parts: Sequence[Fold] = ()) -> "Floats":
    """P(far right) - P(draft right) of each task after all looks, by the escalation that has not seen it.

    Where no `parts` are given, they are trained on all looks at once, as if each were free: fits of fewer looks change nothing here.
    """
    gains = numpy.zeros(len(examples.findings))
    for part in parts or trained(replace(examples, looks=[Look(name=look.name) for look in examples.looks])):
        for row in part.held:
            draft, far = part.escalation.probabilities(examples.findings[row])
            gains[row] = far - draft
    return gains


def apgr(gains: "Floats", near: "Floats", far: "Floats") -> float:
    """The mean share of the gap that is recovered."""
    return routing_curve(gains.tolist(), near.tolist(), far.tolist()).recovered


def recovery(name: str, gains: "Floats", examples: DraftExamples) -> dict[str, Any]:
    """APGR with its interval, and the percentage of far calls that recovers half and four fifths of the gap."""
    curve, interval = with_interval(gains.tolist(), examples.draft_scores.tolist(), examples.far_scores.tolist())
    return {
        f"{name}_apgr": interval.model_dump(),
        f"{name}_cpt50": 100 * curve.far_share_for(0.5),
        f"{name}_cpt80": 100 * curve.far_share_for(0.8),
    }


def compared(name: str, examples: DraftExamples, best_near: float, *, opinion: str) -> dict[str, Any]:
    """What the recovery is to be compared with, on the same tasks. `opinion`: the agent whose disagreement is a rule by itself."""
    near, far = examples.draft_scores, examples.far_scores
    random = numpy.random.default_rng(0)
    return {
        f"{name}_apgr_disagreement_length": apgr(_disagreement_length(examples, opinion), near, far),
        f"{name}_apgr_prompt_only": apgr(gains_of(_prompt_only(examples)), near, far),
        f"{name}_apgr_random": fmean(apgr(random.random(len(near)), near, far) for _ in range(_RANDOM_ORDERS)),
        f"{name}_apgr_oracle": apgr(far - near, near, far),
        f"{name}_always_near": float(near.mean()),
        f"{name}_always_far": float(far.mean()),
        f"{name}_best_single_near": best_near,
    }


def calibration_error(examples: DraftExamples, parts: Sequence[Fold]) -> float:
    """By how much P(draft right) is off on average, over ten equally large groups of tasks by that probability."""
    held = [(part.escalation, row) for part in parts for row in part.held]
    expected = numpy.array([escalation.probabilities(examples.findings[row])[0] for escalation, row in held])
    scores = numpy.array([examples.draft_scores[row] for _, row in held])
    groups = numpy.array_split(numpy.argsort(expected), _CALIBRATION_GROUPS)
    return fmean(abs(expected[group].mean() - scores[group].mean()) for group in groups)


def mean_with_interval(values: "Floats") -> dict[str, float]:
    """A mean over tasks with its 95 % bootstrap interval."""
    random = numpy.random.default_rng(0)
    means = [values[random.integers(0, len(values), len(values))].mean() for _ in range(_RESAMPLES)]
    return percentile_interval(float(values.mean()), means).model_dump()


def _disagreement_length(examples: DraftExamples, opinion: str) -> "Floats":
    """Disagreement with one opinion, which takes no label; among equal ones, the longer prompt first."""
    disagrees = numpy.array([1 - found[opinion].measures["agrees"] for found in examples.findings])
    lengths = numpy.array([found[PROMPT].measures["characters"] for found in examples.findings])
    found: Floats = disagrees + 0.5 * lengths / lengths.max()
    return found


def _prompt_only(examples: DraftExamples) -> DraftExamples:
    findings = [{PROMPT: found[PROMPT]} for found in examples.findings]
    return DraftExamples(examples.draft, examples.far, [Look(name=PROMPT)], findings, examples.draft_scores, examples.far_scores)
