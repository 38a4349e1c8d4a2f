"""Evidence about a draft: before it calls a tool that may change something, and at its end, where the next agent may take over.

In arbitration, a far agent's answer to an escalated task is a verdict on the draft. Where it is the same answer, the draft ships, and both
count as right. Where it is not, one of them is wrong. With p and q, the probabilities of a right draft and of a right far answer, the draft
is wrong because the far answer is right with probability q (1 - p) / (1 - p q); that is the weight of its label, and
p (1 - q) / (1 - p q) that of the far answer's. They are on record for `nearfar policy train`, marked as what they are, and a report takes
their place.
"""

from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

from ...protocols import ConfigError, Message, PrivacyViolation, Side
from ..agents import AgentHandle, AgentPool
from ..routing import Router
from ..routing.answers import Answer, agree
from ..routing.call_looks import judges_texts
from ..routing.drafts import DraftChoice, first_day_escalation
from ..routing.eligibility import SIDES_OF_MODE
from ..routing.escalation import Action, Escalation
from ..routing.looks import FREE, GROUNDING, SCHEMA, Signal, free_findings, objection
from ..routing.meaning import cluster_share
from ..routing.outcome_records import drafts_of, escalated_to, verdicts_of
from ..task import Task, last_words
from ..task.decisions import AnswerSource, Arbitration, ExtractedAnswer, VerifiedDraft, WeighedDraft
from ..task.events import AttemptEnded
from ..task.labels import Label
from ..task.results import Attempt
from ..task.routing_policy import FALLBACK_ERRORS, VerifierKind
from .calls import CallLog, TaskRuntime, emit
from .state import TaskContext, TaskState, as_json, label_of, value_of
from .turn import AgentTurn
from .verifying import (
    UNDECIDED,
    AgreementVerifier,
    AskedAgent,
    CandidateEvidence,
    GroundedVerifier,
    JudgeVerifier,
    Points,
    PriorPoints,
    SchemaVerifier,
    Verification,
)

if TYPE_CHECKING:
    from .graphs import TaskNodes

_LEAST_DIFFERENCE: Final = 1e-9
_MARKED: Final = (AnswerSource.FIELD, AnswerSource.BOXED, AnswerSource.ANSWER_LINE, AnswerSource.CHOICE)
"""Parts of a text that say of themselves that they are the answer."""


class Judging:
    """Judges one draft. Make it, ask for the `objection`, then look at what it found.

    Args:
        turn: at whose end the draft stands.
        nodes: of the graph, with the agents, the router, the escalations that were loaded and the priors that were written.
        log: takes the calls of agents that are asked.
        context: tools of the run.
    """

    def __init__(self, turn: AgentTurn, nodes: "TaskNodes", log: CallLog, context: TaskContext) -> None:
        assert turn.draft is not None, "an attempt is under way"
        self.opinions: dict[str, str] = {}
        """Answers of other agents that were asked, by name."""
        self.extracted: dict[str, ExtractedAnswer] = {}
        """The parts of these answers that were compared with the draft's, by name."""
        self.verified: dict[str, VerifiedDraft] = {}
        """Verdicts of judges, by verifier."""
        self.praise = "the answer stands"
        """Why it is accepted."""
        self._turn = turn
        self._draft: Attempt = turn.draft
        self._nodes = nodes
        self._pool = nodes.pool
        self._log = log
        self._context = context
        self._escalations = nodes.escalations
        self._router = nodes.router
        self._free: dict[str, Verification] = {}
        """Results of the verifiers that ask no agent, by look."""
        self._chances: tuple[float | None, float | None] = (None, None)
        """Probabilities that the draft is right, and that the far agent would be; None: they were not weighed."""
        self._weighed: WeighedDraft | None = None
        """The probabilities of the card alone."""
        self._messages = [value_of(Message, message) for message in turn.state["messages"]]
        self._compared: list[Answer] = []

    @cached_property
    def answer(self) -> Answer:
        """The answer that was found in the draft."""
        return Answer.of_text(self._text, prompt=self._asked, schema=self._turn.task.output_schema)

    @property
    def findings(self) -> dict[str, Any]:
        """All that the attempt's record tells of the judgement."""
        is_compared = bool(self._compared)
        p_right, p_far = self._chances
        return {
            "is_grounded": self._known(GROUNDING),
            "opinions": self.opinions,
            "extracted": self.answer.found if is_compared else None,
            "extracted_opinions": self.extracted,
            "cluster_share": cluster_share(self.answer, self._compared) if is_compared else None,
            "p_right": p_right,
            "p_far": p_far,
            "weighed": self._weighed,
            "verified": self.verified,
        }

    def _known(self, look: str) -> bool | None:
        """Return the result of a free verifier; None: it could not tell."""
        found = self._free.get(look)
        return None if found is None or not found.signal.measures else bool(found.score)

    @property
    def _may_ground(self) -> bool:
        """The agent could have looked for what it says: by tools of the run, or by tools of the caller, which has just run some."""
        task = self._turn.task
        if task.output_schema is not None or task.caller is None:
            return bool(self._context.tools) and task.output_schema is None
        asked = max(place for place, message in enumerate(self._messages) if message.role == "user")
        has_results = any(message.tool_result is not None for message in self._messages[asked:])
        return has_results or any(not task.caller.has(name) for name in self._context.tools)

    async def objection(self) -> str | None:
        """Return the reason to let the next agent take over, or None. Raises `ConfigError` for an escalation that was trained for other
        agents or looks."""
        following = self._following
        for name, verifier in ((SCHEMA, SchemaVerifier()), (GROUNDING, GroundedVerifier())):
            self._free[name] = await verifier.verify(self._turn.task, [self._text], self._evidence)
        if following.side is Side.NEAR or self._turn.handle.side is Side.FAR:
            return (await self._fixed())[0]  # the budget chooses once a task, and cards know drafts of near agents
        choice = draft_choice(self._turn, following, self._context, self._router)
        if not self._text.strip():
            choice.force()
            return (await self._fixed())[0]
        card = self._card(following, is_steered=choice.is_steered)
        return await (self._checked(choice) if card is None else self._learned(card, choice))

    @cached_property
    def _following(self) -> AgentHandle:
        """The agent that would take over."""
        return self._pool[self._turn.decision.candidates[self._turn.position + 1]]

    @cached_property
    def _evidence(self) -> CandidateEvidence:
        return CandidateEvidence(self._messages[:-1], self._may_ground, self._context.specs, f"{self._turn.position}")

    def _card(self, following: AgentHandle, *, is_steered: bool) -> Escalation | None:
        """Return the escalation that weighs the evidence: the policy's own, or the default one where a budget steers the choice; None: the
        checks decide.

        Raises `ConfigError` for one that was trained for other agents or looks.
        """
        path = self._turn.task.policy.evidence.escalation
        default = self._default_card(following) if is_steered else None
        if path is None:
            return default
        if path not in self._escalations:
            self._escalations[path] = Escalation.load(path)
        others = [handle.name for handle in self._pool if handle.side is Side.NEAR and handle is not self._turn.handle]
        known = self._escalations[path]
        if not judges_texts(known.card.looks):
            return default
        judges = self._turn.task.policy.evidence.verifiers
        known.require(draft=self._turn.handle.name, far=following.name, looks=[*FREE, *others, *judges])
        return known

    @property
    def _card_name(self) -> str:
        path = self._turn.task.policy.evidence.escalation
        return "" if path is None else str(path)

    def _corrected(self, escalation: Escalation) -> Escalation:
        task, correction = self._turn.task, self._router.outcomes.card_correction(self._card_name)
        if not task.policy.router.learn:
            return escalation
        draft = correction.offset(drafts_of(escalation.card.draft), task.task_class)
        return escalation.moved(draft=draft, far=correction.offset(escalated_to(escalation.card.far), task.task_class))

    def _default_card(self, following: AgentHandle) -> Escalation | None:
        """Return the shipped escalation for the agents at hand; None where the checks decide."""
        task, handle = self._turn.task, self._turn.handle
        second = task.policy.evidence.second_opinion
        others = [each.name for each in self._pool if each.side is Side.NEAR and each is not handle]
        opinions = others if second is None else [near_agent(self._pool, second).name]
        return first_day_escalation(task.policy, self._turn.decision, draft=handle.name, far=following.name, others=opinions)

    @property
    def _text(self) -> str:
        return self._messages[-1].text

    @property
    def _asked(self) -> str:
        return last_words(self._turn.task.messages)

    async def _checked(self, choice: DraftChoice) -> str | None:
        """Let the fixed checks decide, under the budget if there is one."""
        reason, agrees = await self._fixed()
        verdict = choice.weigh_checks(reason, agrees=agrees, confidence=self._draft.confidence)
        self._chances = verdict.p_draft, verdict.p_far
        self.praise = verdict.reason
        return verdict.reason if verdict.escalates else None

    async def _fixed(self) -> tuple[str | None, bool | None]:
        """Apply all checks to the draft: each can reject it by itself; those that cost something come last.

        Return the objection, or None, and whether another agent agrees; None: none was asked.
        """
        policy, agrees = self._turn.task.policy, None
        reason = objection(self._text, confidence=self._draft.confidence, minimum_confidence=policy.minimum_confidence)
        if reason is None and self._known(GROUNDING) is False:
            reason = self._free[GROUNDING].because
        if reason is None and (second := policy.evidence.second_opinion) is not None:
            found = await self._verified(second)
            agrees = None if found.signal.answer is None else bool(found.score)
            reason = None if found.is_accepted else found.because
        for kind in policy.evidence.verifiers:
            if reason is None and not (found := await self._verified(kind)).is_accepted:
                reason = found.because
        return reason, agrees

    async def _learned(self, escalation: Escalation, choice: DraftChoice) -> str | None:
        """Look until a further look is not worth its price any more, with the probabilities as outcomes have corrected them."""
        corrected = self._corrected(escalation)
        findings = {name: found for name, found in self._free_findings().items() if name in escalation.looks}
        while True:
            verdict = choice.weigh(corrected, findings)
            if verdict.look is None:
                self.praise = verdict.reason
                self._chances = verdict.p_draft, verdict.p_far
                draft, far = escalation.probabilities(findings)
                self._weighed = WeighedDraft(card=self._card_name, p_draft=draft, p_far=far)
                return verdict.reason if verdict.action is Action.ESCALATE else None
            findings[verdict.look] = (await self._verified(verdict.look)).signal

    def _free_findings(self) -> dict[str, Signal]:
        expected = {each.agent: each.estimate for each in self._turn.decision.considered}
        return free_findings(
            self._asked,
            self._text,
            answer=self.answer,
            is_valid=self._known(SCHEMA),
            is_grounded=self._known(GROUNDING),
            confidence=self._draft.confidence,
            probabilities={agent: each.predicted for agent, each in expected.items() if each is not None},
        )

    async def _verified(self, name: str) -> Verification:
        """Ask a verifier by its name: a kind of verdict, or the near agent that gives a second opinion. One that cannot be had speaks
        neither for nor against the draft."""
        kinds = self._turn.task.policy.evidence.verifiers
        try:
            return await (self._judged(VerifierKind(name)) if name in kinds else self._compared_with(near_agent(self._pool, name)))
        except FALLBACK_ERRORS as error:  # on record as a failed call
            return Verification(UNDECIDED, str(error))

    async def _compared_with(self, handle: AgentHandle) -> Verification:
        """Ask a near agent for a second opinion."""
        asked = AskedAgent(handle, self._log, "second_opinion")
        verifier = AgreementVerifier(asked, is_again=handle is self._turn.handle)
        found = await verifier.verify(self._turn.task, [self._text], self._evidence)
        assert found.signal.answer is not None, "a second opinion has an answer, be it empty"
        self.opinions[handle.name] = verifier.said
        self._compared.append(found.signal.answer)
        if found.signal.answer.found is not None:
            self.extracted[handle.name] = found.signal.answer.found
        return found

    async def _judged(self, kind: VerifierKind) -> Verification:
        """Ask the judge for its verdict, corrected by the outcomes of earlier ones."""
        task, handle = self._turn.task, self._judge
        log = self._log_aside() if kind is VerifierKind.RUBRIC else self._log
        correction = self._router.outcomes.card_correction(verdicts_of(kind))
        verifier = JudgeVerifier(
            AskedAgent(handle, log, kind),
            lambda raw: correction.corrected(handle.name, task.task_class, raw).probability if task.policy.router.learn else raw,
            self._points(kind),
        )
        try:
            found = await verifier.verify(task, [self._text], self._evidence)
        finally:
            if log is not self._log:
                self._log.made.extend(log.made)
        if found.raw is not None:
            self.verified[kind] = VerifiedDraft(
                judge=handle.name,
                raw=found.raw,
                score=found.score,
                because=found.because,
                dollars=found.cost.dollars,
                seconds=found.cost.seconds,
            )
        return found

    def _log_aside(self) -> CallLog:
        """Return a log for a judge that is told of faults. They are no words of this run: private ones do not keep it on the device."""
        privacy = self._context.privacy
        context = self._context if privacy is None else replace(self._context, privacy=privacy.aside())
        return CallLog(self._turn.state, self._log.runtime.override(context=context))

    @property
    def _judge(self) -> AgentHandle:
        """The agent that gives verdicts. Raises `ConfigError` for an unknown one, and `PrivacyViolation` for one on a side that the mode
        leaves out."""
        name, mode = self._turn.task.policy.evidence.judge, self._turn.task.policy.mode
        found = self._following if name is None else next((handle for handle in self._pool if handle.name == name), None)
        if found is None:
            raise ConfigError(f"there is no agent {name!r} to judge drafts", hint="[policy.evidence] judge names an agent")
        if found.side not in SIDES_OF_MODE[mode]:
            raise PrivacyViolation(f"mode {mode} leaves the {found.side} side out, where the judge {found.name} is")
        return found

    def _points(self, kind: VerifierKind) -> Points | None:
        if kind is VerifierKind.PRIOR_FIRST:
            opening = value_of(Label, self._turn.state["opening"])
            writers = dict.fromkeys((self._following, self._judge))
            asked = [AskedAgent(handle, self._log, "prior", opening) for handle in writers]
            return PriorPoints(self._nodes.priors, asked, self._context.specs)
        return self._faults if kind is VerifierKind.RUBRIC else None

    async def _faults(self, task: Task) -> list[str]:
        """Return that the faults which reports have named are absent, as points for the judge."""
        reach = label_of(self._turn.state).tier  # the judge's words stand in the record of this run
        found = self._router.outcomes.reported_faults(task.task_class, user=task.user, reach=reach)
        return [f"It is free of an earlier fault: {fault}" for fault in found]


async def judged(turn: AgentTurn, draft: Attempt, nodes: "TaskNodes", context: TaskContext, runtime: TaskRuntime) -> TaskState:
    """Let the evidence decide about the answer of the `draft`: it stands, or the next agent takes over."""
    log = CallLog(turn.state, runtime)
    judging = Judging(turn, nodes, log, context)
    reason = await judging.objection()
    draft = draft.model_copy(update=judging.findings)
    if reason is None:
        return {**turn.end(draft, "accepted", judging.praise, runtime), "calls": log.as_json}
    ended: TaskState = {**turn.end(draft, "rejected", reason, runtime), "calls": log.as_json}
    return {**ended, **turn.standing_by(turn.state["messages"])} if (draft.answer or "").strip() else ended


def draft_choice(turn: AgentTurn, following: AgentHandle, context: TaskContext, router: Router, *, is_free: bool = True) -> DraftChoice:
    """Return the choice about a turn's draft that the budget is held over.

    `following`: the far agent that would take over. `is_free`: False where the budget has nothing to choose.
    """
    state, privacy, account = turn.state, context.privacy, context.account
    may_follow = privacy is None or privacy.may_take_over(following, label_of(state), value_of(Label, state["opening"]))
    commitments = None if account is None else account.commitments
    return DraftChoice(router.drafts, turn.task, turn.decision, following.name, commitments=commitments, is_free=is_free and may_follow)


def near_agent(pool: AgentPool, name: str) -> AgentHandle:
    """Return a near agent by name. Raises `ConfigError` for a far or unknown one: second opinions stay on this device."""
    found = next((handle for handle in pool if handle.name == name and handle.side is Side.NEAR), None)
    if found is None:
        raise ConfigError(f"there is no agent {name!r} on this device to give a second opinion", hint="[other_near.NAME] adds one")
    return found


def end_arbitrated(turn: AgentTurn, answer: Attempt, runtime: TaskRuntime) -> TaskState:
    """Accept an answer that follows another agent's; where it confirms the draft that was escalated, the draft ships in its place.

    The far agent's own answer stands where its user has seen some of it, or where it has called tools.
    """
    attempts = [value_of(Attempt, attempt) for attempt in turn.state["attempts"]]
    ruling = arbitration_of(attempts[-1], answer, turn.task)
    if ruling is None:
        return turn.end(answer, "accepted", "the answer stands", runtime)
    draft = attempts[-1].model_copy(update={"arbitration": ruling})
    standby = turn.state["standby"]
    if standby is None or not ruling.confirmed or turn.was_shown(runtime) or _has_called(turn):
        reason = f"the answer stands; it {'confirms' if ruling.confirmed else 'differs from'} the draft of {draft.agent}"
        ended = turn.end(answer, "accepted", reason, runtime)
        return {**ended, "attempts": [*turn.state["attempts"][:-1], as_json(draft), ended["attempts"][-1]]}
    reason = f"{draft.reason}, but {answer.agent} gives the same answer, so the draft ships"
    draft = draft.model_copy(update={"outcome": "accepted", "reason": reason})
    ended = turn.end(answer, "accepted", f"it confirms the draft of {draft.agent}, which ships", runtime)
    emit(runtime, AttemptEnded(attempt=draft))
    return {**ended, "attempts": [*turn.state["attempts"][:-1], as_json(draft), ended["attempts"][-1]], "messages": standby}


def arbitration_of(draft: Attempt, answer: Attempt, task: Task) -> Arbitration | None:
    """Return the verdict of an answer on the draft before it; None where no card has weighed the draft, or it was not escalated.

    Texts that differ confirm each other by answers that both have marked, such as by `\\boxed{}` or a field of the schema: the last number
    of two reports may be the same by chance.
    """
    weighed = draft.weighed
    if weighed is None or draft.outcome != "rejected" or not (draft.answer or "").strip() or answer.side is not Side.FAR:
        return None
    confirms = partial(_confirms, answer.answer, task)
    confirmed = confirms(draft.answer)
    p = weighed.p_draft if draft.p_right is None else draft.p_right
    q = weighed.p_far if draft.p_far is None else draft.p_far
    draft_weight, far_weight = label_weights(p, q, confirmed=confirmed)
    return Arbitration(
        by=answer.agent,
        confirmed=confirmed,
        draft_weight=draft_weight,
        far_weight=far_weight,
        opinions={agent: confirms(opinion) for agent, opinion in draft.opinions.items()},
    )


def _confirms(answer: str | None, task: Task, other: str | None) -> bool:
    """Return whether an answer says the same as another one."""
    if agree(answer, other):
        return True
    first, second = (Answer.of_text(text, prompt=last_words(task.messages), schema=task.output_schema) for text in (answer, other))
    return first.agrees(second) and all(each.found is not None and each.found.source in _MARKED for each in (first, second))


def label_weights(p_draft: float, p_far: float, *, confirmed: bool) -> tuple[float, float]:
    """Return the weights of the labels of the draft and of the far answer; `p_draft`, `p_far`: probabilities that they are right."""
    differ = 1 - p_draft * p_far
    if confirmed or differ < _LEAST_DIFFERENCE:
        return 1.0, 1.0
    return p_far * (1 - p_draft) / differ, p_draft * (1 - p_far) / differ


def _has_called(turn: AgentTurn) -> bool:
    """Return whether the agent has called tools in the attempt under way."""
    return any(message["tool_calls"] for message in turn.state["messages"][len(turn.task.messages) :])
