"""The recorded outcomes that the figures are made on, as traces. Each set is read once."""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from nearfar.orchestrator.routing.traces import AgentOutcome, Trace

LEAST_GAP: Final = 0.1
"""Between the mean outcomes of two agents, from which one counts as the near side and the other as the far side."""


@cache
def mmlu(folder: Path) -> Sequence[Trace]:
    """14,042 multiple-choice questions; the class of each is its subject."""
    return [_trace(row, task_class=f"mmlu/{row['group']}") for row in _rows(folder / "mmlu.jsonl.gz")]


@cache
def cruxeval(folder: Path) -> Sequence[Trace]:
    """800 predictions of what a Python function returns."""
    return [_trace(row, task_class="cruxeval") for row in _rows(folder / "cruxeval.jsonl.gz")]


@cache
def math_l5(folder: Path) -> Sequence[Trace]:
    """721 problems of competition mathematics."""
    return [_trace(row, task_class="math_l5") for row in _rows(folder / "math_l5.jsonl.gz")]


@cache
def dcrouter(folder: Path) -> Sequence[Trace]:
    """5,608 prompts of three kinds."""
    with gzip.open(folder / "dcrouter_train.json.gz", "rt", encoding="utf-8") as file:
        rows = json.load(file)
    return [
        Trace(
            id=f"dcrouter/{number}",
            prompt=row["question"],
            task_class=f"dcrouter/{row['cluster_id']}",
            outcomes={agent: AgentOutcome(score=score) for agent, score in row["scores"].items()},
        )
        for number, row in enumerate(rows)
    ]


def _trace(row: Mapping[str, Any], *, task_class: str) -> Trace:
    outcomes = {
        agent: AgentOutcome(score=float(outcome["correct"]), answer=outcome.get("answer")) for agent, outcome in row["outcomes"].items()
    }
    return Trace(id=row["id"], prompt=row["prompt"], task_class=task_class, outcomes=outcomes)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)
