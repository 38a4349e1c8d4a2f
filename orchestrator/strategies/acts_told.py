"""Words in which an agent hears of the tool calls that agents before it made."""

import json
from collections.abc import Sequence
from typing import Final

from ...protocols import ToolResult
from ..safety.guard.quoting import quoted
from ..task.labels import Integrity, Label
from ..task.results import ToolOutcome
from .reading import value_of
from .state import TaskState, label_of

_LONGEST: Final = 500
"""Characters of arguments, and of a result, that the next agent is told."""
_DONE: Final = "Agents before you worked on this task. Their tool calls stay done. Do not make them again unless the task needs it twice."
_WITHHELD: Final = "arguments and result stay on the user's device"


def done_note(state: TaskState, *, may_hear: bool) -> str:
    """Return what the next agent is told of the tool calls before it; empty where none may have changed anything.

    `may_hear`: it may be told all that the run has seen; else it is told the tools' names alone.
    """
    made = [value_of(ToolOutcome, outcome) for outcome in state["tool_calls"]]
    acts = [outcome for outcome in made if outcome.may_have_acted]
    label = label_of(state)
    return "\n".join([_DONE, *(_line(act, label) if may_hear else _name(act) for act in acts)]) if acts else ""


def told_of(outcomes: Sequence[ToolOutcome], label: Label) -> str:
    """Return one line for each call that may have changed something."""
    return "\n".join(_line(outcome, label) for outcome in outcomes if outcome.may_have_acted)


def _line(act: ToolOutcome, label: Label) -> str:
    arguments = json.dumps(act.call.arguments, ensure_ascii=False)
    result = ToolResult(call_id=act.call.id, name=act.call.name, content=_cut(f"{act.call.name}({_cut(arguments)}): {act.result}", 2))
    told = result.content if label.integrity is Integrity.TRUSTED else quoted(result).content
    return f"- {_state(act)}: {told}"


def _name(act: ToolOutcome) -> str:
    return f"- {_state(act)}: {act.call.name}; its {_WITHHELD}"


def _state(act: ToolOutcome) -> str:
    return act.outcome.replace("unknown", "outcome unknown")


def _cut(text: str, times: int = 1) -> str:
    return text if len(text) <= times * _LONGEST else f"{text[: times * _LONGEST]}..."
