"""Cards by role, trained on recorded answers of many models: the shipped one, and those of single sets that transfer is measured with."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Final

import numpy

from nearfar.orchestrator.routing.drafts import DRAFT_ROLE, FAR_ROLE, OPINION_ROLES
from nearfar.orchestrator.routing.escalation import FARTHEST as WIDEST
from nearfar.orchestrator.routing.escalation import EscalationCard, Fit, looks_of, measures_of
from nearfar.orchestrator.routing.looks import CONFIDENCE, DRAFT, FREE, GROUNDING, LENGTH, PROMPT, SCHEMA, Cost, Look, Signal
from nearfar.orchestrator.routing.training import DraftExamples, train_escalation

from .evidence_answers import NEAR as NEAR_ANSWERING
from .evidence_answers import answer_examples
from .evidence_calls import NEAR as NEAR_CALLING
from .evidence_calls import Calls
from .evidence_measures import Row, read_rows, scores_of

LICENCES: Final[Mapping[str, str]] = {"cruxeval (ZeroEval)": "Apache-2.0", "math_l5 (ZeroEval)": "Apache-2.0"}
"""Sets that the shipped card may be trained on, with their licences. Results of BFCL are for evaluation only."""
FARS: Final = ("gpt-4o-2024-08-06", "claude-3-5-sonnet-20241022")
LEAST_GAP: Final = 0.1
"""By which the far model has to do better than one that drafts."""
FARTHEST: Final = 2.0
"""Deviations beyond which a measure counts no more: a role card meets tasks that it was not trained on, such as very short outputs."""
MOST_MOVED: Final = 1.0
"""Log odds up to which a length counts farther out, as much as an invalid draft loses: where all outputs are longer than those of the sets,
it still tells them apart, and another agent's opinion still counts for more."""
MEASURES: Final[Mapping[str, tuple[str, ...]]] = {
    DRAFT: ("is empty", LENGTH),
    SCHEMA: ("is valid",),
    GROUNDING: ("is grounded",),
    CONFIDENCE: ("lowest confidence",),
    **dict.fromkeys(OPINION_ROLES, ("agrees", "says nothing", LENGTH)),
}
"""Measures of each look that a role card weighs: those that mean the same for every model and task."""
BY_HAND: Final[Mapping[str, tuple[float, float, float]]] = {
    "is valid": (1.0, 1.0, 1.0),
    "is grounded": (1.0, 1.0, 2.0),
    "lowest confidence": (0.0, 2.0, 0.5),
}
"""Centre, scale and the draft's weight of measures that no recorded set has: an invalid draft loses 1 in log odds, an ungrounded one 2,
and one whose least confident words have a probability of 0.12 in place of 0.5 loses 0.5."""
_OPINION: Final = Cost(seconds=1.0)
QUICK_STEP: Final = 4
"""A quick run learns role cards on every so many tasks: reading the drafts of all models takes long."""


@cache
def role_examples(folder: Path, name: str, *, step: int = 1) -> DraftExamples:
    """Return drafts of all small models of a set that are clearly worse than a far one, each with two opinions, drawn at random.

    They are those on every `step`-th task.
    """
    rows = read_rows(folder / f"{name.split()[0]}.jsonl.gz")[::step]
    if name == "bfcl":
        calls = Calls(rows)
        parts = [calls.examples(draft, [other for other in NEAR_CALLING if other != draft]) for draft in NEAR_CALLING]
    else:
        parts = [part for draft in NEAR_ANSWERING for part in _answers(rows, draft)]
    parts = [part for part in parts if (part.far_scores - part.draft_scores).mean() >= LEAST_GAP]
    return merged([by_role_examples(part, _drawn(part)) for part in parts])


def _answers(rows: Sequence[Row], draft: str) -> list[DraftExamples]:
    """Return the drafts of a model with the opinions that will be drawn, next to each far model: only the scores depend on that."""
    others = [other for other in NEAR_ANSWERING if other != draft]
    kept = [{draft, *FARS, *pair} for pair in _drawn_pairs(others, len(rows))]
    told = [{**row, "outcomes": {model: row["outcomes"][model] for model in names}} for row, names in zip(rows, kept, strict=True)]
    first = answer_examples(told, draft, others, FARS[0])
    return [replace(first, far=far, far_scores=scores_of(rows, far)) for far in FARS]


def by_role_examples(examples: DraftExamples, opinions: Sequence[Sequence[str]]) -> DraftExamples:
    """Return the examples with roles in place of models, and the measures of role cards. `opinions`: who gives them, for each example."""
    both = [_roles(found, given) for found, given in zip(examples.findings, opinions, strict=True)]
    count = max(map(len, opinions))
    looks = [*(Look(name=name) for name in FREE), *(Look(name=name, cost=_OPINION) for name in OPINION_ROLES[:count])]
    return DraftExamples(DRAFT_ROLE, FAR_ROLE, looks, both, examples.draft_scores, examples.far_scores)


def merged(parts: Sequence[DraftExamples]) -> DraftExamples:
    """Return the examples of all parts."""
    first = parts[0]
    findings = [found for part in parts for found in part.findings]
    draft, far = (numpy.concatenate([getattr(part, scores) for part in parts]) for scores in ("draft_scores", "far_scores"))
    return DraftExamples(first.draft, first.far, first.looks, findings, draft, far)


def role_card(sets: Sequence[DraftExamples]) -> EscalationCard:
    """Return the card of some sets, in which the order of the opinions makes no difference."""
    whole = merged(sets)
    card = train_escalation(merged([whole, _swapped(whole)]), farthest=FARTHEST)
    card = card.model_copy(update={"traces": len(whole.findings)})
    return card.model_copy(update={"fits": tuple(_far_reaching(card, _with_hand_set(card, fit)) for fit in card.fits)})


def _names(card: EscalationCard, fit: Fit) -> list[str]:
    """Return the name of each measure of a fit; empty: it is none of a look's own."""
    looks = looks_of(card.looks, fit.seen)
    names = [name for look in looks for name in ("", *look.measures)]
    return names + [""] * (len(measures_of(looks, {})) - len(names))


def _far_reaching(card: EscalationCard, fit: Fit) -> Fit:
    """Return the fit in which lengths count until they have moved one of the log odds by `MOST_MOVED`, and at least to `FARTHEST`."""
    weights = zip(_names(card, fit), fit.draft, fit.far, strict=False)
    reach = [_reach(*moved) if name == LENGTH else FARTHEST for name, *moved in weights]
    return fit.model_copy(update={"farthest": tuple(reach)})


def _reach(*weights: float) -> float:
    most = max(map(abs, weights))
    return round(max(FARTHEST, MOST_MOVED / max(most, MOST_MOVED / WIDEST)), 6)


def _with_hand_set(card: EscalationCard, fit: Fit) -> Fit:
    """Return the fit with the weights that are set by hand."""
    names = _names(card, fit)
    places = {place: BY_HAND[name] for place, name in enumerate(names) if name in BY_HAND}
    centre, scale, draft = list(fit.centre), list(fit.scale), list(fit.draft)
    for place, (middle, deviation, weight) in places.items():
        centre[place], scale[place], draft[place] = middle, deviation, weight
    return fit.model_copy(update={"centre": tuple(centre), "scale": tuple(scale), "draft": tuple(draft)})


def _drawn(examples: DraftExamples) -> list[tuple[str, str]]:
    """Draw two opinions for each example."""
    return _drawn_pairs([look.name for look in examples.looks if not look.is_free], len(examples.findings))


def _drawn_pairs(others: Sequence[str], count: int) -> list[tuple[str, str]]:
    pairs = list(permutations(others, 2))
    return [pairs[place] for place in numpy.random.default_rng(0).integers(0, len(pairs), count)]


def _roles(found: Mapping[str, Signal], opinions: Sequence[str]) -> dict[str, Signal]:
    kept = {name: _kept(name, found.get(name, Signal())) for name in FREE if name in MEASURES}
    given = zip(OPINION_ROLES, opinions, strict=False)
    return {PROMPT: Signal(), **kept, **{role: _kept(role, found[model]) for role, model in given}}


def _kept(role: str, signal: Signal) -> Signal:
    """Return the measures of a role card, unknown ones as NaN so that each set has the same. Calls are as long as they are written."""
    measures = dict(signal.measures)
    if signal.answer is not None:
        parts = signal.answer.parts
        measures = {"is empty": float(not parts), LENGTH: math.log1p(sum(map(len, parts))), **measures}
    return Signal({name: measures.get(name, math.nan) for name in MEASURES[role]}, signal.answer)


def _swapped(examples: DraftExamples) -> DraftExamples:
    """Return the examples with the two opinions in the other order."""
    first, second = OPINION_ROLES[:2]
    findings = [{**found, first: found[second], second: found[first]} for found in examples.findings]
    return DraftExamples(examples.draft, examples.far, examples.looks, findings, examples.draft_scores, examples.far_scores)
