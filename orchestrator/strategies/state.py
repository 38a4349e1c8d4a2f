"""The input and output of a task's graph: its state, which is plain JSON, the values given with it, and the labels of what flows through
them: how private the data of a conversation, and of the world that the tools act on, are, and whether untrusted content is in them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol, TypedDict, TypeVar

import anyio
from pydantic import BaseModel

from ...protocols import Effort, Message, Side, StepRequest, ToolResult, ToolSpec
from ...protocols.items import Tier
from ...protocols.steps import Value
from ..agents import AgentHandle
from ..budgets.account import Account
from ..memory.provenance import Recollection
from ..routing.habits import Efforts
from ..runs.tool_calls import ActionCount
from ..safety.guard import CallContext, TrustedHistory, initial_label
from ..safety.placeholders import map_message_texts
from ..safety.plan_matching import quote_data
from ..safety.privacy import PrivateResult, RunPrivacy
from ..task import Task
from ..task.context import Context
from ..task.events import TaskEvent
from ..task.labels import OPEN, Chosen, Integrity, Label, join_labels
from ..task.modes import Strategy
from ..task.policy import Policy
from ..task.results import ToolOutcome
from ..task.tools import Tool
from ..tracing.recorder import RunTrace
from .prompts import with_guidance, with_plan
from .tool_calls import PlannedCall, ToolCalls, ToolChecks

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver

    from ..cache.plans import PlanCache
    from .speculation import LookAhead


V = TypeVar("V", bound=Value)
Json = dict[str, Any]

_KEPT: Final = 1024
"""Parts of states whose values are remembered: those of some tens of tasks side by side."""


class _Memo:
    """A memo of the parts of states that were written or read last, so that nodes need not validate and dump them again.

    A node replaces parts of the state and changes none in place, and values are frozen: an object of one kind always stands for the same
    object of the other kind. An entry holds its object, so that no other object gets the same identity.
    """

    def __init__(self) -> None:
        self._values: dict[int, tuple[Json, Value]] = {}
        self._parts: dict[int, tuple[Value, Json]] = {}

    def value(self, kind: type[V], part: Json) -> V:
        known = self._values.get(id(part))
        if known is not None and known[0] is part and isinstance(known[1], kind):
            return known[1]
        value = kind.model_validate(part)
        self._keep(part, value)
        return value

    def part(self, value: Value) -> Json:
        known = self._parts.get(id(value))
        if known is not None and known[0] is value:
            return known[1]
        part: Json = value.__pydantic_serializer__.to_python(value, mode="json")  # `model_dump` without its thirteen options
        left_out = _left_out(type(value))
        if not left_out or not any(getattr(value, name) for name in left_out):  # what is left out is not to be read back
            self._keep(part, value)
        return part

    def _keep(self, part: Json, value: Value) -> None:
        if len(self._values) >= _KEPT:
            self._values.clear()
            self._parts.clear()
        self._values[id(part)] = (part, value)
        self._parts[id(value)] = (value, part)


_memo: Final = _Memo()


def graph_input(task: Task) -> "TaskState":
    """Return the input of a task's graph."""
    return {"task": as_json(task.with_memory_in_prompt())}


def as_json(value: Value) -> Json:
    """Return the value as a part of a task's state. Change nothing in it: it may stand in other states."""
    return _memo.part(value)


def value_of(kind: type[V], part: Json) -> V:
    """Return the value that a part of a task's state stands for. Raises pydantic's `ValidationError`."""
    return _memo.value(kind, part)


@cache
def _left_out(kind: type[Value]) -> tuple[str, ...]:
    """Return the fields that a value's JSON does not hold; all of them are empty unless given."""
    return tuple(name for name, field in kind.model_fields.items() if field.exclude)


_NODES_PER_TURN = 4
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
    act_doubt: str | None
    """Why the calls of the last message may not run before the far side was asked; None where they may."""
    act_look: str | None
    """Agent that is to be asked for its opinion before the calls of the last message run; None: none."""
    tool_calls: list[Json]
    """Every call of a tool so far, as `ToolOutcome`s: those of earlier agents, too."""
    is_shortened: bool
    """The current agent was sent less than its whole conversation, and the reasons say so."""
    label: Json
    """The `Label` of all that any agent of the run has been told; it only ever becomes stricter."""
    recalled: list[Json]
    """Memory items that tools have returned, as `RecalledItem`s; absent until a tool has run."""
    made: dict[str, ActionCount]
    """By action: the calls that the ledger of effects was told of, since the conversation began."""
    opening: Json
    """The `Label` of what attempts start from: the task, and a supervisor's words."""
    private: list[Json]
    """Tool results in `messages` that may not leave the device, as `PrivateResult`s."""
    world: Json
    """The `Label` of private data, and of untrusted content, that may have gone into the world that the tools act on, and come back from it
    by any of them."""
    chosen: Json
    """The `Chosen` calls and values, from before the run read untrusted content."""
    trusted: list[int]
    """Positions in `messages` of trusted content: whatever was made of it may be acted upon."""
    attempts: list[Json]
    """The attempts that ended."""
    standby: list[Json] | None
    """The conversation of a rejected draft, which stands after all where every later agent fails."""
    standby_attempt: int
    """Place of that draft among the attempts."""
    calls: list[Json]
    """Every call of an agent so far, as `Call`s."""
    reasons: list[str]
    """Decisions since the route was chosen, for `Result.reasons`."""
    guidance: str
    """The current plan of pevr, or the last summary and advice of eva; empty where there is none."""
    move: str | None
    """The `Move` that a navigator chose for the last step; None, or absent: none did."""
    watch: Json | None
    """The part of the work that the supervisor's checks have covered, as a `Watch`; None before the first check."""
    minions: Json
    """The progress of `minions`, as a `Round`; absent in other strategies."""
    speculation: Json
    """How far near ran ahead of far, as a `Speculation`; absent in other strategies."""
    subtasks: Json
    """The subtasks of `subtasks` and their results, as a `SubtasksWork`; absent in other strategies."""
    hand_off: Json
    """The `HandOff` that ended the work of a role; absent until then."""
    roles: Json
    """The work of roles so far, as a `RolesWork`; absent in tasks that are given to none."""


def fresh_start(task: Task, *, position: int, guidance: str = "", done: str = "") -> TaskState:
    """Return the state in which the candidate at `position` begins. `done`: tells it what agents before it did."""
    messages = [as_json(message) for message in opening(task, guidance, done)]
    fresh: TaskState = {"counts": [], "is_shortened": False, "private": [], "trusted": [], "act_doubt": None, "act_look": None}
    return {"messages": messages, "made": {}, "draft": None, "corrected": False, "position": position, "acted": 0, **fresh}


def opening(task: Task, guidance: str, done: str = "") -> tuple[Message, ...]:
    """Return the conversation that an executor starts from: the task, with the supervisor's words and what was done behind its last
    prompt."""
    if not guidance and not done:
        return task.messages
    place = max(index for index, message in enumerate(task.messages) if message.role == "user")
    extended = with_plan if task.policy.strategy is Strategy.PEVR else with_guidance
    text = extended(task.messages[place].text, guidance)
    prompt = task.messages[place].with_text(f"{text}\n\n{done}" if done else text)
    return (*task.messages[:place], prompt, *task.messages[place + 1 :])


def said_since(messages: Sequence[Json], place: int) -> list[Json]:
    """Return what agents and tools have added to a conversation from `place` on.

    A reply that could not be used is left out, with the request to correct it: nearfar wrote that, and a later task would take it for
    words of the user.
    """
    made: list[Json] = []
    for message in messages[place:]:
        if message["role"] in ("assistant", "tool"):
            made.append(message)
        elif made and made[-1]["role"] == "assistant":
            made.pop()
    return made


def step_request(task: Task, messages: Sequence[Message], key: str, **fields: Any) -> StepRequest:  # noqa: ANN401 - those of `StepRequest`
    """Return a request as the task's policy has it. `key` names it within the task; `fields` are those that differ."""
    policy = task.policy
    usual = {
        "max_output_tokens": policy.maximum_output_tokens,
        "temperature": policy.temperature,
        "effort": policy.effort if isinstance(policy.effort, Effort) else None,
        "timeout": policy.attempt_timeout,
        "sensitivity": policy.sensitivity,
    }
    return StepRequest(messages=tuple(messages), idempotency_key=f"{task.idempotency_key}/{key}", **{**usual, **fields})


def recursion_limit(policy: Policy, *, agents: int) -> int:
    """Steps of a graph that a task may take at most: enough for every agent's turns, for the rounds of `minions`, and for hand-offs."""
    nodes = policy.maximum_turns * _NODES_PER_TURN + _NODES_PER_ATTEMPT
    return 2 + nodes * agents + _NODES_PER_ROUND * policy.minions.maximum_rounds + policy.maximum_hand_offs


def label_of(state: TaskState) -> Label:
    """Return the label of all that any agent of the run has been told."""
    return value_of(Label, state["label"]) if "label" in state else OPEN


class Keeping(Protocol):
    """Keeps the steps of a run's parts, each of which is a graph by itself, such that another process can resume them."""

    @property
    def checkpointer(self) -> "BaseCheckpointSaver[Any]":
        """The checkpointer of the parts' graphs."""
        ...

    def thread(self, part: str) -> dict[str, object]:
        """Return the graph configuration that names the thread in which a part's steps are kept."""
        ...

    def within(self, part: str) -> "Keeping":
        """Return what keeps the steps of a part's own parts."""
        ...


@dataclass(frozen=True)
class TaskContext:
    """Non-JSON values that a run of a graph is given in addition to its state."""

    tools: Mapping[str, Tool]
    """Tools that the agents may call, by name."""
    other_tools: Mapping[str, Tool] = field(default_factory=dict)
    """Tools of other roles, by name: calls of them may stand in the conversation."""
    hand_offs: Mapping[str, str] = field(default_factory=dict)
    """Roles that the task may be handed to, by the names of the tools that do so."""
    turn_taking: anyio.Lock | None = None
    """Held while the tools of one message run, where several runs side by side must not race in one world."""
    ahead: "LookAhead | None" = None
    """The steps that near has proposed ahead of far; None: nothing runs ahead."""
    efforts: Efforts | None = None
    """How long steps usually reason; None: an effort that is a share of that changes nothing."""
    account: Account | None = None
    """The task's budget account; None if the graph runs by itself in another app."""
    plans: "PlanCache | None" = None
    """Plans of earlier tasks; None: every plan is made from scratch."""
    recollection: Recollection | None = None
    """The memory items recalled for the task; None if the graph runs by itself in another app."""
    tool_checks: ToolChecks = ToolChecks()
    """The checks applied to tool calls."""
    privacy: RunPrivacy | None = None
    """The privacy rules applied to texts for far agents; None if the graph runs by itself in another app."""
    outcomes: list[ToolOutcome] | None = None
    """Collects the outcome of each tool call, also if the graph fails later; None: outcomes are not collected."""
    keeping: Keeping | None = None
    """Keeps the steps of parallel parts; None: they are not kept."""
    trace: RunTrace | None = None
    """Records what happens in the run; None: nothing is recorded."""
    listener: Callable[[TaskEvent], None] | None = None
    """Takes the events as they happen, those of a run being cancelled too; without one they go to LangGraph's custom stream."""
    holds_drafts: bool = False
    """The listener gets no text of an attempt that may still be rejected."""
    caller: Context[Any] = field(default_factory=Context)
    """The context of the task's tool calls, with the dependencies that the app gave for it."""
    output_model: type[BaseModel] | None = None
    """The model of the answer; None: its schema is all that it has to fit."""

    @classmethod
    def of(cls, tools: Sequence[Tool]) -> "TaskContext":
        return cls({tool.spec.name: tool for tool in tools})

    @property
    def conversation_tools(self) -> Mapping[str, Tool]:
        """Return all tools of which calls may stand in the conversation, by name."""
        return {**self.other_tools, **self.tools}

    @cached_property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as models see them."""
        return tuple(tool.spec for tool in self.tools.values())


def timed(context: TaskContext, task: Task, started: float) -> TaskContext:
    """Return the context of a task that was asked for at `started`, with the time at which its timeout is over."""
    if task.timeout is None:
        return context
    return replace(context, tool_checks=replace(context.tool_checks, expires=started + task.timeout))


async def as_agent_sees(
    state: TaskState, handle: AgentHandle, request: StepRequest, context: TaskContext
) -> tuple[StepRequest, Label | None]:
    """Return a step of an executor as the agent may see it, and the label of that; None: the agent sees everything.

    A far agent continues with placeholders if the policy says so. Private data then stand in the results of tools alone: the agent wrote
    the rest itself without having seen any of them, and the label of what it started from is kept apart.
    """
    privacy, label = context.privacy, label_of(state)
    if privacy is None or not privacy.needs_placeholders(handle, label):
        return request, None
    messages = await privacy.replace_private_results(handle, request.messages, _private(state))
    return request.model_copy(update={"messages": messages}), value_of(Label, state["opening"])


def as_told(standing: CallContext, handle: AgentHandle, state: TaskState, context: TaskContext) -> CallContext | None:
    """Return what an executor was told of where it stands; None: all of it, as there are no placeholders."""
    privacy = context.privacy
    if privacy is None or handle.side is Side.NEAR or not len(privacy.placeholders):
        return None
    hide = privacy.placeholders.redact_fully
    private = {result.position for result in _private(state)} if privacy.needs_placeholders(handle, label_of(state)) else set()
    conversation = [
        message if message.role == "assistant" else map_message_texts(message, (lambda text: "") if place in private else hide)
        for place, message in enumerate(standing.conversation)
    ]
    chosen = standing.chosen.model_copy(update={"plan": hide(standing.chosen.plan)})
    return replace(standing, conversation=conversation, chosen=chosen, hide=hide)


def outcomes_of(state: TaskState) -> list[ToolOutcome]:
    """Return the outcomes of the run's tool calls so far."""
    return [value_of(ToolOutcome, outcome) for outcome in state["tool_calls"]]


def seen_by(side: Side, state: TaskState) -> Label:
    """Return the label of what an executor has seen. A far one has seen nothing private beyond what it started from, but untrusted
    content."""
    label = label_of(state)
    if side != Side.FAR:
        return label
    opening = value_of(Label, state["opening"])
    return label.model_copy(update={"tier": opening.tier})


async def spill_before_tools(state: TaskState, calls: ToolCalls, context: TaskContext) -> Label:
    """Write down, before they run, that private data, or untrusted content, go into tools that change something.

    From then on they may come back from any tool, in whatever part of the run, and so its results count as private, or as theirs. Returns
    the label of that.
    """
    spilled = _spilled(state, calls)
    if context.privacy is not None:
        await context.privacy.spill(spilled)
    return spilled


def labels_after_tools(
    state: TaskState, calls: ToolCalls, results: Sequence[ToolResult], context: TaskContext, *, recalled: Label, spilled: Label
) -> TaskState:
    """Return the state's update after tool calls: labels, private results, and the label of the tools' world.

    Args:
        recalled: the label of the memory items that the calls have read.
        spilled: the label that `spill_before_tools` returned.
    """
    privacy = context.privacy
    elsewhere, found = (OPEN, OPEN) if privacy is None else (privacy.world, privacy.found)
    world = join_labels((value_of(Label, state["world"]), elsewhere, spilled))
    label, private = join_labels((label_of(state), recalled, found)), list[PrivateResult]()
    for position, planned in enumerate(calls.planned, start=len(state["messages"])):
        result = planned.result_label.joined(world)
        label = label.joined(result)
        if result.tier is not Tier.SHARED:
            private.append(PrivateResult(position=position, is_derived=planned.is_filled))
    if privacy is not None and private:
        said = [value_of(Message, message) for message in state["messages"]]
        privacy.add_private_results([*said, *map(Message.tool, results)], private)
    return {
        "label": as_json(label),
        "private": [*state["private"], *map(as_json, private)],
        "world": as_json(world),
    }


def _private(state: TaskState) -> list[PrivateResult]:
    return [value_of(PrivateResult, result) for result in state["private"]]


def _spilled(state: TaskState, calls: ToolCalls) -> Label:
    """Return the label of data that go into tools with side effects: private data behind placeholders or in a near agent's words, and
    untrusted content."""
    draft = state["draft"]
    assert draft is not None, "an attempt is under way"
    label = label_of(state)
    return calls.spilled(label if draft["side"] == Side.NEAR else OPEN).joined(calls.tainted(label))


class Trust:
    """The change that a message's tool calls make to the trusted part of the conversation.

    The result of a trusted tool may be acted upon as long as untrusted content influenced neither its arguments nor those of any tool
    with side effects: it could come back from there. Once the run has read untrusted content, the call itself must have been chosen
    before, too: an agent that obeys such content finds or computes whatever it is told to.
    """

    def __init__(self, state: TaskState, calls: ToolCalls, standing: CallContext, around: Label) -> None:
        """`around`: of what the calls have told of the memory, and of what is in the world that the tools act on."""
        self._state = state
        self._calls = calls
        self._names = [call.name for call in standing.conversation[-1].tool_calls]
        self._was_clean = standing.label.integrity is Integrity.TRUSTED
        self._behind = len(standing.conversation)
        self._around = around

    def _is_clean(self, planned: PlannedCall) -> bool:
        """Return whether a call ran, and neither its arguments nor its result come from untrusted content."""
        is_trusted = planned.result_label.joined(self._around).integrity is Integrity.TRUSTED
        return planned.reaches_tool and planned.provenance.is_grounded and is_trusted

    def quoted_results(self) -> list[ToolResult]:
        """Return the results as agents see them: quoted as data if untrusted content influenced them."""
        shown: list[ToolResult] = []
        for planned in self._calls.planned:
            assert planned.result is not None, "the calls have run"
            shown.append(quote_data(planned.result) if planned.reaches_tool and not self._is_clean(planned) else planned.result)
        return shown

    @property
    def noted(self) -> TaskState:
        """The state's update after the calls."""
        chosen = as_json(value_of(Chosen, self._state["chosen"]).with_tools(self._names)) if self._was_clean else self._state["chosen"]
        asked = [self._behind - 1] if self._was_clean else []
        told = [
            self._behind + place
            for place, planned in enumerate(self._calls.planned)
            if self._is_clean(planned) and planned.provenance.is_chosen
        ]
        return {"chosen": chosen, "trusted": [*self._state["trusted"], *asked, *told]}


def left_by_history(task: Task, tools: Mapping[str, Tool]) -> Label:
    """Return the label of untrusted content in the world that tools act on, from the conversation or session that the task continues."""
    label = initial_label(task, tools)
    if not label.is_disturbed and (label.integrity is Integrity.TRUSTED or not TrustedHistory(task, tools).is_tainted):
        return OPEN
    return Label(integrity=Integrity.UNTRUSTED, origins=label.origins, is_disturbed=True)


def chosen_by_plan(state: TaskState, plan: str, context: TaskContext) -> Json:
    """Return `Chosen` extended by the values that a plan names, provided that the run has not read untrusted content before."""
    if label_of(state).integrity is Integrity.UNTRUSTED:
        return state["chosen"]
    return as_json(value_of(Chosen, state["chosen"]).with_plan(plan, context.tools))
