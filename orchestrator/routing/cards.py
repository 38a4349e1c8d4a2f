"""Cards by role: an escalation that was learned from the drafts, opinions and far answers of many models, and is bound to no agent.

On the first day no escalation was trained for the user's agents. A role card knows its agents as `draft`, `opinion 1`, `opinion 2` and
`far`, and weighs only measures that mean the same for every model: agreement, how several opinions relate, empty answers, lengths of
outputs, validity, grounding and confidence. It is trained by `scripts/default_card.py`.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from ...protocols import ConfigError
from ..task.decisions import RouteDecision
from ..task.policy import Policy
from .drafts import cost_of
from .escalation import CardOrigin, Escalation, EscalationCard, Fit, LearnedLook, Outlook, read_card
from .looks import FREE, Cost

DRAFT_ROLE: Final = "draft of a near agent"
FAR_ROLE: Final = "far agent"
OPINION_ROLES: Final = tuple(f"opinion {number}" for number in range(1, 6))
"""Names of the looks of a role card in place of the agents' names."""
DEFAULT_CARD: Final = Path(__file__).with_name("default_card.json")
MOST_OPINIONS: Final = 2
"""Opinions that the default card knows how to weigh together."""
_PREDICTED: Final = "log odds of "
"""Begins the name of a measure that a head predicts for an agent."""
_NOMINAL: Final = Cost(seconds=1.0)
"""Cost of an opinion of which no estimate is known; not nothing, so that it is asked for only where it may change the decision."""


def default_escalation(*, draft: str, far: str, opinions: Sequence[str], costs: Mapping[str, Cost] | None = None) -> Escalation:
    """Return the shipped escalation for agents that nothing was learned of.

    Args:
        draft: name of the near agent whose drafts are judged.
        far: name of the far agent that would take over.
        opinions: names of near agents that may be asked for an opinion; the first two are used.
        costs: of asking them, by name.
    """
    return Escalation(bind(_default_card(), draft=draft, far=far, opinions=opinions[:MOST_OPINIONS], costs=costs))


def first_day_escalation(policy: Policy, decision: RouteDecision, *, draft: str, far: str, others: Sequence[str]) -> Escalation | None:
    """Return the shipped escalation where a budget has to weigh drafts that no card of the policy knows.

    None where no budget is set, the router only watches, or numpy is not installed.

    Args:
        policy: of the task.
        decision: that placed the task; it tells the expected costs.
        draft: name of the near agent whose drafts are judged.
        far: name of the far agent that would take over.
        others: names of near agents that may be asked for an opinion.
    """
    settings = policy.router
    if not settings.has_budget or settings.shadow or not _has_numpy():
        return None
    opinions = others[:MOST_OPINIONS]
    expected = {name: cost_of(decision.estimate_of(name)) for name in opinions}
    costs = {name: cost for name, cost in expected.items() if cost != Cost()}
    return default_escalation(draft=draft, far=far, opinions=opinions, costs=costs)


def bind(card: EscalationCard, *, draft: str, far: str, opinions: Sequence[str], costs: Mapping[str, Cost] | None = None) -> EscalationCard:
    """Return a role card with agents in the place of its roles, without the opinions that no agent gives. `costs`: see above.

    Raises `ConfigError` for an empty name, one that a look has already, and one agent in two roles; the draft's own may give an opinion.
    """
    names = [draft, far, *opinions]
    unfit = next((name for name in names if not name.strip() or not name.isprintable() or name in FREE), None)
    if unfit is not None:
        raise ConfigError(f"a card cannot be bound to an agent named {unfit!r}", hint="name agents as the configuration does")
    if far in (draft, *opinions) or len(set(opinions)) < len(opinions):
        raise ConfigError(f"an agent has two roles: {', '.join(names)}", hint="name each agent once")
    known = dict(zip(opinions_of(card), opinions, strict=False))
    free = [look.name for look in card.looks if look.is_free]
    looks = [look for look in card.looks if look.name in known or look.name in free]
    priced = {known[look.name]: (costs or {}).get(known[look.name], _NOMINAL) for look in looks if look.name in known}
    return _renamed(card, looks, known, priced, draft=draft, far=far)


def by_role(card: EscalationCard) -> EscalationCard:
    """Return the card with roles in the place of its agents, so that it can be shared."""
    known = dict(zip(opinions_of(card), OPINION_ROLES, strict=False))
    priced = {known[look.name]: look.cost for look in card.looks if look.name in known}
    return _renamed(card, card.looks, known, priced, draft=DRAFT_ROLE, far=FAR_ROLE)


def is_by_role(card: EscalationCard) -> bool:
    """Return whether the card names roles in place of agents."""
    return (card.draft, card.far) == (DRAFT_ROLE, FAR_ROLE)


@cache
def _has_numpy() -> bool:
    try:
        import numpy  # noqa: F401
    except ImportError:
        return False
    return True


@cache
def _default_card() -> EscalationCard:
    return read_card(DEFAULT_CARD)


def opinions_of(card: EscalationCard) -> list[str]:
    """Return the names of the looks at which another agent is asked."""
    return [look.name for look in card.looks if look.name not in FREE]


def _renamed(
    card: EscalationCard, looks: Sequence[LearnedLook], known: Mapping[str, str], priced: Mapping[str, Cost], *, draft: str, far: str
) -> EscalationCard:
    """Return the card with other names of its opinions; `priced`: their costs by the new names."""

    def name(look: str) -> str:
        return known.get(look, look)

    def has(seen: Sequence[str]) -> bool:
        return set(seen) <= {look.name for look in looks}

    def fit(each: Fit) -> Fit:
        return each.model_copy(update={"seen": tuple(map(name, each.seen))})

    def outlook(each: Outlook) -> Outlook:
        return each.model_copy(update={"seen": tuple(map(name, each.seen)), "look": name(each.look)})

    agents = {_PREDICTED + old: _PREDICTED + new for old, new in {**known, card.draft: draft, card.far: far}.items()}
    changes = [
        {
            "name": name(look.name),
            "cost": priced.get(name(look.name), look.cost),
            "measures": tuple(agents.get(measure, measure) for measure in look.measures),
        }
        for look in looks
    ]
    return card.model_copy(
        update={
            "draft": draft,
            "far": far,
            "looks": tuple(look.model_copy(update=change) for look, change in zip(looks, changes, strict=True)),
            "fits": tuple(fit(each) for each in card.fits if has(each.seen)),
            "outlooks": tuple(outlook(each) for each in card.outlooks if has((*each.seen, each.look))),
        }
    )


def baked(card: EscalationCard, *, draft: float, far: float, outcomes: int) -> EscalationCard:
    """Return the card with what was learned online: offsets of the log odds that the draft and the far agent are right.

    `outcomes`: how many have taught it.
    """
    known = card.provenance or CardOrigin()
    fits = tuple(fit.model_copy(update={"draft": _moved(fit.draft, draft), "far": _moved(fit.far, far)}) for fit in card.fits)
    return card.model_copy(update={"fits": fits, "provenance": known.model_copy(update={"baked_in": known.baked_in + outcomes})})


def _moved(weights: Sequence[float], offset: float) -> tuple[float, ...]:
    return (*weights[:-1], round(weights[-1] + offset, 6))
