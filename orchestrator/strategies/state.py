"""The state that the graphs of all strategies share: plain JSON."""

from typing import TypedDict

from ...protocols import Message
from ..runs.ledger.occurrences import Made
from ..task.labels import OPEN, Label
from ..task.modes import Strategy
from ..task.task import Policy, Task
from .prompts import with_guidance, with_plan
from .reading import Json, as_json, value_of

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
    made: dict[str, Made]
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
