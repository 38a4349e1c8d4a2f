"""The flow of private data and of untrusted content through a conversation and through the world that the tools act on."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...protocols import Message, Side, StepRequest, ToolResult
from ...protocols.tiers import Tier
from ..agents.pool import AgentHandle
from ..safety.guard.decision import CallContext
from ..safety.guard.history import History
from ..safety.guard.quoting import quoted
from ..safety.privacy.run_privacy import PrivateResult
from ..safety.privacy.starting import starting_label
from ..safety.privacy.texts import changed_message
from ..task.labels import OPEN, Chosen, Integrity, Label, join_labels
from ..task.task import Task
from ..task.tools import Tool
from .context import TaskContext
from .state import Json, TaskState, as_json, label_of, value_of
from .tool_calls import PlannedCall, ToolCalls
from .turn import Turn


async def shown(turn: Turn, request: StepRequest, context: TaskContext) -> tuple[StepRequest, Label | None]:
    """Return a step of an executor as the agent may see it, and the label of that; None: the agent sees everything.

    A far agent continues with placeholders if the policy says so. Private data then stand in the results of tools alone: the agent wrote
    the rest itself without having seen any of them, and the label of what it started from is kept apart.
    """
    privacy, label = context.privacy, label_of(turn.state)
    if privacy is None or not privacy.covers(turn.handle, label):
        return request, None
    messages = await privacy.covered(turn.handle, request.messages, _private(turn.state))
    return request.model_copy(update={"messages": messages}), value_of(Label, turn.state["opening"])


def as_told(standing: CallContext, handle: AgentHandle, state: TaskState, context: TaskContext) -> CallContext | None:
    """Return what an executor was told of where it stands; None: all of it, as there are no placeholders."""
    privacy = context.privacy
    if privacy is None or handle.side is Side.NEAR or not len(privacy.placeholders):
        return None
    hide = privacy.placeholders.concealed
    private = {result.position for result in _private(state)} if privacy.covers(handle, label_of(state)) else set()
    conversation = [
        message if message.role == "assistant" else changed_message(message, (lambda text: "") if place in private else hide)
        for place, message in enumerate(standing.conversation)
    ]
    chosen = standing.chosen.model_copy(update={"plan": hide(standing.chosen.plan)})
    return replace(standing, conversation=conversation, chosen=chosen, hide=hide)


def seen_by(side: Side, state: TaskState) -> Label:
    """Return the label of what an executor has seen. A far one has seen nothing private beyond what it started from, but untrusted
    content."""
    label = label_of(state)
    if side != Side.FAR:
        return label
    opening = value_of(Label, state["opening"])
    return label.model_copy(update={"tier": opening.tier})


async def before_tools(state: TaskState, calls: ToolCalls, context: TaskContext) -> Label:
    """Write down, before they run, that private data, or what strangers chose, go into tools that change something.

    From then on they may come back from any tool, in whatever part of the run, and so its results count as private, or as theirs. Returns
    the label of that.
    """
    spilled = _spilled(state, calls)
    if context.privacy is not None:
        await context.privacy.spill(spilled)
    return spilled


def after_tools(
    state: TaskState, calls: ToolCalls, results: Sequence[ToolResult], context: TaskContext, *, recalled: Label, spilled: Label
) -> TaskState:
    """Return the state's update after tool calls: labels, private results, and the label of the tools' world.

    Args:
        recalled: the label of the memory items that the calls have read.
        spilled: the label that `before_tools` returned.
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
        privacy.saw_in([*said, *map(Message.tool, results)], private)
    return {
        "label": as_json(label),
        "private": [*state["private"], *map(as_json, private)],
        "world": as_json(world),
    }


def _private(state: TaskState) -> list[PrivateResult]:
    return [value_of(PrivateResult, result) for result in state["private"]]


def _spilled(state: TaskState, calls: ToolCalls) -> Label:
    """Return the label of the data that go into tools with side effects: private data behind placeholders or in a near agent's words,
    and
    untrusted content.
    """
    draft = state["draft"]
    assert draft is not None, "an attempt is under way"
    label = label_of(state)
    return calls.spilled(label if draft["side"] == Side.NEAR else OPEN).joined(calls.tainted(label))


class Trust:
    """The change that a message's tool calls make to the trusted part of the conversation.

    The result of a trusted tool may be acted upon as long as untrusted content influenced neither its arguments nor those of any tool
    with
    side effects: it could come back from there. Once the run has read untrusted content, the call itself must have been chosen before,
    too:
    an agent that obeys such content finds or computes whatever it is told to.
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

    def shown(self) -> list[ToolResult]:
        """Return the results as agents see them: quoted as data if untrusted content influenced them."""
        shown: list[ToolResult] = []
        for planned in self._calls.planned:
            assert planned.result is not None, "the calls have run"
            shown.append(quoted(planned.result) if planned.reaches_tool and not self._is_clean(planned) else planned.result)
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
    """Return the label of what strangers left in the world that tools act on, in the conversation or session that the task goes on with."""
    label = starting_label(task, tools)
    if not label.is_disturbed and (label.integrity is Integrity.TRUSTED or not History(task, tools).is_tainted):
        return OPEN
    return Label(integrity=Integrity.UNTRUSTED, origins=label.origins, is_disturbed=True)


def chosen_by_plan(state: TaskState, plan: str, context: TaskContext) -> Json:
    """Return `Chosen` extended by the values that a plan names, provided that the run has not read untrusted content before."""
    if label_of(state).integrity is Integrity.UNTRUSTED:
        return state["chosen"]
    return as_json(value_of(Chosen, state["chosen"]).with_plan(plan, context.tools))
