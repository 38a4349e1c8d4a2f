"""Measures the worth of a verdict on the whole work, in addition to agreement and to all free looks.

Of the shipped models, cards are trained on the known tasks of `verified_drafts` and judged on the fresh ones. No judge has read the
recorded maths and calls, so there verdicts are drawn with a set AUROC: that tells how good a judge has to be, not how good one is. Near
tokens are free; far ones have the price of a frontier model.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING, Any, Final

import numpy

from nearfar.orchestrator.lab.statistics import percentile_interval
from nearfar.orchestrator.routing.escalation import Action, Escalation
from nearfar.orchestrator.routing.looks import Cost, Look, Signal
from nearfar.orchestrator.routing.outcome_records import correction_for, verdicts_of
from nearfar.orchestrator.routing.traces import AgentOutcome, Trace
from nearfar.orchestrator.routing.training import DraftExamples, draft_examples_of, train_escalation
from nearfar.orchestrator.task.decisions import VerifiedDraft
from nearfar.orchestrator.task.routing_policy import ObjectiveConfig

from ..routing_figures.evidence_answers import SETS, answer_examples
from ..routing_figures.evidence_calls import XLAM_1B, XLAM_7B, Calls
from ..routing_figures.evidence_measures import apgr, gains_of, read_rows
from .verified_drafts import WORLDS, Row, read_drafts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]
    Rows = NDArray[numpy.int64]

Worlds = Mapping[str, Sequence[Row]]
"""Recorded tasks by their world."""
OUTCOME: Final = "outcome"
JUDGES: Final = ("near", "far")
_OPINION: Final = "near again"
_AGREEMENT: Final = (_OPINION,)
_TOKEN_PRICES: Final = numpy.array([3e-6, 15e-6])
"""US dollars per far token, read and written."""
_FAR_PRICES: Final = numpy.linspace(0.0, 1.0, 11)
"""Prices of a far answer, in right answers, that draw the curve of right answers by dollars."""
_SHARES: Final = numpy.linspace(0, 1, 41)
"""Shares of the dollars of always asking far at which curves are compared."""
_AUROCS: Final = (0.7, 0.8, 0.9)
_RESAMPLES: Final = 200
_BINS: Final = 10


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """Return all figures by name."""
    known, fresh = (by_world(read_drafts(part)) for part in ("known", "fresh"))
    return {
        **_shipped_figures(known, fresh, _FAR_PRICES[:: 2 if quick else 1]),
        "ece": {judge: calibration_error(known, fresh, judge, is_corrected=True) for judge in JUDGES},
        "ece_raw": {judge: calibration_error(known, fresh, judge, is_corrected=False) for judge in JUDGES},
        **({} if quick else _drawn_figures(data / "routing")),
    }


def _shipped_figures(known: Worlds, fresh: Worlds, prices: "Floats") -> dict[str, Any]:
    """Return what verdicts of the near judge, which is free, and of the far one at its price add to the share of the gap recovered."""
    pairs = [(known[world], fresh[world]) for world in WORLDS]
    near = {looks: [_free_gains(*pair, looks) for pair in pairs] for looks in (_AGREEMENT, None)}
    far = [_priced_gains(*pair, prices) for pair in pairs]
    return {
        "outcome_apgr_gain": _interval(numpy.mean(near[_AGREEMENT], axis=0)),
        "outcome_apgr_gain_by_world": dict(zip(WORLDS, map(_interval, near[_AGREEMENT]), strict=True)),
        "outcome_apgr_gain_over_all_looks": _interval(numpy.mean(near[None], axis=0)),
        "outcome_apgr_gain_of_far_judge": _interval(numpy.mean(far, axis=0)),
    }


def _interval(gains: "Floats") -> dict[str, float]:
    return percentile_interval(gains[0], gains[1:]).model_dump()


def by_world(rows: Sequence[Row]) -> Worlds:
    """Return the tasks of each world whose near draft was judged."""
    return {world: [row for row in rows if row["class"].startswith(f"{world}/") and "verdicts" in row] for world in WORLDS}


def examples_of(rows: Sequence[Row], judge: str | None) -> DraftExamples:
    """Return the drafts as `nearfar policy train` reads them, with a second answer of the near model, and a judge's verdict."""
    return draft_examples_of([_trace(row, judge) for row in rows], draft="near", far="far", opinions={_OPINION: Cost()})


def _trace(row: Row, judge: str | None) -> Trace:
    raw, dollars = (0.5, 0.0) if judge is None else (row["verdicts"][judge], _verdict_dollars(row) if judge == "far" else 0.0)
    near = AgentOutcome(
        score=float(row["near"]["right"]),
        answer=row["near"]["answer"],
        is_grounded=row["is_grounded"],
        confidence=row["near"]["confidence"],
        verified={} if judge is None else {OUTCOME: VerifiedDraft(judge=judge, raw=raw, score=raw, dollars=dollars)},
    )
    far = AgentOutcome(score=float(row["far"]["right"]))
    return Trace(
        prompt=row["prompt"], task_class=row["class"], outcomes={"near": near, "far": far, _OPINION: AgentOutcome(answer=row["opinion"])}
    )


def _verdict_dollars(row: Row) -> float:
    return _dollars([row["verdict_tokens"], 1])


def with_looks(examples: DraftExamples, names: Sequence[str] | None) -> DraftExamples:
    """Return the examples with some of their looks; None: with all."""
    looks = [look for look in examples.looks if names is None or look.name in names]
    return replace(examples, looks=looks, findings=[{look.name: found[look.name] for look in looks} for found in examples.findings])


def _free_gains(known: Sequence[Row], fresh: Sequence[Row], looks: Sequence[str] | None) -> "Floats":
    """Return what the near judge adds to some looks, and the same of resampled tasks. No dollars are spent on it."""
    unseen, predicted = examples_of(fresh, None), []
    for judge in (None, "near"):
        names = None if looks is None else [*looks, OUTCOME]
        card = Escalation(train_escalation(with_looks(examples_of(known, judge), names)))
        chances = [card.probabilities(found) for found in with_looks(examples_of(fresh, judge), names).findings]
        predicted.append(numpy.array([far - draft for draft, far in chances]))
    return _differences(lambda place, rows: apgr(predicted[place][rows], unseen.draft_scores[rows], unseen.far_scores[rows]), len(fresh))


def _differences(recovered: "Callable[[int, Rows], float]", count: int) -> "Floats":
    """Return the second value less the first, of all rows and of resampled ones."""
    random = numpy.random.default_rng(0)
    draws = [numpy.arange(count), *(random.integers(0, count, count) for _ in range(_RESAMPLES))]
    return numpy.array([recovered(1, rows) - recovered(0, rows) for rows in draws])


def _dollars(tokens: Sequence[int]) -> float:
    return float(numpy.array(tokens) @ _TOKEN_PRICES)


@dataclass(frozen=True, slots=True)
class ServedTasks:
    """How tasks were served, at each price of a far answer: arrays (prices, tasks)."""

    right: "Floats"
    dollars: "Floats"

    def recovered(self, near: "Floats", far: "Floats", far_dollars: "Floats", rows: "Rows") -> float:
        """Return the mean share of the gap that is recovered over all amounts of dollars, from none to those of always asking far."""
        spent, right = self.dollars[:, rows].mean(axis=1), self.right[:, rows].mean(axis=1)
        low, high, most = near[rows].mean(), far[rows].mean(), far_dollars[rows].mean()
        order = numpy.argsort(spent)
        costs = numpy.concatenate([[0.0], spent[order], [most]])
        found = numpy.concatenate([[low], right[order], [high]])
        return float(((numpy.interp(_SHARES * most, costs, found) - low) / (high - low)).mean())


def serve(
    escalation: Escalation, examples: DraftExamples, far_dollars: "Floats", verdict_dollars: "Floats", prices: "Floats"
) -> ServedTasks:
    """Serve each task by one decision after the other, at every price of a far answer in right answers."""
    expected = Cost(dollars=float(far_dollars.mean()))
    right, spent = numpy.zeros((2, len(prices), len(far_dollars)))
    for place, price in enumerate(prices):
        objective = ObjectiveConfig(quality=1.0, dollars=float(price) / expected.dollars)
        for task, findings in enumerate(examples.findings):
            seen = {name: found for name, found in findings.items() if name != OUTCOME}
            verdict = escalation.decide(seen, far=expected, objective=objective)
            if verdict.look is not None:
                spent[place, task] += verdict_dollars[task]
                verdict = escalation.decide({**seen, OUTCOME: findings[OUTCOME]}, far=expected, objective=objective)
            goes_far = verdict.action is Action.ESCALATE
            spent[place, task] += goes_far * far_dollars[task]
            right[place, task] = (examples.far_scores if goes_far else examples.draft_scores)[task]
    return ServedTasks(right, spent)


def _priced_gains(known: Sequence[Row], fresh: Sequence[Row], prices: "Floats") -> "Floats":
    """Return what the far judge adds to all free looks at equal dollars, and the same of resampled tasks."""
    unseen = examples_of(fresh, "far")
    far_dollars, verdict_dollars = (numpy.array(column) for column in zip(*map(_both_dollars, fresh), strict=True))
    cards = [Escalation(train_escalation(examples_of(known, judge))) for judge in (None, "far")]
    served = [serve(card, unseen, far_dollars, verdict_dollars, prices) for card in cards]
    near, far = unseen.draft_scores, unseen.far_scores
    return _differences(lambda place, rows: served[place].recovered(near, far, far_dollars, rows), len(fresh))


def _both_dollars(row: Row) -> tuple[float, float]:
    return _dollars(row["far"]["tokens"]), _verdict_dollars(row)


def calibration_error(known: Worlds, fresh: Worlds, judge: str, *, is_corrected: bool) -> float:
    """Return by how much verdicts on fresh drafts are off on average, over ten equally large groups.

    They are corrected by the outcomes of the known drafts, and of the fresh ones before each, in a random order.
    """
    correction = correction_for(verdicts_of(OUTCOME))
    expected, right = [], []
    for number, row in enumerate([*_mixed(known), *_mixed(fresh)]):
        raw, outcome = row["verdicts"][judge], float(row["near"]["right"])
        if number >= sum(map(len, known.values())):
            expected.append(correction.corrected(judge, row["class"], raw).probability if is_corrected else raw)
            right.append(outcome)
        correction.learn(judge, row["class"], raw, outcome)
    chances, outcomes = numpy.array(expected), numpy.array(right)
    groups = numpy.array_split(numpy.argsort(chances), _BINS)
    return fmean(float(abs(chances[group].mean() - outcomes[group].mean())) for group in groups)


def _mixed(rows: Worlds) -> list[Row]:
    every = [row for world in rows.values() for row in world]
    return [every[place] for place in numpy.random.default_rng(0).permutation(len(every))]


def _drawn_figures(folder: Path) -> dict[str, Any]:
    """Return what free verdicts of a set AUROC would add on recorded maths and calls to the opinion of another small model."""
    maths = SETS[1]
    pairs = {
        "math": answer_examples(read_rows(folder / maths.file), maths.usual[0], [maths.usual[1]], maths.far),
        "bfcl": Calls(read_rows(folder / "bfcl.jsonl.gz")).examples(XLAM_1B, [XLAM_7B]),
    }
    gains = {name: {f"{auroc:g}": _drawn_gain(pair, auroc) for auroc in _AUROCS} for name, pair in pairs.items()}
    return {"outcome_gain_of_drawn_verdicts": gains}


def _drawn_gain(examples: DraftExamples, auroc: float) -> float:
    distance = math.sqrt(2) * NormalDist().inv_cdf(auroc)
    odds = numpy.random.default_rng(0).normal(size=len(examples.findings)) + distance * (examples.draft_scores - 0.5)
    findings = [{**found, OUTCOME: Signal({"log odds": float(each)})} for found, each in zip(examples.findings, odds, strict=True)]
    judged = replace(examples, looks=[*examples.looks, Look(name=OUTCOME)], findings=findings)
    with_it, without = (apgr(gains_of(each), examples.draft_scores, examples.far_scores) for each in (judged, examples))
    return with_it - without
