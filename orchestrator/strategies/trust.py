"""Decide which parts of a conversation are trusted enough to act upon, and quote the rest."""

from collections.abc import Mapping

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
from .tool_calls import PlannedCall, ToolCalls


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
