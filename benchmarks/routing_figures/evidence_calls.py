"""Evidence on tool calls: what looking at the drafts of a 1B model recovers, what it saves, and which looks are worth their price."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import numpy

from nearfar.orchestrator.routing.answers import agree
from nearfar.orchestrator.routing.call_looks import text_of_calls
from nearfar.orchestrator.routing.escalation import Action, Escalation, price
from nearfar.orchestrator.routing.looks import DRAFT, PROMPT, SCHEMA, Cost, Signal
from nearfar.orchestrator.routing.traces import AgentOutcome, Trace
from nearfar.orchestrator.routing.training import DraftExamples, draft_examples_of, out_of_fold_gains
from nearfar.orchestrator.task.routing_policy import ObjectiveConfig

from .evidence_measures import (
    Fold,
    Row,
    apgr,
    calibration_error,
    compared,
    folds,
    gains_of,
    mean_with_interval,
    read_rows,
    recovery,
    scores_of,
    trained,
)
from .raw_calls import tool_specs, written_calls

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]
    Flags = NDArray[numpy.bool_]

XLAM_1B: Final = "Salesforce_xLAM-1b-fc-r"
XLAM_7B: Final = "Salesforce_xLAM-7b-fc-r"
NEAR: Final = {
    XLAM_1B: 1.35,
    XLAM_7B: 6.9,
    "meta-llama_Meta-Llama-3-8B-Instruct": 8.0,
    "NousResearch_Hermes-2-Pro-Llama-3-8B": 8.0,
    "google_gemma-7b-it": 8.5,
}
"""The near models, with billions of parameters."""
FAR: Final = "claude-3-5-sonnet-20240620"
FAR_INPUT: Final = 3e-6
FAR_OUTPUT: Final = 15e-6
"""US dollars per token."""
NEAR_TOKEN: Final = 0.03e-6
"""US dollars per token and billion parameters: what hosts ask for small models, which is more than the electricity of one's own."""
CHARACTERS_PER_TOKEN: Final = 4
LEAST_SAVED: Final = 0.7
"""Share of the far dollars that a threshold has to save on the tasks that it is chosen on."""
WORTH: Final = ObjectiveConfig(quality=1.0, dollars=20.0)
"""Where looks are weighed, a right answer is worth five cents."""


def call_figures(folder: Path) -> dict[str, Any]:
    """All figures on tool calls."""
    calls = Calls(read_rows(folder / "bfcl.jsonl.gz"))
    examples = calls.examples(XLAM_1B, [model for model in NEAR if model != XLAM_1B])
    parts = trained(examples)
    near, far = examples.draft_scores, examples.far_scores
    return {
        **recovery("bfcl", gains_of(examples, parts), examples),
        **compared("bfcl", examples, float(max(scores_of(calls.rows, model).mean() for model in NEAR)), opinion=XLAM_7B),
        "bfcl_calibration_error": calibration_error(examples, parts),
        "bfcl_apgr_draft_alone": apgr(gains_of(calls.examples(XLAM_1B, [])), near, far),
        "bfcl_apgr_one_opinion": apgr(gains_of(calls.examples(XLAM_1B, [XLAM_7B])), near, far),
        **_savings(calls),
        **_sequence(calls, examples, parts),
    }


class Calls:
    """The drafts of all near models, and what the far one costs."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.written = {model: [written_calls(row["outcomes"][model]["result"], row["functions"]) for row in rows] for model in NEAR}
        self.traces = [self._trace(number, row) for number, row in enumerate(rows)]

    @cached_property
    def far_dollars(self) -> "Floats":
        """Of each task."""
        tokens = [(row["outcomes"][FAR]["input_tokens"], row["outcomes"][FAR]["output_tokens"]) for row in self.rows]
        dollars: Floats = numpy.array(tokens) @ numpy.array([FAR_INPUT, FAR_OUTPUT])
        return dollars

    def near_dollars(self, model: str) -> "Floats":
        """Of each task."""
        return numpy.array([_near_dollars(row, model) for row in self.rows])

    def disagree(self, first: str, second: str) -> "Flags":
        """Whether two models make different calls, by task."""
        pairs = zip(self.written[first], self.written[second], strict=True)
        return numpy.array([not agree(one.calls, other.calls) for one, other in pairs])

    def examples(self, draft: str, opinions: Sequence[str]) -> DraftExamples:
        """Drafts of one model, with the opinions of others."""
        costs = {model: Cost(dollars=float(self.near_dollars(model).mean())) for model in opinions}
        return draft_examples_of(self.traces, draft=draft, far=FAR, opinions=costs)

    def _trace(self, number: int, row: Row) -> Trace:
        """The task as a trace, as `nearfar policy train` reads it."""
        scores = {model: float(row["outcomes"][model]["correct"]) for model in (*NEAR, FAR)}
        written = {model: self.written[model][number] for model in NEAR}
        drafts = {
            model: AgentOutcome(score=scores[model], answer=text_of_calls(each.calls), has_prose=not each.is_clean)
            for model, each in written.items()
        }
        return Trace(
            prompt=prompt_of(row), specs=tuple(tool_specs(row["functions"])), outcomes=drafts | {FAR: AgentOutcome(score=scores[FAR])}
        )


def prompt_of(row: Row) -> str:
    """Return the words of the task."""
    return "\n".join(message["content"] for message in row["question"][0])


def _near_dollars(row: Row, model: str) -> float:
    """The prompt's tokens are recorded for far models only."""
    tokens = row["outcomes"][FAR]["input_tokens"] + len(row["outcomes"][model]["result"]) / CHARACTERS_PER_TOKEN
    dollars: float = tokens * NEAR[model] * NEAR_TOKEN
    return dollars


def _savings(calls: Calls) -> dict[str, Any]:
    """Dollars saved against always asking the far model, with drafts of the larger xLAM and the opinion of the smaller one."""
    examples = calls.examples(XLAM_7B, [XLAM_1B])
    near_dollars = calls.near_dollars(XLAM_7B) + calls.near_dollars(XLAM_1B)
    goes_far = _escalated(examples, calls.far_dollars)
    accuracy = numpy.where(goes_far, examples.far_scores, examples.draft_scores)
    saved = 1 - (goes_far * calls.far_dollars + near_dollars) / calls.far_dollars.mean()
    disagree = calls.disagree(XLAM_7B, XLAM_1B)
    by_rule = numpy.where(disagree, examples.far_scores, examples.draft_scores)
    return {
        "bfcl_dollars_saved": mean_with_interval(saved),
        "bfcl_dollars_saved_with_near_tokens_free": float(1 - (goes_far * calls.far_dollars).sum() / calls.far_dollars.sum()),
        "bfcl_dollars_accuracy": float(accuracy.mean()),
        "bfcl_dollars_accuracy_over_always_far": mean_with_interval(accuracy - examples.far_scores),
        "bfcl_dollars_far_share": float(goes_far.mean()),
        "bfcl_dollars_draft_alone_accuracy": float(examples.draft_scores.mean()),
        "bfcl_disagreement_rule_accuracy": float(by_rule.mean()),
        "bfcl_disagreement_rule_saved": float(1 - (disagree * calls.far_dollars + near_dollars).sum() / calls.far_dollars.sum()),
    }


def _escalated(examples: DraftExamples, far_dollars: "Floats") -> "Flags":
    """Which tasks go far, by a threshold that is chosen on the other folds: the most accurate one that saves as much as it has to."""
    goes_far = numpy.zeros(len(far_dollars), dtype=bool)
    gains = gains_of(examples)
    for known, held in folds(len(far_dollars)):
        part = examples.part(known)
        expected = out_of_fold_gains(part)
        order = numpy.argsort(-expected)
        better = numpy.cumsum((part.far_scores - part.draft_scores)[order])
        saved = 1 - numpy.cumsum(far_dollars[known][order]) / far_dollars[known].sum()
        best = numpy.argmax(numpy.where(saved >= LEAST_SAVED, better, -numpy.inf))
        goes_far[held] = gains[held] >= expected[order][best]
    return goes_far


Way = Callable[[Escalation, Mapping[str, Signal], Cost], tuple[Sequence[str], bool]]
"""How a task is served: the paid looks that are taken, and whether it goes far."""


def _sequence(calls: Calls, examples: DraftExamples, parts: Sequence[Fold]) -> dict[str, Any]:
    """One decision after the other, with what each look costs, against deciding at once and against taking all looks first."""
    ways: dict[str, Way] = {"decisions": _one_by_one, "no_look": _at_once, "all_looks": _after_all}
    costs = {look.name: price(look.cost, WORTH) for look in examples.looks}
    utility = {"always_far": examples.far_scores - WORTH.dollars * calls.far_dollars}
    found: dict[str, Any] = {}
    for name, way in ways.items():
        looks, goes_far = _served(calls, examples, parts, way)
        right = numpy.where(goes_far, examples.far_scores, examples.draft_scores)
        spent = goes_far * WORTH.dollars * calls.far_dollars + numpy.array([sum(costs[look] for look in taken) for taken in looks])
        utility[name] = right - spent
        found[f"bfcl_sequence_{name}"] = {
            "accuracy": float(right.mean()),
            "far_share": float(goes_far.mean()),
            "looks_per_task": fmean(len(taken) for taken in looks),
        }
    decisions = utility.pop("decisions")
    found["bfcl_sequence_utility"] = float(decisions.mean())
    return found | {f"bfcl_sequence_utility_over_{name}": mean_with_interval(decisions - other) for name, other in utility.items()}


def _served(calls: Calls, examples: DraftExamples, parts: Sequence[Fold], way: Way) -> "tuple[list[Sequence[str]], Flags]":
    looks: list[Sequence[str]] = [()] * len(examples.findings)
    goes_far = numpy.zeros(len(looks), dtype=bool)
    for part in parts:
        far = Cost(dollars=float(calls.far_dollars[part.known].mean()))
        for row in part.held:
            looks[row], goes_far[row] = way(part.escalation, examples.findings[row], far)
    return looks, goes_far


def _one_by_one(escalation: Escalation, findings: Mapping[str, Signal], far: Cost) -> tuple[Sequence[str], bool]:
    seen = _free(findings)
    taken = []
    while (verdict := escalation.decide(seen, far=far, objective=WORTH)).look is not None:
        taken.append(verdict.look)
        seen[verdict.look] = findings[verdict.look]
    return taken, verdict.action is Action.ESCALATE


def _at_once(escalation: Escalation, findings: Mapping[str, Signal], far: Cost) -> tuple[Sequence[str], bool]:
    return (), _is_worth_it(escalation, _free(findings), far)


def _after_all(escalation: Escalation, findings: Mapping[str, Signal], far: Cost) -> tuple[Sequence[str], bool]:
    return [name for name in findings if name not in _free(findings)], _is_worth_it(escalation, findings, far)


def _free(findings: Mapping[str, Signal]) -> dict[str, Signal]:
    return {name: findings[name] for name in (PROMPT, DRAFT, SCHEMA)}


def _is_worth_it(escalation: Escalation, findings: Mapping[str, Signal], far: Cost) -> bool:
    draft, right = escalation.probabilities(findings)
    return WORTH.quality * (right - draft) > price(far, WORTH)
