"""Where private data are in a conversation, and where they may have gone, so that an agent far away can go on without them."""

from collections.abc import Sequence
from dataclasses import replace

from ...protocols import Message, Side, StepRequest, ToolResult
from ...protocols.tiers import Tier
from ..agents.pool import Member
from ..safety.guard.decision import CallContext
from ..safety.privacy.run_privacy import PrivateResult
from ..safety.privacy.texts import changed_message
from ..task.labels import OPEN, Label, joined
from .context import TaskContext
from .reading import as_json, value_of
from .state import TaskState, label_of
from .tool_calls import ToolCalls
from .turn import Turn


async def shown(turn: Turn, request: StepRequest, context: TaskContext) -> tuple[StepRequest, Label | None]:
    """A step of an executor as it may be told it, and the label of that; None: it is told everything, whatever that is.

    An agent far away goes on with placeholders where the policy says so. All that is private in its conversation then is what tools
    have returned: it has written the rest itself, without having seen any of that, and what it started from has a label of its own.
    """
    privacy, label = context.privacy, label_of(turn.state)
    if privacy is None or not privacy.covers(turn.member, label):
        return request, None
    messages = await privacy.covered(turn.member, request.messages, _private(turn.state))
    return request.model_copy(update={"messages": messages}), value_of(Label, turn.state["opening"])


def as_told(standing: CallContext, member: Member, state: TaskState, context: TaskContext) -> CallContext | None:
    """Return what an executor was told of where it stands; None: all of it, as there are no placeholders."""
    privacy = context.privacy
    if privacy is None or member.side is Side.NEAR or not len(privacy.placeholders):
        return None
    hide = privacy.placeholders.concealed
    private = {result.position for result in _private(state)} if privacy.covers(member, label_of(state)) else set()
    conversation = [
        message if message.role == "assistant" else changed_message(message, (lambda text: "") if place in private else hide)
        for place, message in enumerate(standing.conversation)
    ]
    chosen = standing.chosen.model_copy(update={"plan": hide(standing.chosen.plan)})
    return replace(standing, conversation=conversation, chosen=chosen, hide=hide)


def seen_by(side: Side, state: TaskState) -> Label:
    """The label of what an executor has seen: far away, nothing private stands in its conversation, and strangers' words may."""
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
    """What the state is to remember of calls that were run.

    Args:
        recalled: the label of what they have told of the memory.
        spilled: what `before_tools` returned.
    """
    privacy = context.privacy
    elsewhere, found = (OPEN, OPEN) if privacy is None else (privacy.world, privacy.found)
    world = joined((value_of(Label, state["world"]), elsewhere, spilled))
    labels = [label.joined(world) for label in calls.labels]
    behind, filled = len(state["messages"]), calls.filled
    places = [place for place, label in enumerate(labels) if label.tier is not Tier.SHARED]
    private = [PrivateResult(position=behind + place, is_derived=filled[place]) for place in places]
    if privacy is not None and private:
        said = [value_of(Message, message) for message in state["messages"]]
        privacy.saw_in([*said, *map(Message.tool, results)], private)
    return {
        "label": as_json(joined((label_of(state), recalled, found, *labels))),
        "private": [*state["private"], *map(as_json, private)],
        "world": as_json(world),
    }


def _private(state: TaskState) -> list[PrivateResult]:
    return [value_of(PrivateResult, result) for result in state["private"]]


def _spilled(state: TaskState, calls: ToolCalls) -> Label:
    """Of what goes into tools that change something: private data, which placeholders stand for or a near agent was told, and what
    strangers chose."""
    draft = state["draft"]
    assert draft is not None, "an attempt is under way"
    label = label_of(state)
    return calls.spilled(label if draft["side"] == Side.NEAR else OPEN).joined(calls.tainted(label))
