"""The decision of the guard about a tool call, and the context that it decides in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ....protocols import Message, ToolCall
from ....protocols.messages import Value
from ...task.labels import Chosen, Label
from ...task.tools import Tool


class Decision(Value):
    """The guard's decision about a tool call."""

    outcome: Literal["allowed", "ask", "refused"] = "allowed"
    """`ask`: the call needs approval."""
    reason: str = ""
    """Reason why the call may not run at once, as a sentence for the user and the model."""


@dataclass(frozen=True)
class CallContext:
    """Everything a run has seen when it is about to run tool calls, and which part of it is trusted."""

    conversation: Sequence[Message]
    """The last message is the one with the calls."""
    label: Label
    """The label of all that the agent which makes the calls has seen."""
    chosen: Chosen = Chosen()
    """The tools and plans chosen before the run read untrusted content."""
    trusted: Sequence[int] = ()
    """Positions of the messages in the conversation that no untrusted content has influenced."""
    hide: Callable[[str], str] | None = None
    """Redacts the texts of the task as they were redacted for the agent that makes the calls; None: it saw them as they are."""
    told: "CallContext | None" = None
    """The context as an agent sees it that is shown placeholders."""


class Guard(Protocol):
    """Decides about calls by where they and their arguments come from."""

    def clearance(self, call: ToolCall, tool: Tool, standing: CallContext) -> Decision:
        """Decide whether the call may run."""
        ...

    def is_grounded(self, call: ToolCall, tool: Tool, standing: CallContext) -> bool:
        """Return whether all arguments come from the user's words or from trusted data."""
        ...

    def is_chosen(self, call: ToolCall, tool: Tool, standing: CallContext) -> bool:
        """Return whether the user or a plan had chosen this very call before the run read untrusted content."""
        ...

    def is_as_planned(self, call: ToolCall, tool: Tool, standing: CallContext) -> bool:
        """Return whether a plan had named the call before the run read untrusted content.

        Every argument that decides what the call does has to be stated in the plan, or be a value that the plan says to read.
        """
        ...
