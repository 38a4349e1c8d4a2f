"""The look before an act: calls of tools that change something are judged before they run.

Free looks are taken in the node that has asked the agent. Where a further agent is to be asked which calls it would make, the node `look`
follows, so that a run which is resumed asks it once and does not ask the agent itself again.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from ...protocols import Message, Side, StepRequest, ToolCall
from ..agents import AgentHandle
from ..routing.answers import agree
from ..routing.call_looks import (
    call_check,
    call_findings,
    call_opinion,
    judges_calls,
    text_of_calls,
    told_in,
    unmentioned_arguments,
)
from ..routing.drafts import DraftChoice
from ..routing.escalation import Action, Escalation
from ..routing.looks import CONFIDENCE, FREE, GROUNDING, SCHEMA, Signal, token_confidence
from ..runs.tool_calls import canonical_arguments
from ..task import last_words
from ..task.decisions import ActLook
from ..task.policy import Verdict
from ..task.routing_policy import FALLBACK_ERRORS
from ..task.tools import Tool
from .calls import CallLog, TaskRuntime
from .judging import draft_choice, near_agent
from .state import Json, TaskContext, TaskState, as_json, step_request, value_of
from .turn import AgentTurn, acts
from .verifying import second_sample_temperature

if TYPE_CHECKING:
    from .graphs import TaskNodes

_PLANS: Final = ("plan", "adapt")
"""Roles of calls that drop the steps before them, where a plan comes of them."""


@dataclass(frozen=True, slots=True)
class ActVerdict:
    """The result of the looks so far: nothing speaks against the calls, unless one of the fields says more."""

    doubt: str | None = None
    """Why the calls may not run before another agent was asked."""
    look: str | None = None
    """Agent whose opinion is needed before it is settled."""


class ActJudging:
    """Judges the tool calls of one step before they run. Ask for the `verdict`, `take` the look that it names, and ask again.

    Calls of tools that are declared `read` always run, but for hand-offs to other roles. Others are judged where the draft will have to
    pass the evidence in the end, or where an agent far away may be asked in place of a near one. By the fixed checks, each can speak
    against the calls: confidence, schema, texts among the arguments that were mentioned nowhere, a second opinion. An escalation that was
    trained on such drafts weighs all looks instead.

    Args:
        turn: in which the calls were made.
        said: the message with the calls.
        conversation: before it.
        made: all calls of agents so far, with the step itself.
        nodes: of the graph, with the agents, the router and the escalations that were loaded.
        context: tools of the run.
    """

    def __init__(
        self,
        turn: AgentTurn,
        said: Message,
        conversation: Sequence[Json],
        made: Sequence[Json],
        nodes: "TaskNodes",
        context: TaskContext,
    ) -> None:
        self._turn = turn
        self._calls = said.tool_calls
        self._standby = [*conversation, as_json(said)]
        self._messages = [value_of(Message, message) for message in conversation]
        self._made = made
        self._pool = nodes.pool
        self._router = nodes.router
        self._context = context
        self._escalations = nodes.escalations
        self._opinions: dict[str, Message | None] = {}
        """Replies of other agents to that step, by name; None: one gave no opinion."""
        self._findings: dict[str, Signal] = {}
        """By look; empty where nothing is judged."""
        self._acting = self._acting_in(said.tool_calls)
        self._chances: dict[str, float] = {}
        """Probabilities that the draft is right, and that the far agent would be, by the escalation."""
        self._is_forced = False
        """Fixed checks decide: no budget lets calls run that they speak against."""

    def verdict(self) -> ActVerdict:
        """Decide by the looks so far. Raises `ConfigError` for an escalation or an opinion that cannot be had."""
        evidence = self._turn.task.policy.evidence
        if not evidence.before_acts or not (self._turn.is_judged or self._far):
            return ActVerdict()
        escalation = self._escalation
        if escalation is not None and self._following is not None and not self._hands_off:
            return self._learned(escalation, self._following)
        return self._fixed(evidence.second_opinion)

    async def take(self, name: str, log: CallLog) -> None:
        """Ask an agent on this device which calls it would make; none of them runs. `log`: takes its call."""
        handle = near_agent(self._pool, name)
        try:
            agent = await handle.open()
            request = self._request(handle)
            takes_tools = agent.card.capabilities.tools
            reply = await log.ask(handle, request, role="second_opinion", turn=self._turn.state["acted"]) if takes_tools else None
        except FALLBACK_ERRORS:
            reply = None  # on record as a failed call; a look that could not be had speaks neither for nor against the calls
        self._opinions[name] = None if reply is None else reply.message

    def settled(self, verdict: ActVerdict, runtime: TaskRuntime) -> TaskState:
        """Return the state's update by a verdict: the next agent takes over, the supervisor or an opinion is asked first, or the calls
        run."""
        draft = self._turn.draft
        assert draft is not None, "an attempt is under way"
        if verdict.look is None and self._findings:
            names = tuple(dict.fromkeys(call.name for call, _ in self._acting))
            found = {name: dict(signal.measures) for name, signal in self._findings.items() if signal.measures}
            look = ActLook(step=draft.steps, tools=names, findings=found, doubt=verdict.doubt)
            self._turn.draft = draft.model_copy(update={"acts": (*draft.acts, look)})
        if verdict.doubt is not None and not self._turn.is_supervised:
            return self._rejected(verdict.doubt, runtime)
        return self._turn.go_on(doubt=verdict.doubt, look=verdict.look)

    def _rejected(self, doubt: str, runtime: TaskRuntime) -> TaskState:
        """Give the draft up. Its answer is the calls, which are learned from like any other answer."""
        assert self._turn.draft is not None, "an attempt is under way"
        opinions = {name: text_of_calls(said.tool_calls) for name, said in self._opinions.items() if said is not None}
        self._turn.draft = self._turn.draft.model_copy(update={"answer": text_of_calls(self._calls), "opinions": opinions, **self._chances})
        if self._is_forced and self._following is not None:
            self._choice(self._following).force()
        rejected = self._turn.reject(doubt, runtime)
        caller = self._turn.task.caller
        is_for_caller = caller is not None and all(caller.has(call.name) for call in self._calls)
        return (
            {**rejected, **self._turn.standing_by(self._standby)} if is_for_caller else rejected
        )  # the caller may still decide about them

    @cached_property
    def _far(self) -> list[AgentHandle]:
        return self._turn.far_successors(self._context)

    @cached_property
    def _following(self) -> AgentHandle | None:
        """The far agent that would take over; None: a near one would, or none may."""
        turn = self._turn
        if not turn.is_supervised and turn.has_successor:
            following = self._pool[turn.decision.candidates[turn.position + 1]]
            return following if following.side is Side.FAR and turn.handle.side is Side.NEAR else None
        return next(iter(self._far), None)

    @cached_property
    def _hands_off(self) -> bool:
        """Every call hands the task to another role: its arguments are words for that."""
        return all(tool.name in self._context.hand_offs for _, tool in self._acting)

    @cached_property
    def _escalation(self) -> Escalation | None:
        """The escalation of the policy, if it was trained on drafts that call tools. Raises `ConfigError` where the file is none."""
        path = self._turn.task.policy.evidence.escalation
        if path is None:
            return None
        if path not in self._escalations:
            self._escalations[path] = Escalation.load(path)
        found = self._escalations[path]
        return found if judges_calls(found.card.looks) else None

    def _learned(self, escalation: Escalation, following: AgentHandle) -> ActVerdict:
        """Weigh the looks, and the price of a further one."""
        turn = self._turn
        others = [handle.name for handle in self._pool if handle.side is Side.NEAR and handle is not turn.handle]
        escalation.require(draft=turn.handle.name, far=following.name, looks=[*FREE, *others])
        if not self._findings:
            expected = {each.agent: each.estimate for each in turn.decision.considered}
            free = call_findings(
                self._calls,
                self._context.specs,
                prompt=last_words(turn.task.messages),
                told=told_in(self._messages),
                confidence=_confidence(turn, self._made),
                probabilities={agent: each.predicted for agent, each in expected.items() if each is not None},
            )
            self._findings.update({name: found for name, found in free.items() if name in escalation.looks})
        self._findings.update({name: self._opinion(name) for name in self._opinions})
        verdict = self._choice(following).weigh_act(escalation, self._findings)
        if verdict.look is not None:
            return ActVerdict(look=verdict.look)
        escalates = verdict.action is Action.ESCALATE
        self._chances = {"p_right": verdict.p_draft, "p_far": verdict.p_far}
        return ActVerdict(doubt=f"{verdict.reason}, so {self._name} was not called" if escalates else None)

    def _choice(self, following: AgentHandle) -> DraftChoice:
        """Return the choice that the budget is held over: about a draft that is judged in the end, too. Otherwise the budget has counted
        the task when it was placed, and a supervisor that is asked first takes no task over."""
        is_free = self._turn.is_judged and not self._turn.is_supervised
        return draft_choice(self._turn, following, self._context, self._router, is_free=is_free)

    def _fixed(self, second: str | None) -> ActVerdict:
        """Let each check speak against the calls; the one that costs something comes last."""
        self._is_forced = True
        doubt = self._objection()
        if doubt is not None or second is None or self._turn.handle.side is Side.FAR:
            return ActVerdict(doubt)
        if second not in self._opinions:
            near_agent(self._pool, second)
            return ActVerdict(look=second)
        self._findings[second] = self._opinion(second)
        opinion = self._opinions[second]
        if opinion is None or agree(self._settling(self._calls), self._settling(opinion.tool_calls)):
            return ActVerdict()
        return ActVerdict(f"{second} would make other calls, so {self._name} was not called")

    def _objection(self) -> str | None:
        """Return why the free checks speak against the calls, or None."""
        confidence, limit = _confidence(self._turn, self._made), self._turn.task.policy.minimum_confidence
        unmentioned = self._unmentioned()
        check = call_check([call for call, _ in self._acting], self._context.specs)
        grounding = Signal({"unmentioned arguments": float(len(unmentioned))})
        self._findings.update({CONFIDENCE: token_confidence([confidence]), SCHEMA: check, GROUNDING: grounding})
        if confidence is not None and confidence < limit:
            return f"confidence {confidence:.2f} is below {limit:.2f}, so {self._name} was not called"
        if not check.measures["is valid"]:
            return f"its arguments do not fit its schema, so {self._name} was not called"
        if unmentioned:
            tool, argument = unmentioned[0]
            return f"nothing that was said or found mentions its {argument}, so {tool} was not called"
        return None

    def _unmentioned(self) -> list[tuple[str, str]]:
        """Return tools with their arguments that decide what is done, and whose texts were mentioned nowhere. What a far agent has in mind
        may have come to it behind placeholders, and is not judged; nor are the words of a hand-off."""
        if self._turn.handle.side is Side.FAR:
            return []
        told = told_in(self._messages)
        judged = [(call, tool) for call, tool in self._acting if tool.name not in self._context.hand_offs]
        return [
            (tool.name, name)
            for call, tool in judged
            for name in unmentioned_arguments(call, tool.spec, told)
            if name in tool.declared.sinks
        ]

    def _settling(self, calls: Sequence[ToolCall]) -> list[ToolCall]:
        """Return the calls that change something, with the arguments that decide what is done, as the function gets them."""
        filled = [(call, tool, json.loads(canonical_arguments(call, tool))) for call, tool in self._acting_in(calls)]
        return [
            call.model_copy(update={"arguments": {name: value for name, value in arguments.items() if name in tool.settles}})
            for call, tool, arguments in filled
        ]

    def _acting_in(self, calls: Sequence[ToolCall]) -> list[tuple[ToolCall, Tool]]:
        return [(call, self._context.tools[call.name]) for call in calls if acts(call, self._context)]

    def _opinion(self, name: str) -> Signal:
        opinion = self._opinions[name]
        if opinion is None:
            return Signal()
        return call_opinion(self._calls, opinion.tool_calls, self._context.specs, has_prose=bool(opinion.text.strip()))

    @property
    def _name(self) -> str:
        return self._acting[0][0].name

    def _request(self, handle: AgentHandle) -> StepRequest:
        """Return the step that the draft's agent has taken, for another agent."""
        turn = self._turn
        assert turn.draft is not None, "an attempt is under way"
        task = turn.task
        tools, choice = turn.offered(self._context.specs)
        return step_request(
            task,
            self._messages,
            f"{turn.position}/{turn.draft.steps}/opinion/{handle.name}",
            tools=tools,
            tool_choice=choice,
            output_schema=task.output_schema,
            temperature=second_sample_temperature(task.policy.temperature, handle.side, is_again=handle is turn.handle),
        )


class ActNodes:
    """The node in which other agents are asked before an act."""

    def __init__(self, nodes: "TaskNodes") -> None:
        self._nodes = nodes

    async def look(self, state: TaskState, runtime: TaskRuntime) -> TaskState:
        """Take the looks that the calls of the last message wait for, and settle whether they run."""
        nodes, context = self._nodes, self._nodes.context(runtime)
        turn = AgentTurn(state, nodes.pool, context.output_model)
        log = CallLog(state, runtime)
        *conversation, last = state["messages"]
        said = value_of(Message, last)
        judging = ActJudging(turn, said, conversation, state["calls"], nodes, context)
        while (verdict := judging.verdict()).look is not None:
            await judging.take(verdict.look, log)
        return {**judging.settled(verdict, runtime), "calls": log.as_json}


def _confidence(turn: AgentTurn, made: Sequence[Json]) -> float | None:
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
