"""Evidence about a draft: before it calls a tool that may change something, and at its end, where the next agent may take over."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ...protocols import ConfigError, Message, Side, StepRequest, ToolCall, ToolChoice
from ..agents.pool import AgentHandle, AgentPool
from ..routing.evidence.answers import Answer, agree
from ..routing.evidence.checks import is_grounded, objection
from ..routing.evidence.escalation import Action, Escalation
from ..routing.evidence.signals import FREE, Cost, Finding, free_findings, second_opinion
from ..task.conversation import last_words
from ..task.labels import Label
from ..task.results import Attempt
from ..task.route_decision import RouteDecision
from ..task.sections.routing import FALLBACK_ERRORS, FallbackTrigger
from ..task.sections.supervision import Verdict
from ..task.tool_outcomes import Effect
from .calls import CallLog
from .context import TaskContext
from .state import Json, label_of, value_of
from .turn import Turn

_SECOND_SAMPLE_TEMPERATURE = {Side.NEAR: 0.7, Side.FAR: 1.0}
"""Least temperature of an agent that is asked the same again: without chance it would say the same again. Far: the providers' default."""


class Escalations:
    """The learned escalations that policies name, each loaded once."""

    def __init__(self) -> None:
        self._loaded: dict[Path, Escalation] = {}

    def __getitem__(self, path: Path) -> Escalation:
        """Return the escalation in a file. Raises `ConfigError` if it holds none."""
        if path not in self._loaded:
            self._loaded[path] = Escalation.load(path)
        return self._loaded[path]


class Judging:
    """Judges one draft. Make it, ask for the `objection`, then look at what it found.

    Args:
        turn: at whose end the draft stands.
        pool: of which others may be asked.
        log: takes their calls.
        context: tools of the run.
        escalations: what was learned of when to escalate.
    """

    def __init__(self, turn: Turn, pool: AgentPool, log: CallLog, context: TaskContext, escalations: Escalations) -> None:
        assert turn.draft is not None, "an attempt is under way"
        self.opinions: dict[str, str] = {}
        """Answers of other agents that were asked, by name."""
        self.praise = "the answer stands"
        """Why it is accepted."""
        self._turn = turn
        self._draft: Attempt = turn.draft
        self._pool = pool
        self._log = log
        self._context = context
        self._escalations = escalations
        self._messages = [value_of(Message, message) for message in turn.state["messages"]]

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
        return await self._learned(self._escalations[path], following)

    @property
    def _text(self) -> str:
        return self._messages[-1].text

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
        opinion = await self._ask(self._handle(second))
        return None if opinion is None or agree(self._text, opinion) else f"{second} answers otherwise: {opinion[:80]}"

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

    def _free(self) -> dict[str, Finding]:
        expected = {each.agent: each.estimate for each in self._turn.decision.considered}
        return free_findings(
            last_words(self._turn.task.messages),
            self._text,
            is_valid=None if self._turn.task.output_schema is None else True,  # what is not never comes here
            is_grounded=self.is_grounded,
            confidence=self._draft.confidence,
            probabilities={agent: each.predicted for agent, each in expected.items() if each is not None},
        )

    async def _look(self, name: str) -> Finding:
        """Ask another agent for a second opinion. Return an empty finding if it gives none."""
        opinion = await self._ask(self._handle(name))
        return Finding() if opinion is None else second_opinion(Answer.of_text(self._text), Answer.of_text(opinion))

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
            takes_tools = agent.card.capabilities.tools
            reply = await self._log.ask(handle, self._request(handle, takes_tools=takes_tools), role="second_opinion")
        except FALLBACK_ERRORS:
            return None  # on record as a failed call; a look that could not be had speaks neither for nor against the draft
        self.opinions[handle.name] = reply.text
        return reply.text

    def _request(self, handle: AgentHandle, *, takes_tools: bool) -> StepRequest:
        """Return a request with the conversation up to the draft. Tools are shown, since their calls stand in it, and none may be
        called."""
        task = self._turn.task
        is_itself = handle is self._turn.handle
        temperature = task.policy.temperature
        return StepRequest(
            messages=tuple(self._messages[:-1]),
            tools=self._context.specs if takes_tools else (),
            tool_choice=ToolChoice.NONE,
            output_schema=task.output_schema,
            max_output_tokens=task.policy.maximum_output_tokens,
            temperature=max(temperature or 0.0, _SECOND_SAMPLE_TEMPERATURE[handle.side]) if is_itself else temperature,
            effort=task.policy.effort,
            timeout=task.policy.attempt_timeout,
            sensitivity=task.policy.sensitivity,
            idempotency_key=f"{task.idempotency_key}/{self._turn.position}/opinion/{handle.name}",
        )


def _cost(decision: RouteDecision, agent: str) -> Cost:
    """Return the expected cost of asking the next agent."""
    expected = decision.estimate_of(agent)
    if expected is None:
        return Cost()
    dollars, joules = (0.0 if figure is None else figure.value for figure in (expected.dollars, expected.joules))
    return Cost(dollars=dollars, seconds=expected.seconds.value, joules=joules)


_PLANS: Final = ("plan", "adapt")
"""Roles of calls that drop the steps before them, where a plan comes of them."""


def act_doubt(turn: Turn, calls: Sequence[ToolCall], made: Sequence[Json], pool: AgentPool, context: TaskContext) -> str | None:
    """Return why `calls` may not run before another agent was asked; None where they may.

    Calls of tools that are declared `read` always may. Others need a step that has passed the evidence so far, where the draft will have to
    pass it in the end, or where an agent far away may be asked in place of a near one. `made`: all calls of agents so far, with the step of
    `calls`.
    """
    acting = [call.name for call in calls if (tool := context.tools.get(call.name)) and tool.declared.effect is not Effect.READ]
    if not acting:
        return None
    confidence, limit = _confidence(turn, made), turn.task.policy.minimum_confidence
    if confidence is None or confidence >= limit or not (turn.is_judged or _may_ask_far(turn, pool, context)):
        return None
    return f"confidence {confidence:.2f} is below {limit:.2f}, so {acting[0]} was not called"


def _may_ask_far(turn: Turn, pool: AgentPool, context: TaskContext) -> bool:
    """Return whether a later candidate, or the supervisor, is far away and may be told what the run has seen."""
    if turn.handle.side is not Side.NEAR or FallbackTrigger.LOW_CONFIDENCE not in turn.task.policy.fallback.triggers:
        return False
    later = list(turn.decision.candidates[turn.position + 1 :])
    if turn.decision.supervisor is not None and turn.position == 0:
        later.append(turn.decision.supervisor)
    others = [pool[name] for name in later if pool[name].side is Side.FAR]
    label, opening = label_of(turn.state), value_of(Label, turn.state["opening"])
    privacy = context.privacy
    return any(privacy is None or privacy.may_take_over(other, label, opening) for other in others)


def _confidence(turn: Turn, made: Sequence[Json]) -> float | None:
    """Return the lowest confidence of the agent's steps; under supervision, of those that no check has covered."""
    assert turn.draft is not None, "an attempt is under way"
    if not turn.is_supervised:
        return turn.draft.confidence
    found: list[float] = []
    has_plan = bool(turn.state["guidance"])
    for call in reversed(made):
        if has_plan and call["role"] in _PLANS and call["error"] is None:
            break
        if call["role"] == "verify" and call["error"] is None and not call["shadow"] and call["verdict"] != Verdict.UNREADABLE:
            break
        if call["role"] == "execute" and call["agent"] == turn.handle.name and call["error"] is None and call["confidence"] is not None:
            found.append(call["confidence"])
    return min(found, default=None)
