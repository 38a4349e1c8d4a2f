"""What of a conversation may be acted upon, and how the rest of it is shown."""

from collections.abc import Sequence

from ...protocols import ToolResult
from ..guarding.naming import named_tools
from ..guarding.quoting import quoted
from ..labels import Integrity, Label
from ..tool_calls import Standing, ToolCalls
from .context import TaskContext
from .state import TaskState, label_of


class Trust:
    """What calls that were run change about it.

    What a trusted tool returns may be acted upon as long as strangers had no hand in what it was called with, nor in what any tool was
    told that changes something: it could come back from there.
    """

    def __init__(self, state: TaskState, calls: ToolCalls, standing: Standing, around: Label) -> None:
        """`around`: of what the calls have told of the memory, and of what is in the world that the tools act on."""
        self._state = state
        self._calls = calls
        self._names = [call.name for call in standing.conversation[-1].tool_calls]
        self._was_clean = standing.label.integrity is Integrity.TRUSTED
        self._behind = len(standing.conversation)
        fitting = zip(calls.ran, calls.grounded, calls.labels, strict=True)
        self._trusted = [ran and fits and label.joined(around).integrity is Integrity.TRUSTED for ran, fits, label in fitting]

    def shown(self, results: Sequence[ToolResult]) -> list[ToolResult]:
        """The results as agents are shown them: what is not trusted, as data."""
        given = zip(results, self._trusted, self._calls.ran, strict=True)
        return [quoted(result) if ran and not is_trusted else result for result, is_trusted, ran in given]

    @property
    def noted(self) -> TaskState:
        """What the state is to remember."""
        chosen = sorted({*self._state["chosen"], *self._names}) if self._was_clean else self._state["chosen"]
        asked = [self._behind - 1] if self._was_clean else []
        told = [self._behind + place for place, is_trusted in enumerate(self._trusted) if is_trusted]
        return {"chosen": chosen, "trusted": [*self._state["trusted"], *asked, *told]}


def chosen_by_plan(state: TaskState, plan: str, context: TaskContext) -> list[str]:
    """The tools that may be called, once there is a plan: those that it names, where nothing of strangers was read before."""
    if label_of(state).integrity is Integrity.UNTRUSTED:
        return state["chosen"]
    return sorted({*state["chosen"], *named_tools(plan, context.tools)})
