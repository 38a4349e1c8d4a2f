"""Evidence about a draft: before it calls a tool that may change something, and at its end, where the next agent may take over."""

from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from ...protocols import AgentCard, ConfigError, Message, Side, StepRequest, ToolChoice
from ..agents.pool import AgentHandle, AgentPool
from ..routing.answers import Answer
from ..routing.call_looks import judges_texts
from ..routing.cards import first_day_escalation
from ..routing.checks import is_grounded, objection
from ..routing.draft_outcomes import drafts_of, escalated_to
from ..routing.drafts import DraftChoice
from ..routing.escalation import Action, Escalation
from ..routing.looks import FREE, Signal, free_findings, text_opinion
from ..routing.meaning import cluster_share
from ..routing.router import Router
from ..task.evidence import ExtractedAnswer, WeighedDraft
from ..task.labels import Label
from ..task.results import Attempt
from ..task.routing_policy import FALLBACK_ERRORS
from ..task.task import last_words
from .calls import CallLog, TaskRuntime
from .prompts import with_answer_line
from .state import TaskContext, TaskState, label_of, step_request, value_of
from .turn import AgentTurn

if TYPE_CHECKING:
    from .graphs import TaskNodes

_SECOND_SAMPLE_TEMPERATURE = {Side.NEAR: 0.7, Side.FAR: 1.0}
"""Least temperature of an agent that is asked the same again: without chance it would say the same again. Far: the providers' default."""


class Judging:
    """Judges one draft. Make it, ask for the `objection`, then look at what it found.

    Args:
        turn: at whose end the draft stands.
        pool: of which others may be asked.
        log: takes their calls.
        context: tools of the run.
        escalations: those that were loaded, by their files.
        router: holds a budget over the choices, and has learned how right the cards are.
    """

    def __init__(
        self, turn: AgentTurn, pool: AgentPool, log: CallLog, context: TaskContext, escalations: dict[Path, Escalation], router: Router
    ) -> None:
        assert turn.draft is not None, "an attempt is under way"
        self.opinions: dict[str, str] = {}
        """Answers of other agents that were asked, by name."""
        self.extracted: dict[str, ExtractedAnswer] = {}
        """The parts of these answers that were compared with the draft's, by name."""
        self.praise = "the answer stands"
        """Why it is accepted."""
        self._turn = turn
        self._draft: Attempt = turn.draft
        self._pool = pool
        self._log = log
        self._context = context
        self._escalations = escalations
        self._router = router
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
            "is_grounded": self.is_grounded,
            "opinions": self.opinions,
            "extracted": self.answer.found if is_compared else None,
            "extracted_opinions": self.extracted,
            "cluster_share": cluster_share(self.answer, self._compared) if is_compared else None,
            "p_right": p_right,
            "p_far": p_far,
            "weighed": self._weighed,
        }

    @property
    def is_grounded(self) -> bool | None:
        """True if tool results support the draft; None if there are no tools, or the task has an output schema."""
        return is_grounded(self._text, self._messages[:-1]) if self._may_ground else None

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
        following = self._pool[self._turn.decision.candidates[self._turn.position + 1]]
        if following.side is Side.NEAR or self._turn.handle.side is Side.FAR:
            return (await self._fixed())[0]  # the budget chooses once a task, and cards know drafts of near agents
        choice = draft_choice(self._turn, following, self._context, self._router)
        if not self._text.strip():
            choice.force()
            return (await self._fixed())[0]
        card = self._card(following, is_steered=choice.is_steered)
        return await (self._checked(choice) if card is None else self._learned(card, choice))

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
        known.require(draft=self._turn.handle.name, far=following.name, looks=[*FREE, *others])
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
        """Apply all checks to the draft: each can reject it by itself; the one that costs something comes last.

        Return the objection, or None, and whether another agent agrees; None: none was asked.
        """
        policy = self._turn.task.policy
        reason = objection(
            self._text,
            messages=self._messages[:-1],
            has_tools=self._may_ground,
            confidence=self._draft.confidence,
            minimum_confidence=policy.minimum_confidence,
        )
        second = policy.evidence.second_opinion
        if reason is not None or second is None:
            return reason, None
        found = await self._look(second)
        if found.answer is None:
            return None, None
        if found.measures["agrees"]:
            return None, True
        return f"{second} answers otherwise: {found.answer.found or self.opinions[second][:80]}", False

    async def _learned(self, escalation: Escalation, choice: DraftChoice) -> str | None:
        """Look until a further look is not worth its price any more, with the probabilities as outcomes have corrected them."""
        corrected = self._corrected(escalation)
        findings = {name: found for name, found in self._free().items() if name in escalation.looks}
        while True:
            verdict = choice.weigh(corrected, findings)
            if verdict.look is None:
                self.praise = verdict.reason
                self._chances = verdict.p_draft, verdict.p_far
                draft, far = escalation.probabilities(findings)
                self._weighed = WeighedDraft(card=self._card_name, p_draft=draft, p_far=far)
                return verdict.reason if verdict.action is Action.ESCALATE else None
            findings[verdict.look] = await self._look(verdict.look)

    def _free(self) -> dict[str, Signal]:
        expected = {each.agent: each.estimate for each in self._turn.decision.considered}
        return free_findings(
            self._asked,
            self._text,
            answer=self.answer,
            is_valid=None if self._turn.task.output_schema is None else True,  # what is not never comes here
            is_grounded=self.is_grounded,
            confidence=self._draft.confidence,
            probabilities={agent: each.predicted for agent, each in expected.items() if each is not None},
        )

    async def _look(self, name: str) -> Signal:
        """Ask another agent for a second opinion. Return an empty finding if it gives none."""
        text = await self._ask(near_agent(self._pool, name))
        if text is None:
            return Signal()
        # Open-ended texts are embedded, which takes some time, and the first time loads a model.
        opinion = partial(text_opinion, self.answer, text, self._asked, schema=self._turn.task.output_schema)
        found = await anyio.to_thread.run_sync(opinion)
        assert found.answer is not None, "a second opinion has an answer, be it empty"
        self._compared.append(found.answer)
        if found.answer.found is not None:
            self.extracted[name] = found.answer.found
        return found

    async def _ask(self, handle: AgentHandle) -> str | None:
        """Return another agent's answer to the same conversation, without tool calls; None if it fails."""
        try:
            agent = await handle.open()
            reply = await self._log.ask(handle, self._request(handle, agent.card), role="second_opinion")
        except FALLBACK_ERRORS:
            return None  # on record as a failed call; a look that could not be had speaks neither for nor against the draft
        self.opinions[handle.name] = reply.text
        return reply.text

    def _request(self, handle: AgentHandle, card: AgentCard) -> StepRequest:
        """Return a request with the conversation up to the draft. Tools are shown, since their calls stand in it, and none may be
        called. A general model is asked to mark its answer; models of a single world, as the shipped ones, know no such words."""
        task = self._turn.task
        messages = self._messages[:-1]
        return step_request(
            task,
            with_answer_line(messages) if card.world is None and task.output_schema is None else messages,
            f"{self._turn.position}/opinion/{handle.name}",
            tools=self._context.specs if card.capabilities.tools else (),
            tool_choice=ToolChoice.NONE,
            output_schema=task.output_schema,
            temperature=second_sample_temperature(task.policy.temperature, handle, self._turn.handle),
        )


async def judged(turn: AgentTurn, draft: Attempt, nodes: "TaskNodes", context: TaskContext, runtime: TaskRuntime) -> TaskState:
    """Let the evidence decide about the answer of the `draft`: it stands, or the next agent takes over."""
    log = CallLog(turn.state, runtime)
    judging = Judging(turn, nodes.pool, log, context, nodes.escalations, nodes.router)
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


def second_sample_temperature(temperature: float | None, handle: AgentHandle, drafted: AgentHandle) -> float | None:
    """Return the temperature at which an agent gives its opinion: raised if it is the one that drafted."""
    return max(temperature or 0.0, _SECOND_SAMPLE_TEMPERATURE[handle.side]) if handle is drafted else temperature
