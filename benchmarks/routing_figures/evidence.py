"""Figures of the evidence after a draft: on recorded drafts of small models, what looking at them recovers, saves and costs.

Every gain is predicted by an escalation that was trained on the other four fifths of the tasks.
"""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from nearfar.orchestrator.routing.evidence.answers import Answer
from nearfar.orchestrator.routing.evidence.escalation import Action, Escalation, price
from nearfar.orchestrator.routing.evidence.escalation_training import Examples, out_of_fold_gains, train_escalation
from nearfar.orchestrator.routing.evidence.signals import (
    DRAFT,
    PROMPT,
    SCHEMA,
    Cost,
    Finding,
    Look,
    call_check,
    call_form,
    prompt_surface,
    second_opinion,
    text_form,
)
from nearfar.orchestrator.routing.replay.curve import routing_curve, with_interval
from nearfar.orchestrator.routing.settings import Objective

from .raw_calls import Written, tool_specs, written_calls

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]
    Rows = NDArray[numpy.int64]

FOLDS: Final = 5
XLAM_1B: Final = "Salesforce_xLAM-1b-fc-r"
XLAM_7B: Final = "Salesforce_xLAM-7b-fc-r"
CALLERS: Final = {
    XLAM_1B: 1.35,
    XLAM_7B: 6.9,
    "meta-llama_Meta-Llama-3-8B-Instruct": 8.0,
    "NousResearch_Hermes-2-Pro-Llama-3-8B": 8.0,
    "google_gemma-7b-it": 8.5,
}
"""The near side of the tool calls, with billions of parameters."""
CALLS_FAR: Final = "claude-3-5-sonnet-20240620"
FAR_INPUT: Final = 3e-6
FAR_OUTPUT: Final = 15e-6
"""US dollars per token of claude-3-5-sonnet."""
NEAR_TOKEN: Final = 0.03e-6
"""US dollars per token and billion parameters: what hosts ask for small models, which is more than the electricity of one's own."""
LEAST_SAVED: Final = 0.7
"""Share of the dollars that a threshold has to save on the tasks that it is chosen on."""
RIGHT_ANSWER: Final = 0.05
"""What one is worth in US dollars where looks are weighed."""
ANSWERERS: Final = (
    "gemma-2-2b-it",
    "Qwen2.5-3B-Instruct",
    "Phi-3.5-mini-instruct",
    "Qwen2.5-7B-Instruct",
    "Meta-Llama-3.1-8B-Instruct",
    "gemma-2-9b-it",
)
"""The near side of the other sets."""
LEAST_GAP: Final = 0.1
"""By which the far side has to do better than a draft model: a share of a smaller gap is mostly noise."""

Row = Mapping[str, Any]
Pair = tuple[str, str]
"""The model that drafts, and the one that gives a second opinion."""


@dataclass(frozen=True, slots=True)
class _AnswerSet:
    """A set of tasks that are answered in text."""

    file: str
    far: str
    """The better one of its two far models."""
    usual: Pair
    """The pair that the full run found to be the best one; a quick run looks at no other."""


ANSWER_SETS: Final = {
    "crux": _AnswerSet("cruxeval.jsonl.gz", "gpt-4o-2024-08-06", ("gemma-2-9b-it", "Qwen2.5-7B-Instruct")),
    "math": _AnswerSet("math_l5.jsonl.gz", "claude-3-5-sonnet-20241022", ("Qwen2.5-3B-Instruct", "Qwen2.5-7B-Instruct")),
}


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """All figures by name. `data` is the folder of the recorded sets; a quick run leaves out the choice among pairs of models."""
    found = _call_figures(data / "bfcl.jsonl.gz")
    for name, answer_set in ANSWER_SETS.items():
        found |= _answer_figures(name, answer_set, _rows(data / answer_set.file), quick=quick)
    return found


def _call_figures(path: Path) -> dict[str, Any]:
    rows = _rows(path)
    calls = _Calls(rows)
    near, far = _scores(rows, XLAM_1B), _scores(rows, CALLS_FAR)
    with_all = calls.examples(XLAM_1B, [model for model in CALLERS if model != XLAM_1B])
    return {
        **_recovery("bfcl", _gains(with_all), near, far),
        **_beside("bfcl", with_all, max(_scores(rows, model).mean() for model in CALLERS)),
        "bfcl_apgr_draft_alone": _apgr(_gains(calls.examples(XLAM_1B, [])), near, far),
        "bfcl_apgr_one_opinion": _apgr(_gains(calls.examples(XLAM_1B, [XLAM_7B])), near, far),
        **_savings(calls),
        **_sequence(calls, with_all),
    }


class _Calls:
    """The tool calls that all models wrote, with what they cost."""

    def __init__(self, rows: Sequence[Row]) -> None:
        import numpy

        self.rows = rows
        self.prompts = ["\n".join(message["content"] for message in row["question"][0]) for row in rows]
        self.tools = [tool_specs(row["functions"]) for row in rows]
        self.written = {model: [written_calls(row["outcomes"][model]["result"], row["functions"]) for row in rows] for model in CALLERS}
        self.checks = {
            model: [call_check(each.calls, tools) for each, tools in zip(written, self.tools, strict=True)]
            for model, written in self.written.items()
        }
        self.far_dollars = numpy.array([_far_dollars(row["outcomes"][CALLS_FAR]) for row in rows])

    def examples(self, draft: str, opinions: Sequence[str]) -> Examples:
        looks = [Look(name=name) for name in (PROMPT, DRAFT, SCHEMA)]
        looks += [Look(name=model, cost=Cost(dollars=float(self.near_dollars(model).mean()))) for model in opinions]
        findings = [self._findings(row, draft, opinions) for row in range(len(self.rows))]
        return Examples(draft, CALLS_FAR, looks, findings, _scores(self.rows, draft), _scores(self.rows, CALLS_FAR))

    def near_dollars(self, model: str) -> "Floats":
        """Of each task; the prompt has as many tokens as the far model counted, and four characters of a draft make one."""
        import numpy

        outcomes = [row["outcomes"] for row in self.rows]
        tokens = [found[CALLS_FAR]["input_tokens"] + len(found[model]["result"]) / 4 for found in outcomes]
        return numpy.array(tokens) * CALLERS[model] * NEAR_TOKEN

    def agree(self, first: str, second: str) -> "NDArray[numpy.bool_]":
        """Whether two models make the same calls, by task."""
        import numpy

        pairs = zip(self.written[first], self.written[second], strict=True)
        return numpy.array([_answer(one).agrees(_answer(other)) for one, other in pairs])

    def _findings(self, row: int, draft: str, opinions: Sequence[str]) -> dict[str, Finding]:
        written = self.written[draft][row]
        free = {
            PROMPT: prompt_surface(self.prompts[row]),
            DRAFT: call_form(written.calls, self.tools[row], self.prompts[row]),
            SCHEMA: self.checks[draft][row],
        }
        return free | {model: self._opinion(row, _answer(written), model) for model in opinions}

    def _opinion(self, row: int, draft: Answer, model: str) -> Finding:
        written = self.written[model][row]
        further = {**self.checks[model][row].measures, "is clean": float(written.is_clean)}
        return second_opinion(draft, _answer(written), further=further)


def _savings(calls: _Calls) -> dict[str, Any]:
    """Dollars saved against always asking the far model, with drafts of the larger xLAM and the opinion of the smaller one."""
    import numpy

    examples = calls.examples(XLAM_7B, [XLAM_1B])
    near_dollars = calls.near_dollars(XLAM_7B) + calls.near_dollars(XLAM_1B)
    escalated = _escalated(examples, calls.far_dollars)
    disagree = ~calls.agree(XLAM_7B, XLAM_1B)
    far = examples.far_scores
    accuracy = numpy.where(escalated, far, examples.draft_scores)
    saved = 1 - (numpy.where(escalated, calls.far_dollars, 0) + near_dollars) / calls.far_dollars.mean()
    return {
        "bfcl_dollars_saved": _mean_with_interval(saved),
        "bfcl_dollars_saved_with_near_tokens_free": float(1 - calls.far_dollars[escalated].sum() / calls.far_dollars.sum()),
        "bfcl_dollars_accuracy": float(accuracy.mean()),
        "bfcl_dollars_accuracy_over_always_far": _mean_with_interval(accuracy - far),
        "bfcl_dollars_far_share": float(escalated.mean()),
        "bfcl_disagreement_rule_accuracy": float(numpy.where(disagree, far, examples.draft_scores).mean()),
        "bfcl_disagreement_rule_saved": float(1 - (calls.far_dollars[disagree].sum() + near_dollars.sum()) / calls.far_dollars.sum()),
        "bfcl_always_near_7b": float(examples.draft_scores.mean()),
    }


def _escalated(examples: Examples, far_dollars: "Floats") -> "NDArray[numpy.bool_]":
    """Which tasks go far, by a threshold that is chosen on the other folds: the most accurate one that saves as much as it has to."""
    import numpy

    goes_far = numpy.zeros(len(examples.findings), dtype=bool)
    gains = _gains(examples)
    for known, held in _folds(len(goes_far)):
        part = examples.part(known)
        expected = out_of_fold_gains(part)
        order = numpy.argsort(-expected)
        better = numpy.cumsum((part.far_scores - part.draft_scores)[order])
        saved = 1 - numpy.cumsum(far_dollars[known][order]) / far_dollars[known].sum()
        best = numpy.argmax(numpy.where(saved >= LEAST_SAVED, better, -numpy.inf))
        goes_far[held] = gains[held] >= expected[order][best]
    return goes_far


def _sequence(calls: _Calls, examples: Examples) -> dict[str, Any]:
    """The decisions one after the other, with what each look costs, against deciding at once and against taking all looks first."""
    import numpy

    objective = Objective(quality=1.0, dollars=1 / RIGHT_ANSWER)
    looks = [look for look in examples.looks if not look.is_free]
    taken: list[tuple[int, int, int]] = []
    utility: dict[str, list[float]] = {"decisions": [], "no_look": [], "all_looks": []}
    for known, held in _folds(len(examples.findings)):
        escalation = Escalation(train_escalation(examples.part(known)))
        far = Cost(dollars=float(calls.far_dollars[known].mean()))
        for row in held:
            found = examples.findings[row]
            seen, escalates = _decided(escalation, found, looks, far, objective)
            taken.append((int(row), len(seen), int(escalates)))
            free = {name: finding for name, finding in found.items() if name not in {look.name for look in looks}}
            ways = {"decisions": (seen, escalates), "no_look": ([], _now(escalation, free, far, objective))}
            ways["all_looks"] = (looks, _now(escalation, found, far, objective))
            for way, (paid, goes_far) in ways.items():
                spent = sum(price(look.cost, objective) for look in paid) + goes_far * objective.dollars * calls.far_dollars[row]
                right = examples.far_scores[row] if goes_far else examples.draft_scores[row]
                utility[way].append(float(right - spent))
    order = numpy.array(taken)
    right = numpy.where(order[:, 2], examples.far_scores[order[:, 0]], examples.draft_scores[order[:, 0]])
    return {
        "bfcl_sequence_accuracy": float(right.mean()),
        "bfcl_sequence_far_share": float(order[:, 2].mean()),
        "bfcl_sequence_looks_per_task": float(order[:, 1].mean()),
        **{f"bfcl_sequence_utility_of_{way}": fmean(values) for way, values in utility.items()},
        "bfcl_sequence_utility_of_always_far": float(examples.far_scores.mean() - objective.dollars * calls.far_dollars.mean()),
    }


def _decided(
    escalation: Escalation, findings: Mapping[str, Finding], looks: Sequence[Look], far: Cost, objective: Objective
) -> tuple[list[Look], bool]:
    """The paid looks that were taken, and whether the task went far."""
    by_name = {look.name: look for look in looks}
    known = {name: finding for name, finding in findings.items() if name not in by_name}
    seen: list[Look] = []
    while (verdict := escalation.decide(known, far=far, objective=objective)).look is not None:
        seen.append(by_name[verdict.look])
        known[verdict.look] = findings[verdict.look]
    return seen, verdict.action is Action.ESCALATE


def _now(escalation: Escalation, findings: Mapping[str, Finding], far: Cost, objective: Objective) -> bool:
    """Whether to escalate where no further look can be taken."""
    draft, right = escalation.probabilities(findings)
    return objective.quality * (right - draft) > price(far, objective)


def _answer_figures(name: str, answer_set: _AnswerSet, rows: Sequence[Row], *, quick: bool) -> dict[str, Any]:
    """APGR of the best pair, and of the pair that each training part would choose."""
    pairs = [answer_set.usual] if quick else _pairs(rows, answer_set.far)
    examples = {pair: _answer_examples(rows, pair[0], [pair[1]], answer_set.far) for pair in pairs}
    gains = {pair: _gains(each) for pair, each in examples.items()}
    apgr = {pair: _apgr(gains[pair], each.draft_scores, each.far_scores) for pair, each in examples.items()}
    best = max(apgr, key=lambda pair: apgr[pair])
    chosen = examples[best]
    found = {
        **_recovery(name, gains[best], chosen.draft_scores, chosen.far_scores),
        **_beside(name, chosen, max(_scores(rows, model).mean() for model in ANSWERERS)),
        f"{name}_pair": [*best, answer_set.far],
    }
    return found if quick else found | _choices(name, examples, gains, apgr) | _all_opinions(name, rows, best[0], answer_set.far)


def _choices(name: str, examples: Mapping[Pair, Examples], gains: "Mapping[Pair, Floats]", apgr: Mapping[Pair, float]) -> dict[str, Any]:
    """All pairs, and what comes of it where the pair is chosen on the training part of each fold."""
    import numpy

    chosen: list[Pair] = []
    expected, near, far = ([] for _ in range(3))
    for known, held in _folds(len(next(iter(gains.values())))):
        parts = {pair: each.part(known) for pair, each in examples.items()}
        inner = {pair: _apgr(out_of_fold_gains(part), part.draft_scores, part.far_scores) for pair, part in parts.items()}
        best = max(inner, key=lambda pair: inner[pair])
        chosen.append(best)
        expected.extend(gains[best][held])
        near.extend(examples[best].draft_scores[held])
        far.extend(examples[best].far_scores[held])
    _, interval = with_interval(numpy.array(expected), near, far)
    ranked = sorted(apgr, key=lambda pair: -apgr[pair])
    return {
        f"{name}_apgr_pair_chosen_in_training": interval.model_dump(),
        f"{name}_pairs_chosen_in_training": [" + ".join(pair) for pair in chosen],
        f"{name}_apgr_of_pairs": {" + ".join(pair): round(apgr[pair], 4) for pair in ranked},
    }


def _all_opinions(name: str, rows: Sequence[Row], draft: str, far: str) -> dict[str, Any]:
    examples = _answer_examples(rows, draft, [model for model in ANSWERERS if model != draft], far)
    return {f"{name}_apgr_all_opinions": _apgr(_gains(examples), examples.draft_scores, examples.far_scores)}


def _pairs(rows: Sequence[Row], far: str) -> list[Pair]:
    """Every draft model with enough of a gap to the far one, with every second one."""
    drafts = [model for model in ANSWERERS if _scores(rows, far).mean() - _scores(rows, model).mean() >= LEAST_GAP]
    return [(draft, other) for draft in drafts for other in ANSWERERS if other != draft]


def _answer_examples(rows: Sequence[Row], draft: str, opinions: Sequence[str], far: str) -> Examples:
    looks = [Look(name=PROMPT), Look(name=DRAFT), *(Look(name=model, cost=Cost(dollars=1e-4)) for model in opinions)]
    findings = []
    for row in rows:
        forms = {model: _form(row, model) for model in (draft, *opinions)}
        answer = forms[draft].answer or Answer(())
        found = {PROMPT: prompt_surface(row["prompt"]), DRAFT: forms[draft]}
        found |= {model: second_opinion(answer, forms[model].answer or Answer(()), further=forms[model].measures) for model in opinions}
        findings.append(found)
    return Examples(draft, far, looks, findings, _scores(rows, draft), _scores(rows, far))


def _form(row: Row, model: str) -> Finding:
    outcome = row["outcomes"][model]
    return text_form(outcome["answer"], row["prompt"], output_characters=outcome["output_chars"])


def _recovery(name: str, gains: "Floats", near: "Floats", far: "Floats") -> dict[str, Any]:
    curve, interval = with_interval(gains, near, far)
    return {
        f"{name}_apgr": interval.model_dump(),
        f"{name}_cpt50": 100 * curve.far_share_for(0.5),
        f"{name}_cpt80": 100 * curve.far_share_for(0.8),
    }


def _beside(name: str, examples: Examples, best_near: float) -> dict[str, Any]:
    """What the recovery is to be compared with, on the same tasks."""
    import numpy

    near, far = examples.draft_scores, examples.far_scores
    random = numpy.random.default_rng(0)
    return {
        f"{name}_apgr_prompt_only": _apgr(_gains(_prompt_only(examples)), near, far),
        f"{name}_apgr_random": fmean(_apgr(random.random(len(near)), near, far) for _ in range(100)),
        f"{name}_apgr_oracle": _apgr(far - near, near, far),
        f"{name}_always_near": float(near.mean()),
        f"{name}_always_far": float(far.mean()),
        f"{name}_best_single_near": float(best_near),
    }


def _prompt_only(examples: Examples) -> Examples:
    findings = [{PROMPT: found[PROMPT]} for found in examples.findings]
    return Examples(examples.draft, examples.far, [Look(name=PROMPT)], findings, examples.draft_scores, examples.far_scores)


def _apgr(gains: "Floats", near: "Floats", far: "Floats") -> float:
    return routing_curve(gains.tolist(), near.tolist(), far.tolist()).recovered


def _gains(examples: Examples) -> "Floats":
    """P(far right) - P(draft right) of each task after all looks, by an escalation that was trained on the other folds."""
    import numpy

    gains = numpy.zeros(len(examples.findings))
    for known, held in _folds(len(gains)):
        escalation = Escalation(train_escalation(examples.part(known)))
        for row in held:
            draft, far = escalation.probabilities(examples.findings[row])
            gains[row] = far - draft
    return gains


def _folds(count: int) -> "Iterator[tuple[Rows, Rows]]":
    """Rows to train on and rows to test on, five times."""
    import numpy

    fold = numpy.random.default_rng(0).permutation(count) % FOLDS
    for held in range(FOLDS):
        yield numpy.flatnonzero(fold != held), numpy.flatnonzero(fold == held)


def _mean_with_interval(values: "Floats") -> dict[str, float]:
    """A mean over tasks with its 95 % bootstrap interval."""
    import numpy

    random = numpy.random.default_rng(0)
    means = [values[random.integers(0, len(values), len(values))].mean() for _ in range(1000)]
    low, high = numpy.quantile(means, (0.025, 0.975))
    return {"value": float(values.mean()), "low": float(low), "high": float(high)}


def _answer(written: Written) -> Answer:
    return Answer.of_calls(written.calls)


def _far_dollars(outcome: Row) -> float:
    return float(outcome["input_tokens"] * FAR_INPUT + outcome["output_tokens"] * FAR_OUTPUT)


def _scores(rows: Sequence[Row], model: str) -> "Floats":
    import numpy

    return numpy.array([float(row["outcomes"][model]["correct"]) for row in rows])


def _rows(path: Path) -> list[Row]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]
