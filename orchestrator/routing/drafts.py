"""The choice of a cascade: accept the draft of a near agent, or escalate, at the multiplier that the budget has at the moment."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from threading import Lock
from typing import Final

from ...protocols import Side
from ..budgets import Commitment
from ..task import Task, last_words
from ..task.decisions import AgentEstimate, RouteDecision
from ..task.modes import Mode
from ..task.results import Result
from ..task.routing_policy import ObjectiveConfig, RouterConfig
from .escalation import BETTER_USES, HAS_ROOM, Action, Escalation, EscalationDecision, price
from .looks import Cost, Signal
from .steering import FarOption, Steering
from .success import length_gain

_CHANCES: Final[Mapping[bool | None, tuple[float, float]]] = {True: (0.9, 0.91), None: (0.52, 0.8), False: (0.17, 0.69)}
"""Probability that a draft is right and that a far agent would be: if another agent agrees with the draft, if none was asked, or if a
check or another agent speaks against it. Means over three recorded sets: function calls, predicted output of code, competition maths."""
_TIE: Final = 0.1
"""Weight of the prompt's length and of the confidence, by which the drafts are told apart that the checks do not."""
_LEAST_MOVES: Final = 50
_MOST_MOVES: Final = 200


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
