"""The decision of the guard about a tool call, and the context that it decides in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ....protocols import Message, ToolCall
from ....protocols.messages import Value
from ...task.chosen import Chosen
from ...task.labels import Label
from ...task.tools import Tool


class Decision(Value):
    """Whether a call may run."""

    outcome: Literal["allowed", "ask", "refused"] = "allowed"
    """`ask`: only where somebody says yes to it."""
    reason: str = ""
    """Why not at once, as a sentence for the user and the model."""


@dataclass(frozen=True)
class CallContext:
    """What a run has seen when it is about to run calls, and what of that may be acted upon."""

    conversation: Sequence[Message]
    """The last message is the one with the calls."""
    label: Label
    """Of all that whoever makes the calls has seen."""
    chosen: Chosen = Chosen()
    """What was asked for before the run had read what strangers wrote."""
    trusted: Sequence[int] = ()
    """Places of the messages in the conversation that strangers had no hand in."""
    hide: Callable[[str], str] | None = None
    """What was done to the texts of the task before whoever makes the calls saw them; None: they were shown as they are."""
    told: "CallContext | None" = None
    """The same as a caller sees it that is shown placeholders."""


class Guard(Protocol):
    """Decides about calls by where they and their arguments come from."""

    def clearance(self, call: ToolCall, tool: Tool, standing: CallContext) -> Decision:
        """Whether the call may run."""
        ...

    def is_grounded(self, call: ToolCall, tool: Tool, standing: CallContext) -> bool:
        """Whether all that the call says comes from the user's words or from trusted data."""
        ...

    def is_chosen(self, call: ToolCall, tool: Tool, standing: CallContext) -> bool:
        """Whether the user or a plan had chosen this very call before the run read what strangers wrote."""
        ...

    def is_as_planned(self, call: ToolCall, tool: Tool, standing: CallContext) -> bool:
        """Whether a plan had named the call by then, and all that decides what it does: stated, or to be read."""
        ...
