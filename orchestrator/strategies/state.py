"""The state of a task's graph: plain JSON that the graphs of all strategies share, and the values that its parts stand for."""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, TypedDict, TypeVar

from ...protocols import Message, ToolResult
from ...protocols.messages import Value
from ..runs.tool_calls import ActionCount
from ..safety.plan_matching import quote_data
from ..task.labels import OPEN, Integrity, Label
from ..task.modes import Strategy
from ..task.results import ToolOutcome
from ..task.task import Policy, Task
from .prompts import with_guidance, with_plan

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
        if not any(getattr(value, name) for name in _left_out(type(value))):  # what is left out is not to be read back
            self._keep(part, value)
        return part

    def _keep(self, part: Json, value: Value) -> None:
        if len(self._values) >= _KEPT:
            self._values.clear()
            self._parts.clear()
        self._values[id(part)] = (part, value)
        self._parts[id(value)] = (value, part)


_memo: Final = _Memo()


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
    """The `Label` of private data, and of what strangers chose, that may have gone into the world that the tools act on, and come back from
    it by any of them."""
    chosen: Json
    """The `Chosen` calls and values, from before the run read untrusted content."""
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
    """The part of the work that the supervisor's checks have covered, as a `Watch`; None before the first check."""
    minions: Json
    """The progress of `minions`, as a `Round`; absent in other strategies."""
    subtasks: Json
    """The subtasks of `subtasks` and their results, as a `SubtasksWork`; absent in other strategies."""


def fresh_start(task: Task, *, position: int, guidance: str = "", done: str = "") -> TaskState:
    """Return the state in which the candidate at `position` begins. `done`: tells it what agents before it did."""
    messages = [as_json(message) for message in opening(task, guidance, done)]
    anew: TaskState = {"counts": [], "is_shortened": False, "private": [], "trusted": [], "act_doubt": None}
    return {"messages": messages, "made": {}, "draft": None, "corrected": False, "position": position, "acted": 0, **anew}


def opening(task: Task, guidance: str, done: str = "") -> tuple[Message, ...]:
    """Return the conversation that an executor starts from: the task, with the supervisor's words and what was done behind its last
    prompt."""
    if not guidance and not done:
        return task.messages
    place = max(index for index, message in enumerate(task.messages) if message.role == "user")
    extended = with_plan if task.policy.strategy is Strategy.PEVR else with_guidance
    text = extended(task.messages[place].text, guidance)
    prompt = Message.user(f"{text}\n\n{done}" if done else text)
    return (*task.messages[:place], prompt, *task.messages[place + 1 :])


def recursion_limit(policy: Policy, *, agents: int) -> int:
    """Steps of a graph that a task may take at most: enough for every agent's turns, and for the rounds of `minions`."""
    nodes = policy.maximum_turns * _NODES_PER_TURN + _NODES_PER_ATTEMPT
    return 2 + nodes * agents + _NODES_PER_ROUND * policy.minions.maximum_rounds


def label_of(state: TaskState) -> Label:
    """Return the label of all that any agent of the run has been told."""
    return value_of(Label, state["label"]) if "label" in state else OPEN


_LONGEST: Final = 500
"""Characters of arguments, and of a result, that the next agent is told."""
_DONE: Final = "Agents before you worked on this task. Their tool calls stay done. Do not make them again unless the task needs it twice."
_WITHHELD: Final = "arguments and result stay on the user's device"


def done_note(state: TaskState, *, may_read: bool) -> str:
    """Return what the next agent is told of the tool calls before it; empty where none may have changed anything.

    `may_read`: it may be told all that the run has seen; else it is told the tools' names alone.
    """
    made = [value_of(ToolOutcome, outcome) for outcome in state["tool_calls"]]
    acts = [outcome for outcome in made if outcome.may_have_acted]
    label = label_of(state)
    return "\n".join([_DONE, *(_line(act, label) if may_read else _name(act) for act in acts)]) if acts else ""


def told_of(outcomes: Sequence[ToolOutcome], label: Label) -> str:
    """Return one line for each call that may have changed something."""
    return "\n".join(_line(outcome, label) for outcome in outcomes if outcome.may_have_acted)


def _line(act: ToolOutcome, label: Label) -> str:
    arguments = json.dumps(act.call.arguments, ensure_ascii=False)
    result = ToolResult(call_id=act.call.id, name=act.call.name, content=_cut(f"{act.call.name}({_cut(arguments)}): {act.result}", 2))
    told = result.content if label.integrity is Integrity.TRUSTED else quote_data(result).content
    return f"- {_state(act)}: {told}"


def _name(act: ToolOutcome) -> str:
    return f"- {_state(act)}: {act.call.name}; its {_WITHHELD}"


def _state(act: ToolOutcome) -> str:
    return act.outcome.replace("unknown", "outcome unknown")


def _cut(text: str, times: int = 1) -> str:
    return text if len(text) <= times * _LONGEST else f"{text[: times * _LONGEST]}..."
