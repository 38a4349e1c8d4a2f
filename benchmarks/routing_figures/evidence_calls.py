"""Evidence on tool calls: what looking at the drafts of a 1B model recovers, what it saves, and which looks are worth their price."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import numpy

from nearfar.orchestrator.routing.answers import Answer
from nearfar.orchestrator.routing.escalation import Action, Escalation, price
from nearfar.orchestrator.routing.escalation_training import DraftExamples, out_of_fold_gains
from nearfar.orchestrator.routing.looks import DRAFT, PROMPT, SCHEMA, Cost, Look, Signal, prompt_surface, second_opinion
from nearfar.orchestrator.task.routing_policy import ObjectiveConfig

from .call_signals import call_check, call_form
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
        **compared("bfcl", examples, float(max(scores_of(calls.rows, model).mean() for model in NEAR))),
        "bfcl_calibration_error": calibration_error(examples, parts),
        "bfcl_apgr_draft_alone": apgr(gains_of(calls.examples(XLAM_1B, [])), near, far),
        "bfcl_apgr_one_opinion": apgr(gains_of(calls.examples(XLAM_1B, [XLAM_7B])), near, far),
        **_savings(calls),
        **_sequence(calls, examples, parts),
    }


@dataclass(frozen=True, slots=True)
class _Draft:
    """The calls of one model on one task, and what a check of them found."""

    answer: Answer
    form: Signal
    check: Signal
    is_clean: bool
    """Nothing but calls was written."""
    dollars: float


class Calls:
    """The drafts of all near models, and what the far one costs."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.drafts = {model: [_draft(row, model) for row in rows] for model in NEAR}
        self.prompts = [prompt_surface(prompt_of(row)) for row in rows]

    @cached_property
    def far_dollars(self) -> "Floats":
        """Of each task."""
        tokens = [(row["outcomes"][FAR]["input_tokens"], row["outcomes"][FAR]["output_tokens"]) for row in self.rows]
        dollars: Floats = numpy.array(tokens) @ numpy.array([FAR_INPUT, FAR_OUTPUT])
        return dollars

    def near_dollars(self, model: str) -> "Floats":
        """Of each task."""
        return numpy.array([draft.dollars for draft in self.drafts[model]])

    def disagree(self, first: str, second: str) -> "Flags":
        """Whether two models make different calls, by task."""
        pairs = zip(self.drafts[first], self.drafts[second], strict=True)
        return numpy.array([not one.answer.agrees(other.answer) for one, other in pairs])

    def examples(self, draft: str, opinions: Sequence[str]) -> DraftExamples:
        """Drafts of one model, with the opinions of others."""
        looks = [Look(name=name) for name in (PROMPT, DRAFT, SCHEMA)]
        looks += [Look(name=model, cost=Cost(dollars=float(self.near_dollars(model).mean()))) for model in opinions]
        findings = [self._findings(row, draft, opinions) for row in range(len(self.rows))]
        return DraftExamples(draft, FAR, looks, findings, scores_of(self.rows, draft), scores_of(self.rows, FAR))

    def _findings(self, row: int, model: str, opinions: Sequence[str]) -> dict[str, Signal]:
        draft = self.drafts[model][row]
        found = {PROMPT: self.prompts[row], DRAFT: draft.form, SCHEMA: draft.check}
        for name in opinions:
            other = self.drafts[name][row]
            further = {**other.check.measures, "is clean": float(other.is_clean)}
            found[name] = second_opinion(draft.answer, other.answer, further=further)
        return found


def _draft(row: Row, model: str) -> _Draft:
    result = row["outcomes"][model]["result"]
    tools, written = tool_specs(row["functions"]), written_calls(result, row["functions"])
    tokens = row["outcomes"][FAR]["input_tokens"] + len(result) / CHARACTERS_PER_TOKEN  # the prompt's tokens are recorded for far models
    return _Draft(
        answer=Answer.of_calls(written.calls),
        form=call_form(written.calls, tools, prompt_of(row)),
        check=call_check(written.calls, tools),
        is_clean=written.is_clean,
        dollars=tokens * NEAR[model] * NEAR_TOKEN,
    )


def prompt_of(row: Row) -> str:
    return "\n".join(message["content"] for message in row["question"][0])


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
