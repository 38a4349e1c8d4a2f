"""Learning without labels: by how much the default card would rank better if the far answers' verdicts on drafts moved it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy

from nearfar.orchestrator.lab.statistics import percentile_interval
from nearfar.orchestrator.routing.answers import Answer
from nearfar.orchestrator.routing.budget import FarShareController
from nearfar.orchestrator.routing.drafts import DEFAULT_CARD, DRAFT_ROLE, FAR_ROLE, OPINION_ROLES, bind
from nearfar.orchestrator.routing.escalation import Escalation, read_card
from nearfar.orchestrator.routing.looks import DRAFT, Signal
from nearfar.orchestrator.routing.success import Correction
from nearfar.orchestrator.strategies.judging import label_weights

from .evidence_calls import FAR
from .evidence_measures import Row, read_rows
from .pairings import USUAL, Pairing, pairing_examples
from .raw_calls import written_calls
from .role_cards import by_role_examples

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]
    Rows = NDArray[numpy.int64]

SHARE: Final = 0.2
_ORDERS: Final = 20
_RESAMPLES: Final = 1000


def figures(folder: Path, *, quick: bool) -> dict[str, Any]:
    """Points by which the stream is served better at a fifth far, over streams in random order, with a card that learns and without."""
    tasks = [task for each in USUAL.values() for task in _tasks(each, folder)]
    orders = [numpy.random.default_rng(seed).permutation(len(tasks)) for seed in range(5 if quick else _ORDERS)]
    usual = numpy.mean([_served(tasks, order, learns="no") for order in orders], axis=0)
    found: dict[str, Any] = {"arbitration_points_over_random_20_unlearned": 100 * _over_random(tasks, usual)}
    escalated = [task for task in tasks if task.confirmed]
    found["arbitration_confirmed_drafts_right"] = float(numpy.mean([task.near for task in escalated]))
    for learns in ("arbitration", "reports"):
        learned = numpy.mean([_served(tasks, order, learns=learns) for order in orders], axis=0)
        found[f"{learns}_points_gained_at_20"] = _difference(tasks, learned, usual)
    return found


@dataclass(frozen=True, slots=True)
class _Task:
    """A recorded task with its draft."""

    chances: tuple[float, float]
    """Probabilities that the draft is right and that the far agent would be, by the default card."""
    near: float
    """Whether the draft is right."""
    far: float
    confirmed: bool
    """The far answer is the draft's."""
    task_class: str


def _tasks(pairing: Pairing, folder: Path) -> list[_Task]:
    rows = read_rows(folder / f"{pairing.set}.jsonl.gz")
    examples = pairing_examples(pairing, folder)
    known = by_role_examples(examples, [(pairing.opinion,)] * len(rows))
    card = Escalation(bind(read_card(DEFAULT_CARD), draft=DRAFT_ROLE, far=FAR_ROLE, opinions=OPINION_ROLES[:1]))
    return [
        _Task(card.probabilities(found), float(near), float(far), _draft(found).agrees(_far_answer(row, pairing)), pairing.set)
        for row, found, near, far in zip(rows, known.findings, examples.draft_scores, examples.far_scores, strict=True)
    ]


def _draft(found: Mapping[str, Signal]) -> Answer:
    return found[DRAFT].answer or Answer(())


def _far_answer(row: Row, pairing: Pairing) -> Answer:
    if pairing.set == "bfcl":
        return Answer.of_calls(written_calls(row["outcomes"][FAR]["result"], row["functions"]).calls)
    return Answer.of_text(row["outcomes"][pairing.far]["answer"])


def _served(tasks: list[_Task], order: "Rows", *, learns: str) -> "Floats":
    """Serve the stream in an order. Return for each task whether it went far."""
    correction, controller = Correction(), FarShareController(SHARE)
    went, random = numpy.zeros(len(tasks)), numpy.random.default_rng(0)
    for place in order:
        task = tasks[place]
        p, q = (
            correction.corrected(side, task.task_class, chance).probability
            for side, chance in zip(("near", "far"), task.chances, strict=True)
        )
        went_far = q - p > controller.threshold
        controller.observe(q - p, went_far=went_far)
        went[place] = went_far
        if learns == "arbitration" and went_far:
            weights = label_weights(p, q, confirmed=task.confirmed)
            for side, predicted, weight in zip(("near", "far"), task.chances, weights, strict=True):
                if random.random() < weight:
                    correction.learn(side, task.task_class, predicted, float(task.confirmed))
        elif learns == "reports":
            side, predicted, score = ("far", task.chances[1], task.far) if went_far else ("near", task.chances[0], task.near)
            correction.learn(side, task.task_class, predicted, score)
    return went


def _over_random(tasks: list[_Task], went: "Floats") -> float:
    better = numpy.array([task.far - task.near for task in tasks])
    return float((went * better).mean() - went.mean() * better.mean())


def _difference(tasks: list[_Task], learned: "Floats", usual: "Floats") -> dict[str, float]:
    """Points over random of the one less those of the other, with the 95 % bootstrap interval over tasks."""
    better = numpy.array([task.far - task.near for task in tasks])
    random = numpy.random.default_rng(0)

    def points(rows: "Rows") -> float:
        gained = (learned - usual)[rows]
        return float(100 * ((gained * better[rows]).mean() - gained.mean() * better[rows].mean()))

    drawn = [points(random.integers(0, len(tasks), len(tasks))) for _ in range(_RESAMPLES)]
    return percentile_interval(points(numpy.arange(len(tasks))), drawn).model_dump()
