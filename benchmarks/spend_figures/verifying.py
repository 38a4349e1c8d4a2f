"""What a verdict on the whole work is worth at its price, in addition to agreement; and how often a second sample is needed.

Cards are trained on the known tasks of `verified_drafts` and judged on the fresh ones. The near model is free; far tokens have the price
of a frontier model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy

from nearfar.orchestrator.lab.statistics import percentile_interval
from nearfar.orchestrator.routing.escalation import Action, Escalation
from nearfar.orchestrator.routing.escalation_training import DraftExamples, draft_examples_of, train_escalation
from nearfar.orchestrator.routing.looks import Cost
from nearfar.orchestrator.routing.success import Correction
from nearfar.orchestrator.routing.traces import AgentOutcome, Trace
from nearfar.orchestrator.task.evidence import VerifiedDraft
from nearfar.orchestrator.task.routing_policy import ObjectiveConfig

from .verified_drafts import WORLDS, Row, read_drafts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]

OUTCOME: Final = "outcome"
_OPINION: Final = "near again"
_TOKEN_PRICES: Final = numpy.array([3e-6, 15e-6])
"""US dollars per far token, read and written."""
_WORTHS: Final = numpy.geomspace(0.02, 500.0, 41)
"""Weights of a dollar, in right answers, that draw the curve of right answers by dollars."""
_SHARES: Final = numpy.linspace(0, 1, 41)
"""Shares of the dollars of always asking far at which curves are compared."""
_RESAMPLES: Final = 200
_BINS: Final = 10


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """Return all figures by name. `data` is not read: the drafts are recorded with the benchmarks."""
    known, fresh = (by_world(read_drafts(part)) for part in ("known", "fresh"))
    gains = {world: _gains(known[world], fresh[world], _RESAMPLES // (4 if quick else 1)) for world in WORLDS}
    mean = numpy.mean([gains[world] for world in WORLDS], axis=0)
    raw, corrected = (calibration_error(fresh, is_corrected=is_corrected) for is_corrected in (False, True))
    return {
        "outcome_apgr_gain": percentile_interval(mean[0], mean[1:]).model_dump(),
        "outcome_apgr_gain_by_world": {world: percentile_interval(gains[world][0], gains[world][1:]).model_dump() for world in WORLDS},
        "ece": corrected,
        "ece_raw": raw,
    }


def by_world(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the tasks of each world whose near draft was judged."""
    return {world: [row for row in rows if row["class"].startswith(f"{world}/") and "verdict" in row] for world in WORLDS}


def examples_of(rows: Sequence[Row], *, with_verdict: bool) -> DraftExamples:
    """Return the drafts as `nearfar policy train` reads them, with a second answer of the near model, and the far one's verdict."""
    return draft_examples_of([_trace(row, with_verdict) for row in rows], draft="near", far="far", opinions={_OPINION: Cost()})


def _trace(row: Row, with_verdict: bool) -> Trace:
    verdict = VerifiedDraft(judge="far", raw=row["verdict"], score=row["verdict"], dollars=_dollars(row["verdict_tokens"]))
    near = AgentOutcome(
        score=float(row["near"]["right"]),
        answer=row["near"]["answer"],
        is_grounded=row["is_grounded"],
        confidence=row["near"]["confidence"],
        verified={OUTCOME: verdict} if with_verdict else {},
    )
    far = AgentOutcome(score=float(row["far"]["right"]))
    return Trace(
        prompt=row["prompt"], task_class=row["class"], outcomes={"near": near, "far": far, _OPINION: AgentOutcome(answer=row["opinion"])}
    )


def _dollars(tokens: Sequence[int]) -> float:
    return float(numpy.array(tokens) @ _TOKEN_PRICES)


@dataclass(frozen=True, slots=True)
class ServedTasks:
    """How tasks were served, at each worth of a dollar: arrays (worths, tasks)."""

    right: "Floats"
    dollars: "Floats"

    def recovered(self, near: "Floats", far: "Floats", far_dollars: "Floats", rows: "NDArray[numpy.int64]") -> float:
        """Return the mean share of the gap that is recovered over all amounts of dollars, from none to those of always asking far."""
        spent, right = self.dollars[:, rows].mean(axis=1), self.right[:, rows].mean(axis=1)
        low, high, most = near[rows].mean(), far[rows].mean(), far_dollars[rows].mean()
        order = numpy.argsort(spent)
        costs = numpy.concatenate([[0.0], spent[order], [most]])
        found = numpy.concatenate([[low], right[order], [high]])
        return float(((numpy.interp(_SHARES * most, costs, found) - low) / (high - low)).mean())


def serve(escalation: Escalation, examples: DraftExamples, far_dollars: "Floats", verdict_dollars: "Floats") -> ServedTasks:
    """Serve each task by one decision after the other, at every worth of a dollar."""
    expected = Cost(dollars=float(far_dollars.mean()))
    right, dollars = numpy.zeros((2, len(_WORTHS), len(far_dollars)))
    for place, worth in enumerate(_WORTHS):
        objective = ObjectiveConfig(quality=1.0, dollars=float(worth))
        for task, findings in enumerate(examples.findings):
            seen = {name: found for name, found in findings.items() if name != OUTCOME}
            verdict = escalation.decide(seen, far=expected, objective=objective)
            if verdict.look is not None:
                dollars[place, task] += verdict_dollars[task]
                verdict = escalation.decide({**seen, OUTCOME: findings[OUTCOME]}, far=expected, objective=objective)
            goes_far = verdict.action is Action.ESCALATE
            dollars[place, task] += goes_far * far_dollars[task]
            right[place, task] = (examples.far_scores if goes_far else examples.draft_scores)[task]
    return ServedTasks(right, dollars)


def _gains(known: Sequence[Row], fresh: Sequence[Row], resamples: int) -> "Floats":
    """Return what the verdict adds to the share of the gap that is recovered, and the same of resampled tasks."""
    far_dollars = numpy.array([_dollars(row["far"]["tokens"]) for row in fresh])
    verdict_dollars = numpy.array([_dollars(row["verdict_tokens"]) for row in fresh])
    served = []
    for with_verdict in (False, True):
        card = Escalation(train_escalation(examples_of(known, with_verdict=with_verdict)))
        served.append(serve(card, examples_of(fresh, with_verdict=with_verdict), far_dollars, verdict_dollars))
    near, far = (numpy.array([float(row[agent]["right"]) for row in fresh]) for agent in ("near", "far"))
    random, count = numpy.random.default_rng(0), len(fresh)
    draws = [numpy.arange(count), *(random.integers(0, count, count) for _ in range(resamples))]
    without, with_it = ([each.recovered(near, far, far_dollars, rows) for rows in draws] for each in served)
    return numpy.array(with_it) - numpy.array(without)


def calibration_error(rows: Mapping[str, Sequence[Row]], *, is_corrected: bool) -> float:
    """Return by how much verdicts are off on average, over ten equally large groups, as each was before its own outcome was reported."""
    correction = Correction()
    expected, right = [], []
    for row in numpy.random.default_rng(0).permutation(numpy.array([row for world in rows.values() for row in world], dtype=object)):
        raw = row["verdict"]
        expected.append(correction.corrected("far", row["class"], raw).probability if is_corrected else raw)
        right.append(float(row["near"]["right"]))
        correction.learn("far", row["class"], raw, right[-1])
    groups = numpy.array_split(numpy.argsort(expected), _BINS)
    return float(numpy.mean([abs(numpy.mean(numpy.array(expected)[group]) - numpy.mean(numpy.array(right)[group])) for group in groups]))
