"""Evidence about a draft: before it calls a tool that may change something, and at its end, where the next agent may take over."""

from functools import cached_property
from pathlib import Path
from typing import Any

import anyio.to_thread

from ...protocols import AgentCard, ConfigError, Message, Side, StepRequest, ToolChoice
from ..agents.pool import AgentHandle, AgentPool
from ..routing.answers import Answer
from ..routing.checks import is_grounded, objection
from ..routing.escalation import Action, Escalation
from ..routing.looks import FREE, Cost, Signal, free_findings, second_opinion
from ..routing.meaning import cluster_share, opinion_on
from ..task.extracted import ExtractedAnswer
from ..task.results import Attempt, RouteDecision
from ..task.routing_policy import FALLBACK_ERRORS
from ..task.task import last_words
from .calls import CallLog
from .prompts import with_answer_line
from .state import TaskContext, step_request, value_of
from .turn import AgentTurn

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
    """

    def __init__(self, turn: AgentTurn, pool: AgentPool, log: CallLog, context: TaskContext, escalations: dict[Path, Escalation]) -> None:
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
        return {
            "is_grounded": self.is_grounded,
            "opinions": self.opinions,
            "extracted": self.answer.found if is_compared else None,
            "extracted_opinions": self.extracted,
            "cluster_share": cluster_share(self.answer, self._compared) if is_compared else None,
        }

    @property
    def is_grounded(self) -> bool | None:
        """True if tool results support the draft; None if there are no tools, or the task has an output schema."""
        has_tools = bool(self._context.tools) and self._turn.task.output_schema is None
        return is_grounded(self._text, self._messages[:-1]) if has_tools else None

    async def objection(self) -> str | None:
        """Return the reason to distrust the draft, or None. Raises `ConfigError` for an escalation that was trained for other agents or
        looks."""
        path = self._turn.task.policy.evidence.escalation
        following = self._pool[self._turn.decision.candidates[self._turn.position + 1]]
        if path is None or not self._text.strip() or following.side is Side.NEAR:
            return await self._fixed()
        if path not in self._escalations:
            self._escalations[path] = Escalation.load(path)
        return await self._learned(self._escalations[path], following)

    @property
    def _text(self) -> str:
        return self._messages[-1].text

    @property
    def _asked(self) -> str:
        return last_words(self._turn.task.messages)

    async def _fixed(self) -> str | None:
        """Apply all checks to the draft: each can reject it by itself; the one that costs something comes last."""
        policy = self._turn.task.policy
        reason = objection(
            self._text,
            messages=self._messages[:-1],
            has_tools=bool(self._context.tools) and self._turn.task.output_schema is None,
            confidence=self._draft.confidence,
            minimum_confidence=policy.minimum_confidence,
        )
        second = policy.evidence.second_opinion
        if reason is not None or second is None:
            return reason
        found = await self._look(second)
        if found.answer is None or found.measures["agrees"]:
            return None
        return f"{second} answers otherwise: {found.answer.found or self.opinions[second][:80]}"

    async def _learned(self, escalation: Escalation, following: AgentHandle) -> str | None:
        """Look until a further look is not worth its price any more. `following` is the agent in the cloud that would take over."""
        others = [handle.name for handle in self._pool if handle.side is Side.NEAR and handle is not self._turn.handle]
        escalation.require(draft=self._turn.handle.name, far=following.name, looks=[*FREE, *others])
        findings = {name: found for name, found in self._free().items() if name in escalation.looks}
        far = _cost(self._turn.decision, following.name)
        while True:
            verdict = escalation.decide(findings, far=far, objective=self._turn.task.policy.objective)
            if verdict.look is None:
                self.praise = verdict.reason
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
        text = await self._ask(self._handle(name))
        if text is None:
            return Signal()
        opinion = opinion_on(self.answer, text, prompt=self._asked, schema=self._turn.task.output_schema)
        self._compared.append(opinion)
        if opinion.found is not None:
            self.extracted[name] = opinion.found
        # Open-ended texts are embedded, which takes some time, and the first time loads a model.
        return await anyio.to_thread.run_sync(second_opinion, self.answer, opinion)

    def _handle(self, name: str) -> AgentHandle:
        """Return a near agent by name. Raises `ConfigError` for a far or unknown one: second opinions stay on this device."""
        found = next((handle for handle in self._pool if handle.name == name and handle.side is Side.NEAR), None)
        if found is None:
            raise ConfigError(f"there is no agent {name!r} on this device to give a second opinion", hint="[other_near.NAME] adds one")
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
        temperature = task.policy.temperature
        if handle is self._turn.handle:
            temperature = max(temperature or 0.0, _SECOND_SAMPLE_TEMPERATURE[handle.side])
        return step_request(
            task,
            with_answer_line(messages) if card.world is None and task.output_schema is None else messages,
            f"{self._turn.position}/opinion/{handle.name}",
            tools=self._context.specs if card.capabilities.tools else (),
            tool_choice=ToolChoice.NONE,
            output_schema=task.output_schema,
            temperature=temperature,
        )


def _cost(decision: RouteDecision, agent: str) -> Cost:
    """Return the expected cost of asking the next agent."""
    expected = decision.estimate_of(agent)
    if expected is None:
        return Cost()
    dollars, joules = (0.0 if figure is None else figure.value for figure in (expected.dollars, expected.joules))
    return Cost(dollars=dollars, seconds=expected.seconds.value, joules=joules)
