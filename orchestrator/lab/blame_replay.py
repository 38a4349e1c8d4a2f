"""A recorded run, and the same run once more with one step corrected: what was said and done is on record, and no tool is run."""

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from langchain_core.runnables import RunnableConfig

from ...protocols import (
    AgentCard,
    Capabilities,
    Finished,
    FinishReason,
    InvalidRequest,
    Limits,
    Message,
    NearfarError,
    NotFound,
    Sensitivity,
    Side,
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
from ...protocols.errors import MAPPINGS
from ...protocols.items import Tier
from ..agents import AgentHandle, AgentPool
from ..budgets import Commitment, Spent
from ..routing import Router
from ..runs.ledger import AskedCall
from ..runs.tool_calls import Occurrence
from ..safety.guard import THE_TASK, Guard
from ..safety.privacy import RunPrivacy
from ..strategies.graphs import Graphs
from ..strategies.state import TaskContext, TaskState, recursion_limit
from ..strategies.subtasks import part_key
from ..strategies.tool_calls import ToolChecks
from ..task import Task
from ..task.decisions import RouteDecision
from ..task.events import AttemptStarted, Routed
from ..task.labels import Label, join_labels
from ..task.modes import AgentView
from ..task.routing_policy import FALLBACK_ERRORS, LimitsConfig, RouterConfig
from ..task.tools import NOT_RUN, Effect, Tool
from ..tracing import AgentStepped, AnyEntry, EntriesLost, Happened, Labelled, RunBegan, RunEnded, ToolRan, TracedTool
from ..util.runtime import untraced
from ..util.text import canonical

Action = str
"""A tool and its arguments, as canonical JSON."""
Effects = Mapping[tuple[Action, tuple[Action, ...]], Sequence[ToolResult]]
"""Results of an action behind the changes that were made before it, in their order. A result says nothing of a world changed otherwise."""
Judge = Callable[[str, Sequence[ToolCall]], bool]
"""Decides whether an answer is right, given the tool calls made on the way."""
_NO_SPENT = Spent()
_ERRORS: Final = {kind.__name__: kind for kind in MAPPINGS if issubclass(kind, FALLBACK_ERRORS)}


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step of an agent."""

    number: int
    """From 1, in the order of the trace."""
    agent: str
    side: Side
    role: str
    messages: tuple[Message, ...]
    """The whole request."""
    reply: Message
    error: str | None
    sensitivity: Sensitivity
    """Sensitivity of the request."""
    confidence: float | None
    scope: str
    """The part of the run that it belongs to; empty: the whole."""
    done: tuple[ToolCall, ...]
    """Calls that were made before the step and did not fail, in this part and attempt."""


@dataclass(frozen=True)
class RecordedRun:
    """A trace, made ready to be replayed. Raises `InvalidRequest` where it does not begin at the beginning."""

    name: str
    entries: Sequence[AnyEntry]

    @cached_property
    def task(self) -> Task:
        return self._began.task

    @property
    def tools(self) -> tuple[TracedTool, ...]:
        return self._began.tools

    @property
    def agents(self) -> Mapping[str, Side]:
        return self._began.agents

    @cached_property
    def decisions(self) -> Mapping[str, RouteDecision]:
        """The first one of the whole run and of each part, by their scopes."""
        found: dict[str, RouteDecision] = {}
        for entry in self.entries:
            if isinstance(entry, Happened) and isinstance(entry.event, Routed):
                found.setdefault(entry.scope, entry.event.decision)
        return found

    @cached_property
    def steps(self) -> tuple[RecordedStep, ...]:
        asked: dict[tuple[str, str, str], tuple[Message, ...]] = {}
        done: dict[str, list[ToolRan]] = {}
        steps: list[RecordedStep] = []
        for entry in self.entries:
            _do(entry, done)
            if isinstance(entry, AgentStepped):
                call, scope = entry.call, entry.scope
                key = (scope, call.agent, call.role)
                asked[key] = (*asked.get(key, ())[: entry.kept], *entry.messages)
                step = RecordedStep(
                    number=len(steps) + 1,
                    agent=call.agent,
                    side=call.side,
                    role=call.role,
                    messages=asked[key],
                    reply=entry.reply,
                    error=call.error,
                    sensitivity=entry.sensitivity,
                    confidence=call.confidence,
                    scope=scope,
                    done=tuple(ran.call for ran in done.get(scope, ())),
                )
                steps.append(step)
        return tuple(steps)

    @cached_property
    def label(self) -> Label:
        """Joined label of all that the run was told: any of it may be in a step's request."""
        own = Label(tier=Tier.USER, origins=(THE_TASK,)) if self.task.policy.sensitivity is Sensitivity.PRIVATE else Label()
        seen = (entry.label for entry in self.entries if isinstance(entry, (AgentStepped, Labelled, RunEnded, ToolRan)))
        return join_labels((own, *seen))

    @property
    def answer(self) -> str | None:
        """None where the run came to none."""
        last = self.entries[-1]
        return last.text if isinstance(last, RunEnded) and last.outcome == "done" else None

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """Tool calls that were run and did not fail."""
        return tuple(entry.call for entry in self.entries if isinstance(entry, ToolRan) and not entry.result.is_error)

    def changes_of(self, calls: Sequence[ToolCall]) -> Sequence[Action]:
        """Return the calls that may change something, sorted."""
        effects = {traced.spec.name: traced.declared.effect for traced in self.tools}
        return sorted(action_of(call) for call in calls if effects.get(call.name) is not Effect.READ)

    @cached_property
    def solutions(self) -> Mapping[str, Sequence[ToolCall]]:
        """The calls that the last attempt at the whole, and at each part, made, by their scopes, where the run went well; to look
        something up twice is no part of it."""
        done: dict[str, list[ToolRan]] = {}
        for entry in self.entries:
            _do(entry, done)
        return {scope: tuple(ran.call for ran in found) for scope, found in done.items()}

    @cached_property
    def _began(self) -> RunBegan:
        first = self.entries[0]
        if not isinstance(first, RunBegan) or any(isinstance(entry, EntriesLost) for entry in self.entries):
            raise InvalidRequest(f"a part of the trace of run {self.name} is missing", hint="blame a run whose trace is whole")
        return first


def _do(entry: AnyEntry, done: dict[str, list[ToolRan]]) -> None:
    """Add a call that did not fail to those of its scope. A new attempt starts with an empty list."""
    if isinstance(entry, Happened) and isinstance(entry.event, AttemptStarted):
        done[entry.scope] = []
    elif isinstance(entry, ToolRan) and not entry.result.is_error and not _is_repeated(entry, done.setdefault(entry.scope, [])):
        done[entry.scope].append(entry)


def _is_repeated(entry: ToolRan, before: Sequence[ToolRan]) -> bool:
    return entry.effect is Effect.READ and any(action_of(other.call) == action_of(entry.call) for other in before)


def effects_of(runs: Sequence[RecordedRun]) -> Effects:
    """Return the results of calls in any of the runs, which all began in the same world."""
    known: dict[tuple[Action, tuple[Action, ...]], list[ToolResult]] = {}
    for run in runs:
        changes = Changes()
        for entry in run.entries:
            if isinstance(entry, AgentStepped):
                changes.settle()
            elif isinstance(entry, ToolRan):
                action = action_of(entry.call)
                known.setdefault((action, changes.before), []).append(entry.result)
                changes.add(action, entry.effect)
    return known


class Changes:
    """The calls so far that may change something. Calls of one message run at the same time, so none is before another."""

    def __init__(self) -> None:
        self.before: tuple[Action, ...] = ()
        """In order, up to the last step of an agent."""
        self._beside: list[Action] = []

    def add(self, action: Action, effect: Effect) -> None:
        if effect is not Effect.READ:
            self._beside.append(action)

    def settle(self) -> None:
        """Count the calls so far as done, because an agent is asked again."""
        self.before = (*self.before, *sorted(self._beside))
        self._beside = []


def action_of(call: ToolCall) -> Action:
    return canonical([call.name, call.arguments])


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
        for event in _reply_events(branch.correction if found is branch.at else found.reply, name, found.confidence):
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

    def named(self, asked: Sequence[AskedCall]) -> list[AskedCall]:
        return list(asked)

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


def _reply_events(message: Message, model: str, confidence: float | None) -> list[StepEvent]:
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
