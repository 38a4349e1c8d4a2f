"""Find out who chose a tool call: a plan that names it, an earlier call that equals it, or the user, who named the record that it reads."""

from collections.abc import Iterable

from ....protocols import Message, ToolCall
from ...task.labels import named_tools
from ...task.tools import Tool
from .arguments import doubtful
from .flows import calls_cut_out
from .grounds import Grounds


def is_planned(call: ToolCall, tool: Tool, plan: str) -> bool:
    """Return whether a plan names this very call, with each of its values: as a call, or in a line with the tool's name."""
    words = calls_cut_out(plan, tool.name)
    lines = [line for line in words.rest.splitlines() if named_tools(line, [tool.name])]
    return any(not doubtful(call, tool, list(call.arguments), Grounds([said])) for said in (*words.calls, *lines))


def was_made(call: ToolCall, messages: Iterable[Message]) -> bool:
    """Return whether one of the messages makes the same call."""
    return any(made.name == call.name and made.arguments == call.arguments for message in messages for made in message.tool_calls)


def is_keyed(call: ToolCall, tool: Tool, grounds: Grounds) -> bool:
    """Return whether a call reads a record by keys that are all in trusted texts. A call without keys does not."""
    keys = [name for name in call.arguments if name in tool.declared.keys]
    return bool(keys) and not doubtful(call, tool, keys, grounds)
