"""Recorded drafts, judged as a cascade judges them: by the card that the policy names, the default card, or the fixed checks."""

from collections.abc import Mapping
from dataclasses import dataclass

from ....protocols import Side
from ...routing.answers import agree
from ...routing.call_looks import judges_texts
from ...routing.cards import first_day_escalation
from ...routing.drafts import DraftChoice, unlearned_chances
from ...routing.escalation import Action, Escalation
from ...routing.escalation_training import draft_examples_of
from ...routing.looks import PROMPT, Cost, Signal, prompt_surface
from ...routing.router import Router
from ...routing.traces import AgentOutcome, Trace
from ...task.decisions import RouteDecision
from ...task.policy import Policy
from ...task.task import Task
from . import Recording


@dataclass(frozen=True, slots=True)
class JudgedDraft:
    """A draft, and the choice about it."""

    near: str
    """The agent that has drafted."""
    far: str
    """The agent that would take over."""
    advantage: float
    """Utility that the far agent is ahead by, by the evidence that was looked at."""
    escalates: bool


class DraftReplay:
    """Judges the drafts of a recording. Only what the traces tell is looked at: answers, confidences, and what checks found.

    Args:
        recording: whose drafts are judged.
        policy: that names the evidence.

    Raises `ConfigError` where the policy's escalation cannot be loaded.
    """

    def __init__(self, recording: Recording, policy: Policy) -> None:
        self._recording = recording
        self._policy = policy
        self._evidence = policy.evidence
        self._minimum_confidence = policy.minimum_confidence
        named = None if policy.evidence.escalation is None else Escalation.load(policy.evidence.escalation)
        self._card = named if named is not None and judges_texts(named.card.looks) else None
        self._findings: dict[tuple[str, str], list[Mapping[str, Signal]]] = {}

    def judge(self, router: Router, task: Task, decision: RouteDecision, place: int) -> JudgedDraft | None:
        """Judge the draft of the case at a place as the router's budget asks for; None where the first agent's answer stands anyway.

        Raises `ConfigError` for a card that was trained for other agents or looks.
        """
        near, far = decision.candidates[0], decision.candidates[1] if len(decision.candidates) > 1 else ""
        sides = self._recording.sides
        if not decision.judged or sides[near] is not Side.NEAR or sides.get(far) is not Side.FAR:
            return None
        choice = DraftChoice(router.drafts, task, decision, far)
        case = self._recording.cases[place]
        if self._is_unusable(case.outcomes[near]):
            choice.force()
            return JudgedDraft(near, far, choice.advantage(0.0, 1.0), escalates=True)
        known = self._known(near, far)[place]
        card = self._weighing(decision, known, far)
        return self._checked(choice, case, near, far) if card is None else self._learned(card, choice, decision, place, far)

    def _weighing(self, decision: RouteDecision, known: Mapping[str, Signal], far: str) -> Escalation | None:
        """Return the card that weighs the evidence; None: the fixed checks decide."""
        near = decision.candidates[0]
        if self._card is not None:
            self._card.require(draft=near, far=far, looks=[*known, *self._card.looks])
            return self._card
        second = self._evidence.second_opinion
        asked = self._others(near) if second is None else [second]
        return first_day_escalation(self._policy, decision, draft=near, far=far, others=[name for name in asked if name in known])

    def _checked(self, choice: DraftChoice, case: Trace, near: str, far: str) -> JudgedDraft:
        draft = case.outcomes[near]
        objection, agrees = self._objection(case, draft)
        verdict = choice.weigh_checks(objection, agrees=agrees, confidence=draft.confidence)
        chances = unlearned_chances(agrees if objection is None else False, confidence=draft.confidence, prompt=case.prompt)
        return JudgedDraft(near, far, choice.advantage(*chances), verdict.escalates)

    def _learned(self, card: Escalation, choice: DraftChoice, decision: RouteDecision, place: int, far: str) -> JudgedDraft:
        near = decision.candidates[0]
        known = self._known(near, far)[place]
        predicted = {each.agent: each.estimate.predicted for each in decision.considered if each.estimate is not None}
        found = {**known, PROMPT: prompt_surface(self._recording.cases[place].prompt, predicted)}
        seen = {look.name: found.get(look.name, Signal()) for look in card.card.looks if look.is_free}
        while (verdict := choice.weigh(card, seen)).look is not None:
            seen[verdict.look] = found.get(verdict.look, Signal())
        return JudgedDraft(near, far, choice.advantage(verdict.p_draft, verdict.p_far), verdict.action is Action.ESCALATE)

    def _known(self, near: str, far: str) -> list[Mapping[str, Signal]]:
        """Return what all looks would find, for each case."""
        if (near, far) not in self._findings:
            opinions = {agent: Cost() for agent in self._others(near)}
            examples = draft_examples_of(self._recording.cases, draft=near, far=far, opinions=opinions)
            self._findings[near, far] = list(examples.findings)
        return self._findings[near, far]

    def _others(self, near: str) -> list[str]:
        return [agent for agent, side in self._recording.sides.items() if side is Side.NEAR and agent != near]

    def _objection(self, case: Trace, draft: AgentOutcome) -> tuple[str | None, bool | None]:
        """Return the objection of the fixed checks, and whether the second agent agrees; None: it was not asked, or is not on record."""
        if draft.confidence is not None and draft.confidence < self._minimum_confidence:
            return f"confidence {draft.confidence:.2f} is below {self._minimum_confidence:.2f}", None
        if case.tools and draft.is_grounded is False:
            return "the answer occurs in no tool result", None
        second = case.outcomes.get(self._evidence.second_opinion or "")
        if second is None or second.answer is None or draft.answer is None:
            return None, None
        agrees = agree(draft.answer, second.answer)
        return None if agrees else "the second opinion is another", agrees

    @staticmethod
    def _is_unusable(draft: AgentOutcome) -> bool:
        return draft.is_valid is False or (draft.answer is not None and not draft.answer.strip())
