"""Transfer of cards: how much of the gap a role card recovers on tasks that it was not trained on, against cards of the same tasks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy

from nearfar.orchestrator.lab.statistics import percentile_interval
from nearfar.orchestrator.routing.drafts import DEFAULT_CARD, DRAFT_ROLE, FAR_ROLE, OPINION_ROLES, bind
from nearfar.orchestrator.routing.escalation import Escalation, EscalationCard, read_card
from nearfar.orchestrator.routing.training import DraftExamples

from .evidence_measures import apgr
from .pairings import PAIRINGS, USUAL, Pairing, pairing_examples, pairing_gains
from .role_cards import QUICK_STEP, by_role_examples, role_card, role_examples

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]

ALLOWED: Final = 0.05
"""What a card of other tasks may recover less."""
_SHARES: Final = (0.1, 0.2, 0.3)
_RESAMPLES: Final = 1000
_TIE: Final = 1e-3
SETS: Final = {"cruxeval": "cruxeval (ZeroEval)", "math_l5": "math_l5 (ZeroEval)", "bfcl": "bfcl"}


def figures(folder: Path, *, quick: bool) -> dict[str, Any]:
    """All figures by name. A quick run tries the card of one set alone, learned on every fourth task, on one pairing of each set."""
    pairings = tuple(USUAL.values()) if quick else PAIRINGS
    examples = {each.name: pairing_examples(each, folder) for each in pairings}
    step = QUICK_STEP if quick else 1
    cards = {name: role_card([role_examples(folder, SETS[name], step=step)]) for name in (["math_l5"] if quick else SETS)}
    found = _transfer(pairings, folder, cards)
    shipped = {name: _gains(read_card(DEFAULT_CARD), each) for name, each in examples.items()}
    rule = {name: _disagreement_length(each) for name, each in examples.items()}
    found["card_default_apgr"] = {name: _apgr(shipped[name], each) for name, each in examples.items()}
    for share in _SHARES:
        for label, gains in (("card_default", shipped), ("disagreement_length", rule)):
            found[f"{label}_mixed_points_over_random_{round(100 * share)}"] = _points(examples, gains, share)
    return found


def _transfer(pairings: Sequence[Pairing], folder: Path, cards: Mapping[str, EscalationCard]) -> dict[str, Any]:
    """What a card of each set recovers on every pairing of the other sets, against a card of the same tasks and the rule without one."""
    table: dict[str, dict[str, float]] = {}
    for each in pairings:
        known = pairing_examples(each, folder)
        own = _apgr(pairing_gains(each, folder), known)
        row = {"own": own, "disagreement_length": _apgr(_disagreement_length(known), known)}
        for name, card in cards.items():
            if name != each.set:
                row[f"from_{name}"] = _apgr(_gains(card, known), known)
        table[each.name] = row
    margins = {name: [row[f"from_{name}"] - row["own"] for row in table.values() if f"from_{name}" in row] for name in cards}
    least = {name: min(found) for name, found in margins.items()}
    return {
        "card_transfer": table,
        "card_transfer_least_margin": least,
        "card_transfer_holds": all(margin >= -ALLOWED for margin in least.values()),
    }


def _gains(card: EscalationCard, examples: DraftExamples) -> "Floats":
    """The gain of each draft by a role card."""
    (opinion,) = [look.name for look in examples.looks if not look.is_free]
    known = by_role_examples(examples, [(opinion,)] * len(examples.findings))
    escalation = Escalation(bind(card, draft=DRAFT_ROLE, far=FAR_ROLE, opinions=OPINION_ROLES[:1]))
    chances = [escalation.probabilities(found) for found in known.findings]
    return numpy.array([far - draft for draft, far in chances])


def _disagreement_length(examples: DraftExamples) -> "Floats":
    """The gain without any label: disagreement with the opinion, ties by the length of the prompt."""
    (opinion,) = [look.name for look in examples.looks if not look.is_free]
    disagrees = [1 - found[opinion].measures["agrees"] for found in examples.findings]
    lengths = [found["prompt"].measures["characters"] for found in examples.findings]
    return numpy.array(disagrees) + _TIE * numpy.array(lengths)


def _apgr(gains: "Floats", examples: DraftExamples) -> float:
    return apgr(gains, examples.draft_scores, examples.far_scores)


def _points(examples: dict[str, DraftExamples], gains: dict[str, "Floats"], share: float) -> dict[str, float]:
    """Points that the mixed stream is better than at random, where the share of the tasks with the largest gains goes far."""
    expected = numpy.concatenate([gains[each.name] for each in USUAL.values()])
    better = numpy.concatenate([examples[each.name].far_scores - examples[each.name].draft_scores for each in USUAL.values()])

    def points(rows: "NDArray[numpy.int64]") -> float:
        first = numpy.argsort(-expected[rows], kind="stable")[: round(share * len(rows))]
        return float(100 * (better[rows][first].sum() / len(rows) - share * better[rows].mean()))

    random = numpy.random.default_rng(0)
    order = random.permutation(len(better))  # ties are broken by chance, not by the order of the sets
    drawn = [points(random.integers(0, len(better), len(better))) for _ in range(_RESAMPLES)]
    return percentile_interval(points(order), drawn).model_dump()
