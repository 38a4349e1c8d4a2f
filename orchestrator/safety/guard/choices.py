"""Who chose a call: a plan that names it, whoever made the same one before, or the user, who has named the record that it reads."""

from collections.abc import Iterable

from ....protocols import Message, ToolCall
from ...task.naming import named_tools
from ...task.tools import Tool
from .arguments import doubtful
from .flows import calls_cut_out
from .grounds import Grounds


def is_planned(call: ToolCall, tool: Tool, plan: str) -> bool:
    """Say whether a plan names this very call: a call with each value in it, or a line with the tool's name and each value beside it."""
    words = calls_cut_out(plan, tool.name)
    lines = [line for line in words.rest.splitlines() if named_tools(line, [tool.name])]
    return any(not doubtful(call, tool, list(call.arguments), Grounds([said])) for said in (*words.calls, *lines))


def was_made(call: ToolCall, messages: Iterable[Message]) -> bool:
    """Say whether one of the messages makes the same call."""
    return any(made.name == call.name and made.arguments == call.arguments for message in messages for made in message.tool_calls)


def is_keyed(call: ToolCall, tool: Tool, grounds: Grounds) -> bool:
    """Say whether a call reads a record whose key stands in texts: each key that it gives, and one at least."""
    keys = [name for name in call.arguments if name in tool.declared.keys]
    return bool(keys) and not doubtful(call, tool, keys, grounds)
