"""Measures the samples that a vote saves by stopping early, and the points that it loses against a plain majority of all of them.

The shipped near model answers each question of the search world eight times. Its stopping was chosen on other questions, the known tasks of
`verified_drafts`. `verified_recording` records the samples again.
"""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy

from nearfar.orchestrator.lab.statistics import percentile_interval
from nearfar.orchestrator.routing.answers import Answer
from nearfar.orchestrator.strategies.verifying import Ballot

from .verified_drafts import SAMPLES, Row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]

FILE: Final = Path(__file__).with_name("votes.json.gz")
TASKS: Final = 2000
SEED: Final = 83838
"""No other figure draws tasks with it, and nothing was chosen on them."""
_QUICK_TASKS: Final = 400
_RESAMPLES: Final = 1000


def figures(_data: Path, *, quick: bool) -> dict[str, Any]:
    """Return all figures by name."""
    rows = read_votes()[: _QUICK_TASKS if quick else None]
    used, plain, voted, first = numpy.array([numpy.mean(_votes(row), axis=0) for row in rows]).T
    classes = numpy.array([row["class"] for row in rows])
    lost = voted - plain
    by_class = {str(name): _interval(100 * lost[classes == name]) for name in numpy.unique(classes)}
    return {
        "vote_saving": _interval(1 - used / SAMPLES),
        "vote_points_over_majority": _interval(100 * lost),
        "vote_points_over_majority_by_class": by_class,
        "vote_points_over_majority_worst_class": min(each["low"] for each in by_class.values()),
        "vote_points_over_one_sample": _interval(100 * (voted - first)),
    }


def read_votes() -> list[Row]:
    """Return the recorded tasks with their samples."""
    with gzip.open(FILE, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _interval(values: "Floats") -> dict[str, float]:
    random = numpy.random.default_rng(0)
    means = [values[random.integers(0, len(values), len(values))].mean() for _ in range(_RESAMPLES)]
    return percentile_interval(values.mean(), means).model_dump()


def _votes(row: Row) -> list[tuple[float, float, float, float]]:
    """Return for each order the votes needed, and whether the plain majority, the elected answer and the first sample are right.

    The samples are taken in eight orders, in which each is the first once.
    """
    samples = [sample for sample in row["samples"] if sample["answer"] is not None]
    said = [(Answer.of_text(sample["answer"], prompt=row["prompt"]), sample["confidence"]) for sample in samples]
    right = [float(sample["right"]) for sample in samples]
    return [_vote(said[place:] + said[:place], right[place:] + right[:place]) for place in range(len(samples))]


def _vote(said: Sequence[tuple[Answer, float | None]], right: Sequence[float]) -> tuple[float, float, float, float]:
    plain, ballot = Ballot(SAMPLES), Ballot(SAMPLES)
    for place, (answer, confidence) in enumerate(said):
        plain.add(answer, confidence)
        if place == 0 or not ballot.is_settled:
            ballot.add(answer, confidence)
    return ballot.cast, right[plain.leader], right[ballot.leader], right[0]
