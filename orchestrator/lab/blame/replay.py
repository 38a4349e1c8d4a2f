"""A run once more, with one step corrected. Steps that are asked the same reply the same, tools give what is on record or nothing."""

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from langchain_core.runnables import RunnableConfig

from ....protocols import (
    AgentCard,
    Capabilities,
    Finished,
    FinishReason,
    Limits,
    Message,
    NearfarError,
    NotFound,
    StepEvent,
    StepRequest,
    TextDelta,
    ToolCall,
    ToolCalled,
    ToolResult,
    Unavailable,
    Usage,
    stream,
)
from ....protocols.errors import MAPPINGS
from ...agents.pool import AgentHandle, AgentPool
from ...budgets.book import Commitment, Spent
from ...routing.router import Router
from ...runs.ledger import AskedCall
from ...runs.tool_calls import Occurrence
from ...safety.guard import Guard
from ...safety.privacy import RunPrivacy
from ...strategies.graphs import Graphs
from ...strategies.state import TaskContext, TaskState, recursion_limit
from ...strategies.subtasks import part_key
from ...strategies.tool_calls import ToolChecks
from ...task.modes import AgentView
from ...task.results import RouteDecision
from ...task.routing_policy import FALLBACK_ERRORS, LimitsConfig, RouterConfig
from ...task.task import Task
from ...task.tools import NOT_RUN, Effect, Tool
from ...tracing.store import TracedTool
from ...util.runtime import untraced
from .record import Action, Changes, Effects, RecordedRun, RecordedStep, action_of

_NO_SPENT = Spent()
_ERRORS: Final = {kind.__name__: kind for kind in MAPPINGS if issubclass(kind, FALLBACK_ERRORS)}


@dataclass
class Branch:
    """The state of a replay while it runs."""

    run: RecordedRun
    effects: Effects
    at: RecordedStep
    """The step that is corrected."""
    correction: Message
    live: Mapping[str, AgentHandle]
    """The run's agents, for what they were never asked before."""
    calls: list[ToolCall] = field(default_factory=list)
    """Tool calls that did not fail, so far."""
    unknown: str | None = None
    """The reason why the outcome of the replay is unknown; None: it is known."""
    changes: Changes = field(default_factory=Changes)
    seen: dict[tuple[Action, tuple[Action, ...]], int] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)
    """Numbers of recorded steps that were replayed."""

    def recorded(self, agent: str, request: StepRequest) -> RecordedStep | None:
        """Find the unused step in which the agent was asked just this, and mark it as used."""
        steps = (step for step in self.run.steps if step.number not in self.used and step.agent == agent)
        found = next((step for step in steps if step.messages == request.messages), None)
        if found is not None:
            self.used.add(found.number)
        return found

    def give_up(self, because: str) -> NotFound:
        self.unknown = self.unknown or because
        return NotFound(because)

    def was_refused(self, call: ToolCall) -> bool:
        """Return True if every recorded result of the call says that it was refused or could not be approved."""
        results = self.effects.get((action_of(call), self.changes.before), ())
        return bool(results) and all(result.is_error and result.content.startswith(NOT_RUN) for result in results)

    def result(self, call: ToolCall, effect: Effect) -> ToolResult:
        """Return the recorded result of a call. Raises `NotFound` if there is none."""
        action = action_of(call)
        key = (action, self.changes.before)
        results = self.effects.get(key)
        if not results:
            behind = " behind the changes made by then" if self.changes.before else ""
            raise self.give_up(f"no result of {action} is on record{behind}")
        place = self.seen.get(key, 0)
        self.seen[key] = place + 1
        self.changes.add(action, effect)
        result = results[min(place, len(results) - 1)]
        self.calls += [] if result.is_error else [call]
        return result.model_copy(update={"call_id": call.id})


class ReplayedAgent:
    """Says what was said, the correction in its place, and behind that what the run's own agent says."""

    def __init__(self, name: str, branch: Branch) -> None:
        self._branch = branch
        self._live = branch.live.get(name)
        everything = Capabilities(tools=True, json_schema=True)
        side = branch.run.agents[name]
        self.card = AgentCard(name=name, side=side, model=name, description="replays", capabilities=everything, limits=Limits())

    async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
        """Give the recorded reply, the correction, or the reply of the run's own agent."""
        branch, name = self._branch, self.card.name
        branch.changes.settle()
        found = branch.recorded(name, request)
        if found is None and self._live is not None and branch.at.number in branch.used:
            async with stream(await self._live.open(), request) as events:
                async for event in events:
                    yield event
            return
        if found is None:
            went = "no live agent can be asked" if branch.at.number in branch.used else "the run cannot be replayed up to the step"
            raise branch.give_up(f"{name} was never asked this, and {went}")
        if found.error is not None and found is not branch.at:
            raise _ERRORS.get(found.error, Unavailable)(f"as on record: {found.error}")
        # A correction is taken for as sure as what it stands for: whether a draft is believed is not what is asked.
        for event in _said(branch.correction if found is branch.at else found.reply, name, found.confidence):
            yield event

    async def aclose(self) -> None:
        """Close nothing: the live agents belong to the caller."""


class RecordedEffects:
    """Gives the results that are on record, and runs nothing."""

    def __init__(self, branch: Branch) -> None:
        self._branch = branch

    def within(self, scope: str) -> "RecordedEffects":
        return self

    async def known(self, asked: Sequence[AskedCall]) -> Mapping[str, bool]:
        """Return for each call whether it was allowed. A call without a recorded result is allowed here, and fails in `run`."""
        return {one.request.call.id: not self._branch.was_refused(one.request.call) for one in asked}

    async def ask(self, asked: Sequence[AskedCall]) -> Mapping[str, bool]:
        return await self.known(asked)

    async def run(self, call: ToolCall, tool: Tool, occurrence: Occurrence) -> ToolResult:
        return self._branch.result(call, tool.declared.effect)


class _RecordedRouter(Router):
    """Decides as it was decided."""

    def __init__(self, run: RecordedRun) -> None:
        super().__init__()
        whole = run.task.idempotency_key
        self._decisions = {part_key(whole, scope): decision for scope, decision in run.decisions.items()}

    def decide(
        self,
        task: Task,
        agents: Sequence[AgentView],
        *,
        tools: Collection[str] = (),
        spent: Spent = _NO_SPENT,
        commitments: list[Commitment] | None = None,
    ) -> RouteDecision:
        known = self._decisions.get(task.idempotency_key)
        return known or super().decide(task, agents, tools=tools, spent=spent, commitments=commitments)


async def replay(branch: Branch) -> str | None:
    """Replay the run and return its answer; None if it fails. If `branch.unknown` is set, the outcome is unknown."""
    run = branch.run
    task = run.task.with_memory_in_prompt()
    # A replay neither spends from a budget, nor teaches the router.
    policy = task.policy.model_copy(update={"limits": LimitsConfig(), "router": RouterConfig()})
    task = task.model_copy(update={"policy": policy, "timeout": None})
    elsewhere = {name for name, member in branch.live.items() if member.is_elsewhere}
    team = AgentPool(
        tuple(AgentHandle(name, side, ReplayedAgent(name, branch), is_elsewhere=name in elsewhere) for name, side in run.agents.items())
    )
    tools = {traced.spec.name: _tool(traced) for traced in run.tools}
    # The labels, the guard and the gate of the run: live agents are told no more than they would have been.
    privacy = RunPrivacy.of(task)
    checks = ToolChecks(guard=Guard(run.task, tools), effects=RecordedEffects(branch), placeholders=privacy.placeholders)
    context = TaskContext(tools, tool_checks=checks, privacy=privacy)
    graph = Graphs(team, list(tools.values()), _RecordedRouter(run))[task.policy.strategy]
    given: TaskState = {"task": task.model_dump(mode="json")}
    config: RunnableConfig = {"recursion_limit": recursion_limit(task.policy, agents=len(team))}
    try:
        with untraced():
            state = await graph.ainvoke(given, config, context=context)
    except NearfarError:
        return None
    if branch.at.number not in branch.used:
        branch.give_up("the replay ended before it came to the step")
        return None
    return str(state["messages"][-1]["text"])


def _said(message: Message, model: str, confidence: float | None) -> list[StepEvent]:
    reason = FinishReason.TOOL_CALLS if message.tool_calls else FinishReason.STOP
    text: list[StepEvent] = [TextDelta(text=message.text)] if message.text else []
    return [
        *text,
        *(ToolCalled(call=call) for call in message.tool_calls),
        Finished(reason=reason, usage=Usage(), model=model, confidence=confidence),
    ]


def _tool(traced: TracedTool) -> Tool:
    """Return a tool with the schema of the recorded one, and nothing behind it."""
    made = Tool(_nothing, name=traced.spec.name)
    made.spec, made.declared = traced.spec, traced.declared
    return made


async def _nothing() -> str:
    raise AssertionError("a replay runs no tool")


Judge = Callable[[str, Sequence[ToolCall]], bool]
"""Decides whether an answer is right, given the tool calls made on the way."""
