"""What of a conversation may be acted upon, and how the rest of it is shown."""

from collections.abc import Mapping, Sequence

from ...protocols import ToolResult
from ..safety.guard.decision import CallContext
from ..safety.guard.history import History
from ..safety.guard.quoting import quoted
from ..safety.privacy.starting import starting_label
from ..task.chosen import Chosen
from ..task.labels import OPEN, Integrity, Label
from ..task.task import Task
from ..task.tools import Tool
from .context import TaskContext
from .reading import Json, as_json, value_of
from .state import TaskState, label_of
from .tool_calls import ToolCalls


class Trust:
    """What calls that were run change about it.

    What a trusted tool returns may be acted upon as long as strangers had no hand in what it was called with, nor in what any tool was
    told that changes something: it could come back from there. Once strangers were heard, the call itself has to have been chosen before,
    too: an agent that obeys them finds or computes whatever they want.
    """

    def __init__(self, state: TaskState, calls: ToolCalls, standing: CallContext, around: Label) -> None:
        """`around`: of what the calls have told of the memory, and of what is in the world that the tools act on."""
        self._state = state
        self._calls = calls
        self._names = [call.name for call in standing.conversation[-1].tool_calls]
        self._was_clean = standing.label.integrity is Integrity.TRUSTED
        self._behind = len(standing.conversation)
        made = zip(calls.ran, calls.grounded, calls.labels, strict=True)
        self._clean = [ran and fits and label.joined(around).integrity is Integrity.TRUSTED for ran, fits, label in made]
        self._trusted = [is_clean and is_chosen for is_clean, is_chosen in zip(self._clean, calls.chosen, strict=True)]

    def shown(self, results: Sequence[ToolResult]) -> list[ToolResult]:
        """The results as agents are shown them: what strangers had a hand in, as data."""
        given = zip(results, self._clean, self._calls.ran, strict=True)
        return [quoted(result) if ran and not is_clean else result for result, is_clean, ran in given]

    @property
    def noted(self) -> TaskState:
        """What the state is to remember."""
        chosen = as_json(value_of(Chosen, self._state["chosen"]).with_tools(self._names)) if self._was_clean else self._state["chosen"]
        asked = [self._behind - 1] if self._was_clean else []
        told = [self._behind + place for place, is_trusted in enumerate(self._trusted) if is_trusted]
        return {"chosen": chosen, "trusted": [*self._state["trusted"], *asked, *told]}


def left_by_history(task: Task, tools: Mapping[str, Tool]) -> Label:
    """Return the label of what strangers left in the world that tools act on, in the conversation or session that the task goes on with."""
    label = starting_label(task, tools)
    if not label.is_disturbed and (label.integrity is Integrity.TRUSTED or not History(task, tools).is_tainted):
        return OPEN
    return Label(integrity=Integrity.UNTRUSTED, origins=label.origins, is_disturbed=True)


def chosen_by_plan(state: TaskState, plan: str, context: TaskContext) -> Json:
    """What is `Chosen` once there is a plan: what it names, too, where nothing of strangers was read before."""
    if label_of(state).integrity is Integrity.UNTRUSTED:
        return state["chosen"]
    return as_json(value_of(Chosen, state["chosen"]).with_plan(plan, context.tools))
