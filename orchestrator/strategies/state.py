"""What the graphs of all strategies share: the state, which is plain JSON, and the context, which cannot be."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypedDict

import anyio
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime

from ...protocols import Message, ToolSpec
from ..budgets.account import Account
from ..cache.plans import PlanCache
from ..events import TaskEvent
from ..labels import OPEN, Label
from ..policy import Strategy
from ..privacy.run_privacy import RunPrivacy
from ..recollection import Recollection
from ..task import Policy, Task
from ..tool_calls import Boundary
from ..tools import Tool
from ..tracing.recorder import RunTrace
from .prompts import with_guidance, with_plan
from .reading import Json, as_json, value_of

_NODES_PER_TURN = 3
_NODES_PER_ATTEMPT = 4
_NODES_PER_ROUND = 2


class TaskState(TypedDict, total=False):
    """The state of a task's graph: plain JSON, so that any checkpointer can keep it."""

    task: Json
    """A `Task`."""
    decision: Json
    """A `RouteDecision`."""
    position: int
    """Index of the current candidate in the decision."""
    messages: list[Json]
    """The current attempt's conversation, as `Message`s."""
    draft: Json | None
    """The attempt under way, as an `Attempt`; None between attempts."""
    corrected: bool
    """The current agent was told once that its reply could not be used."""
    acted: int
    """Turns of the current agent whose tool calls were run."""
    counts: list[list[int]]
    """How long the conversation was in the current agent's last two steps: tokens as we estimate them, and as it counted them."""
    is_shortened: bool
    """The current agent was sent less than its whole conversation, and the reasons say so."""
    label: Json
    """The `Label` of all that any agent of the run has been told; it only ever becomes stricter."""
    recalled: list[Json]
    """What tools have told of the memory, as `RecalledItem`s; absent until one has run."""
    made: dict[str, int]
    """How many calls of each action the ledger of effects was told of, since the conversation began."""
    opening: Json
    """The `Label` of what attempts start from: the task, and a supervisor's words."""
    private: list[int]
    """Positions in `messages` of what tools have returned that may not leave the device."""
    world: Json
    """The `Label` of private data, and of what strangers chose, that may have gone into the world that the tools act on, and come back from
    it by any of them."""
    chosen: list[str]
    """Tools that were called before the run had read what strangers wrote, or that a plan from before names."""
    trusted: list[int]
    """Positions in `messages` of what strangers had no hand in: whatever was made of it may be acted upon."""
    attempts: list[Json]
    """The attempts that ended."""
    standby: list[Json] | None
    """The conversation of a rejected draft, which stands after all where every later agent fails."""
    calls: list[Json]
    """Every call of an agent so far, as `Call`s."""
    reasons: list[str]
    """Decisions since the route was chosen, for `Result.reasons`."""
    guidance: str
    """The current plan of pevr, or the last summary and advice of eva; empty where there is none."""
    watch: Json | None
    """What the supervisor's checks have covered, as a `Watch`; None before the first."""
    minions: Json
    """Where `minions` stands, as a `Round`; absent in other strategies."""
    subtasks: Json
    """What `subtasks` cut the task into and what came of each, as a `SubtasksWork`; absent in other strategies."""


class Keeping(Protocol):
    """Keeps the steps of a run's parts, each of which is a graph by itself, such that another process can go on with them."""

    @property
    def checkpointer(self) -> BaseCheckpointSaver[Any]:
        """Of their graphs."""
        ...

    def thread(self, part: str) -> dict[str, object]:
        """Where the part's steps are kept, as the graph's configuration says it."""
        ...


@dataclass(frozen=True)
class TaskContext:
    """What a run of a graph is given beside its state: things that are no JSON."""

    tools: Mapping[str, Tool]
    """What the agents may call, by name."""
    turn_taking: anyio.Lock | None = None
    """Held while the tools of one message run, where several runs side by side must not race in one world."""
    account: Account | None = None
    """What the task may spend; None where a graph runs by itself in another app."""
    plans: PlanCache | None = None
    """Plans of earlier tasks; None: every plan is made anew."""
    recollection: Recollection | None = None
    """What was recalled for the task; None where a graph runs by itself in another app."""
    boundary: Boundary = Boundary()
    """What stands between the agents and their tools."""
    privacy: RunPrivacy | None = None
    """What stands between the run and agents far away; None where a graph runs by itself in another app."""
    keeping: Keeping | None = None
    """Keeps the steps of parts that run beside others; None: nobody does."""
    trace: RunTrace | None = None
    """Takes note of what happens; None: nobody does."""
    listener: Callable[[TaskEvent], None] | None = None
    """Takes the events as they happen, those of a run being cancelled too; without one they go to LangGraph's custom stream."""

    @classmethod
    def of(cls, tools: Sequence[Tool]) -> "TaskContext":
        return cls({tool.spec.name: tool for tool in tools})

    @cached_property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as models see them."""
        return tuple(tool.spec for tool in self.tools.values())


TaskRuntime = Runtime[TaskContext]
TaskGraphBuilder = StateGraph[TaskState, TaskContext, TaskState, TaskState]
TaskGraph = CompiledStateGraph[TaskState, TaskContext, TaskState, TaskState]


def fresh_start(task: Task, *, position: int, guidance: str = "") -> TaskState:
    """The state in which the candidate at `position` begins."""
    messages = [as_json(message) for message in opening(task, guidance)]
    anew: TaskState = {"counts": [], "is_shortened": False, "private": [], "trusted": []}
    return {"messages": messages, "made": {}, "draft": None, "corrected": False, "position": position, "acted": 0, **anew}


def opening(task: Task, guidance: str) -> tuple[Message, ...]:
    """The conversation that an executor starts from: the task, and the supervisor's words in its last prompt."""
    if not guidance:
        return task.messages
    place = max(index for index, message in enumerate(task.messages) if message.role == "user")
    extended = with_plan if task.policy.strategy is Strategy.PEVR else with_guidance
    prompt = Message.user(extended(task.messages[place].text, guidance))
    return (*task.messages[:place], prompt, *task.messages[place + 1 :])


def recursion_limit(policy: Policy, *, agents: int) -> int:
    """Steps of a graph that a task may take at most: enough for every agent's turns, and for the rounds of `minions`."""
    nodes = policy.maximum_turns * _NODES_PER_TURN + _NODES_PER_ATTEMPT
    return 2 + nodes * agents + _NODES_PER_ROUND * policy.minions.maximum_rounds


def emit(runtime: TaskRuntime, event: TaskEvent) -> None:
    """Record and show what happens."""
    given: TaskContext | None = runtime.context  # none where a graph runs by itself in another app
    if given is not None and given.trace is not None:
        given.trace.hear(event)
    show(runtime, event)


def show(runtime: TaskRuntime, event: TaskEvent) -> None:
    """Let whoever listens see an event."""
    given: TaskContext | None = runtime.context
    listener = given.listener if given is not None else None
    if given is not None and given.privacy is not None:
        event = given.privacy.filled_event(event)
    (listener or runtime.stream_writer)(event)


def is_heard(runtime: TaskRuntime) -> bool:
    """Whether what agents say is shown as they say it; nobody knows what becomes of it where a graph runs by itself in another app."""
    given: TaskContext | None = runtime.context
    return given is None or given.listener is not None


def label_of(state: TaskState) -> Label:
    """Of all that any agent of the run has been told."""
    return value_of(Label, state["label"]) if "label" in state else OPEN
