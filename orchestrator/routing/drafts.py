"""The choice of a cascade, at the multiplier that the budget has at the moment: accept a draft or escalate it, by the card of its roles.

On the first day no escalation was trained for the user's agents. A role card knows its agents as `draft`, `opinion 1`, `opinion 2` and
`far`, and weighs only measures that mean the same for every model: agreement, how several opinions relate, empty answers, lengths of
outputs, validity, grounding and confidence. It is trained by `scripts/default_card.py`.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from threading import Lock
from typing import Final

from ...protocols import ConfigError, Side
from ..budgets import Commitment
from ..task import Task, last_words
from ..task.decisions import AgentEstimate, RouteDecision
from ..task.modes import Mode
from ..task.policy import Policy
from ..task.results import Result
from ..task.routing_policy import ObjectiveConfig, RouterConfig
from .escalation import (
    BETTER_USES,
    HAS_ROOM,
    Action,
    CardOrigin,
    Escalation,
    EscalationCard,
    EscalationDecision,
    Fit,
    LearnedLook,
    Outlook,
    price,
    read_card,
)
from .looks import FREE, Cost, Signal
from .steering import FarOption, Steering
from .success import length_gain

_CHANCES: Final[Mapping[bool | None, tuple[float, float]]] = {True: (0.9, 0.91), None: (0.52, 0.8), False: (0.17, 0.69)}
"""Probability that a draft is right and that a far agent would be: if another agent agrees with the draft, if none was asked, or if a
check or another agent speaks against it. Means over three recorded sets: function calls, predicted output of code, competition maths."""
_TIE: Final = 0.1
"""Weight of the prompt's length and of the confidence, by which the drafts are told apart that the checks do not."""
_LEAST_MOVES: Final = 50
_MOST_MOVES: Final = 200
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


def unlearned_chances(agrees: bool | None, *, confidence: float | None, prompt: str) -> tuple[float, float]:
    """Return the probabilities that a draft is right and that the far agent would be, where no card knows such drafts.

    Args:
        agrees: another agent agrees with the draft; False also where a check speaks against it; None: no other agent was asked.
        confidence: the lowest of its steps; None: unknown.
        prompt: of the task; the far side gains more on longer ones.
    """
    draft, far = _CHANCES[agrees]
    doubt = 0.5 - (0.5 if confidence is None else confidence)
    return min(max(draft - _TIE * (doubt + length_gain(prompt)), 0.0), 1.0), far


class Drafts:
    """How the evidence about recent drafts moved the gain that their prompts promised. Calls may come from any thread.

    A draft is worth more than its own answer: the choice can wait for the evidence. That is what an option is worth that may be
    exercised later, here on average over the recorded moves, as in `escalation`.

    Args:
        steering: of the router.
    """

    def __init__(self, steering: Steering) -> None:
        self.steering = steering
        self._moves: deque[float] = deque(maxlen=_MOST_MOVES)
        self._lock = Lock()

    def add(self, promised: float, found: float) -> None:
        """Take in the gain of a task by its prompt, and by the evidence about its draft."""
        with self._lock:
            self._moves.append(found - promised)

    def saves_the_draft(self, promised: float, *, quality: float, far_price: float, near_price: float) -> bool:
        """Return whether going far at once is worth more than a draft and its evidence; False until enough drafts were seen.

        Args:
            promised: the gain by the prompt.
            quality: worth of a right answer.
            far_price: utility that the far agent takes, with what the budget asks for.
            near_price: utility that the draft takes.
        """
        with self._lock:
            moves = list(self._moves)
        if near_price <= 0 or len(moves) < _LEAST_MOVES:
            return False
        found = [quality * (promised + move) - far_price for move in moves]
        return fmean(found) > fmean(max(each, 0.0) for each in found) - near_price


@dataclass(frozen=True, slots=True)
class CheckedDraft:
    """The choice about a draft."""

    escalates: bool
    reason: str
    p_draft: float | None = None
    """Probability that the draft is right; None: the checks alone have decided."""
    p_far: float | None = None
    """Probability that the far agent would be."""


class DraftChoice:
    """Chooses once whether a near draft stands or the far agent takes over, and lets the budget count that.

    Ask `weigh` until it names no further look, or `weigh_checks`, or tell by `force` that nothing was to be chosen.

    Args:
        drafts: of the router.
        task: of the draft.
        decision: that placed the task.
        far: name of the far agent that would take over.
        commitments: takes what a dollar rate sets aside, until the bill comes; None: no bill will come.
        is_free: False where the far agent may not be told what the run has seen: then the budget neither chooses nor counts.
    """

    def __init__(
        self,
        drafts: Drafts,
        task: Task,
        decision: RouteDecision,
        far: str,
        *,
        commitments: list[Commitment] | None = None,
        is_free: bool = True,
    ) -> None:
        self._drafts = drafts
        self._steering = drafts.steering
        self._settings: RouterConfig = task.policy.router
        self._objective: ObjectiveConfig = task.policy.objective
        self._prompt = last_words(task.messages)
        self._far = decision.estimate_of(far)
        self._near = decision.estimate_of(decision.candidates[0])
        self._cost = cost_of(self._far)
        self._commitments = commitments
        self._is_counted = is_free and decision.mode is Mode.AUTO

    @property
    def is_steered(self) -> bool:
        """Return whether a budget or a threshold is held over such choices, be it in shadow."""
        return self._is_counted and (self._settings.has_budget or bool(self._settings.threshold))

    def weigh(self, escalation: Escalation, findings: Mapping[str, Signal]) -> EscalationDecision:
        """Choose by a card: accept, escalate, or take a look. Raises what `Escalation.decide` raises."""
        verdict = escalation.decide(findings, far=self._cost, objective=self._objective, threshold=self._threshold)
        if verdict.look is None:
            self._count(verdict.p_draft, verdict.p_far, escalates=verdict.action is Action.ESCALATE)
        return verdict

    def weigh_act(self, escalation: Escalation, findings: Mapping[str, Signal]) -> EscalationDecision:
        """Choose by a card before the draft acts. Only an escalation counts: where the act runs, the draft's end is still to be judged.

        Raises what `Escalation.decide` raises.
        """
        verdict = escalation.decide(findings, far=self._cost, objective=self._objective, threshold=self._threshold)
        if verdict.action is Action.ESCALATE:
            self._count(verdict.p_draft, verdict.p_far, escalates=True)
        return verdict

    def weigh_checks(self, objection: str | None, *, agrees: bool | None, confidence: float | None) -> CheckedDraft:
        """Choose by the fixed checks: their objection decides, or under a budget or threshold the gain that it and the prompt let expect.

        The arguments besides `objection` are those of `unlearned_chances`.
        """
        if not self.is_steered:
            return CheckedDraft(objection is not None, objection or "the answer stands")
        draft, far = unlearned_chances(agrees if objection is None else False, confidence=confidence, prompt=self._prompt)
        escalates = self.advantage(draft, far) > self._threshold
        if self._settings.shadow:
            escalates = objection is not None
        self._count(draft, far, escalates=escalates)
        return CheckedDraft(escalates, _reason(objection, escalates=escalates), draft, far)

    def force(self) -> None:
        """Count an escalation that no budget could have avoided, such as that of an empty draft."""
        if self._is_counted:
            option = FarOption(0.0, near=0.0, far=0.0, dollars=None if self._far is None else self._far.dollars)
            self._steering.observe(self._settings, option, went_far=True, is_forced=True, commitments=self._commitments)

    @property
    def _threshold(self) -> float:
        """The utility by which the far agent has to be ahead of the draft, as it is served."""
        if not self._is_counted:
            return 0.0
        return self._settings.threshold if self._settings.shadow else self._asked

    @property
    def _asked(self) -> float:
        """The utility by which the budget asks the far agent to be ahead."""
        return self._steering.threshold(self._settings, None if self._far is None else self._far.dollars)

    def advantage(self, draft: float, far: float) -> float:
        """Return the utility that escalating is ahead by. `draft`, `far`: probabilities that the draft and the far agent are right."""
        return self._objective.quality * (far - draft) - price(self._cost, self._objective)

    def _count(self, draft: float, far: float, *, escalates: bool) -> None:
        if not self._is_counted:
            return
        if self._near is not None and self._far is not None:
            self._drafts.add(self._far.success.value - self._near.success.value, far - draft)
        if self._settings.has_budget:
            advantage = self.advantage(draft, far)
            went_far = advantage > self._asked if self._settings.shadow else escalates
            option = FarOption(advantage, near=draft, far=far, dollars=None if self._far is None else self._far.dollars)
            self._steering.observe(self._settings, option, went_far=went_far, commitments=self._commitments)


def expected_quality(result: Result) -> float | None:
    """Return the probability that was expected of an answer to be right: by the evidence about its draft, else by its prompt."""
    weighed = [attempt for attempt in result.attempts if attempt.p_right is not None]
    if weighed and weighed[-1].agent == result.agent:
        return weighed[-1].p_right
    if weighed and result.side is Side.FAR:
        return weighed[-1].p_far
    expected = result.decision.estimate_of(result.agent)
    return None if expected is None else expected.success.value


def cost_of(expected: AgentEstimate | None) -> Cost:
    """Return the expected cost of asking an agent; nothing where no estimate is known."""
    if expected is None:
        return Cost()
    dollars, joules = (0.0 if figure is None else figure.value for figure in (expected.dollars, expected.joules))
    return Cost(dollars=dollars, seconds=expected.seconds.value, joules=joules)


def _reason(objection: str | None, *, escalates: bool) -> str:
    if escalates:
        return objection or f"nothing speaks against the draft, {HAS_ROOM}"
    return "the answer stands" if objection is None else f"{objection}, {BETTER_USES}"


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
