"""Who chose a call: a plan that names it, whoever made the same one before, or the user, who has named the record that it reads."""

from collections.abc import Iterable

from ....protocols import Message, ToolCall
from ...task.naming import named_tools
from ...task.tools import Tool
from .arguments import doubtful
from .grounds import Grounds


def is_planned(call: ToolCall, tool: Tool, plan: str) -> bool:
    """Say whether a line of a plan names this very call: the tool, and beside it each value that the call gives it."""
    lines = [line for line in plan.splitlines() if named_tools(line, [tool.name])]
    return any(not doubtful(call, tool, list(call.arguments), Grounds([line])) for line in lines)


def was_made(call: ToolCall, messages: Iterable[Message]) -> bool:
    """Say whether one of the messages makes the same call."""
    return any(made.name == call.name and made.arguments == call.arguments for message in messages for made in message.tool_calls)


def is_keyed(call: ToolCall, tool: Tool, grounds: Grounds) -> bool:
    """Say whether a call reads a record whose key stands in texts: each key that it gives, and one at least."""
    keys = [name for name in call.arguments if name in tool.declared.keys]
    return bool(keys) and not doubtful(call, tool, keys, grounds)
