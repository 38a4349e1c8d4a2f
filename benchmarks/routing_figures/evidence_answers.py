"""Evidence on answers in text (predicted output of code, competition mathematics): what the opinion of a second small model recovers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy

from nearfar.orchestrator.lab.statistics import with_interval
from nearfar.orchestrator.routing.looks import Cost
from nearfar.orchestrator.routing.traces import AgentOutcome, Trace
from nearfar.orchestrator.routing.training import DraftExamples, draft_examples_of, out_of_fold_gains

from .evidence_measures import Row, apgr, compared, folds, gains_of, read_rows, recovery, scores_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]

NEAR: Final = (
    "gemma-2-2b-it",
    "Qwen2.5-3B-Instruct",
    "Phi-3.5-mini-instruct",
    "Qwen2.5-7B-Instruct",
    "Meta-Llama-3.1-8B-Instruct",
    "gemma-2-9b-it",
)
LEAST_GAP: Final = 0.1
"""By which the far side has to do better than a draft model: shares of a smaller gap are mostly noise."""

_OPINION: Final = Cost(dollars=1e-4)
"""Of a second opinion; all are taken here, so that any price will do."""

Pair = tuple[str, str]
"""The model that drafts, and the one that gives a second opinion."""


@dataclass(frozen=True, slots=True)
class AnswerSet:
    """A set of tasks."""

    name: str
    file: str
    far: str
    """The better one of its two far models."""
    usual: Pair
    """The best pair of the full run; a quick run looks at no other."""


SETS: Final = (
    AnswerSet("crux", "cruxeval.jsonl.gz", "gpt-4o-2024-08-06", ("Phi-3.5-mini-instruct", "Qwen2.5-7B-Instruct")),
    AnswerSet("math", "math_l5.jsonl.gz", "claude-3-5-sonnet-20241022", ("Qwen2.5-3B-Instruct", "Qwen2.5-7B-Instruct")),
)


def answer_figures(answer_set: AnswerSet, folder: Path, *, quick: bool) -> dict[str, Any]:
    """The recovery where all other near models give opinions, and where one does; in a full run also of every pair, and of the one that
    is chosen on the tasks trained on."""
    name, rows = answer_set.name, read_rows(folder / answer_set.file)
    pairs = [answer_set.usual] if quick else _pairs(rows, answer_set.far)
    examples = {pair: answer_examples(rows, pair[0], [pair[1]], answer_set.far) for pair in pairs}
    gains = {pair: gains_of(each) for pair, each in examples.items()}
    recovered = {pair: apgr(gains[pair], each.draft_scores, each.far_scores) for pair, each in examples.items()}
    best = max(recovered, key=lambda pair: recovered[pair])
    every = answer_examples(rows, best[0], [model for model in NEAR if model != best[0]], answer_set.far)
    found = {
        **recovery(name, gains_of(every), every),
        **compared(name, every, float(max(scores_of(rows, model).mean() for model in NEAR)), opinion=best[1]),
        f"{name}_apgr_one_opinion": recovered[best],
        f"{name}_pair": [*best, answer_set.far],
    }
    if quick:
        return found
    ranked = sorted(recovered, key=lambda pair: -recovered[pair])
    return {
        **found,
        f"{name}_apgr_of_pairs": {" + ".join(pair): recovered[pair] for pair in ranked},
        **_chosen_in_training(name, examples, gains),
    }


def _chosen_in_training(name: str, examples: Mapping[Pair, DraftExamples], gains: "Mapping[Pair, Floats]") -> dict[str, Any]:
    """What comes of it where each fold serves with the pair that is the best one on the tasks that it is trained on."""
    chosen: list[Pair] = []
    expected, near, far = (numpy.zeros(len(each)) for each in 3 * [next(iter(gains.values()))])
    for known, held in folds(len(near)):
        best = _best([(pair, each.part(known)) for pair, each in examples.items()])
        chosen.append(best)
        expected[held] = gains[best][held]
        near[held], far[held] = examples[best].draft_scores[held], examples[best].far_scores[held]
    _, interval = with_interval(expected.tolist(), near.tolist(), far.tolist())
    return {
        f"{name}_apgr_pair_chosen_in_training": interval.model_dump(),
        f"{name}_pairs_chosen_in_training": [" + ".join(pair) for pair in chosen],
    }


def _best(candidates: Sequence[tuple[Pair, DraftExamples]]) -> Pair:
    recovered = {pair: apgr(out_of_fold_gains(each), each.draft_scores, each.far_scores) for pair, each in candidates}
    return max(recovered, key=lambda pair: recovered[pair])


def _pairs(rows: Sequence[Row], far: str) -> list[Pair]:
    """Every draft model with enough of a gap to the far one, with every second one."""
    drafts = [model for model in NEAR if scores_of(rows, far).mean() - scores_of(rows, model).mean() >= LEAST_GAP]
    return [(draft, other) for draft in drafts for other in NEAR if other != draft]


def answer_examples(rows: Sequence[Row], draft: str, opinions: Sequence[str], far: str) -> DraftExamples:
    """Drafts of one model, with the opinions of others."""
    return draft_examples_of([_trace(row) for row in rows], draft=draft, far=far, opinions=dict.fromkeys(opinions, _OPINION))


def _trace(row: Row) -> Trace:
    """The task as a trace, as `nearfar policy train` reads it."""
    outcomes = {
        model: AgentOutcome(score=float(outcome["correct"]), answer=outcome["answer"], output_characters=outcome["output_chars"])
        for model, outcome in row["outcomes"].items()
    }
    return Trace(prompt=row["prompt"], outcomes=outcomes)
