"""Messages as a chat template wants them: Hugging Face's convention, with tool calls as the template can show them."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, TypeAlias

from pydantic import JsonValue

from ...protocols import Message, ToolCall, ToolResult, ToolSpec

OPENER: Final = "<tool_call>"
CLOSER: Final = "</tool_call>"

TemplateMessage: TypeAlias = dict[str, JsonValue]

_EXPLANATION: Final = """\
You can call these tools. Each line describes one, as JSON:
<tools>
{tools}
</tools>
To call a tool, answer with exactly this, once for each call:
{opener}{{"name": "the tool's name", "arguments": {{"an argument": "its value"}}}}{closer}
Results come back between <tool_response> and </tool_response>."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages and tools in the form in which a template takes them."""

    messages: tuple[TemplateMessage, ...]
    tools: tuple[TemplateMessage, ...] = ()


def native(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Conversation:
    """Convert messages for templates that show tools and calls themselves."""
    return Conversation(tuple(_native(message) for message in messages), tuple(_tool(tool) for tool in tools))


def plain(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Conversation:
    """Convert messages for templates that know only system, user and assistant, in turn: explain tools and write calls as text."""
    turns = [_plain(message) for message in messages]
    if tools:
        explanation = _EXPLANATION.format(tools="\n".join(_compact(_tool(tool)) for tool in tools), opener=OPENER, closer=CLOSER)
        turns.insert(0, ("system", explanation))
    merged = [(role, "\n\n".join(text for _, text in group if text)) for role, group in groupby(turns, key=lambda turn: turn[0])]
    return Conversation(tuple({"role": role, "content": text} for role, text in merged))


def without_system(conversation: Conversation) -> Conversation:
    """Move system text into the user's, for templates that show no system message."""
    turns: list[TemplateMessage] = []
    for message in conversation.messages:
        turn = {**message, "role": "user"} if message["role"] == "system" else message
        if turns and turns[-1]["role"] == turn["role"] == "user":
            turns[-1] = {**turn, "content": f"{turns[-1]['content']}\n\n{turn['content']}"}
        else:
            turns.append(turn)
    return Conversation(tuple(turns), conversation.tools)


def _native(message: Message) -> TemplateMessage:
    result = message.tool_result
    if result is not None:
        return {"role": "tool", "name": result.name, "tool_call_id": result.call_id, "content": result.content}
    if not message.tool_calls:
        return {"role": message.role, "content": message.text}
    calls: list[JsonValue] = [{"type": "function", "id": call.id, "function": _function(call)} for call in message.tool_calls]
    return {"role": "assistant", "content": message.text, "tool_calls": calls}


def _plain(message: Message) -> tuple[str, str]:
    result = message.tool_result
    if result is not None:
        return "user", f"<tool_response>{result.content}</tool_response>"
    calls = [f"{OPENER}{_compact(_function(call))}{CLOSER}" for call in message.tool_calls]
    return message.role, "\n".join([message.text, *calls] if message.text else calls)


def _function(call: ToolCall) -> dict[str, JsonValue]:
    return {"name": call.name, "arguments": dict(call.arguments)}


def _tool(tool: ToolSpec) -> TemplateMessage:
    return {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters}}


def _compact(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)


_PROBE_CALL: Final = ToolCall(id="123456789", name="probe_tool", arguments={"probe_argument": "probe_value"})
_PROBE_RESULT: Final = "probe_result"
PROBE: Final = native(
    (
        Message.user("probe"),
        Message.assistant("", (_PROBE_CALL,)),
        Message.tool(ToolResult(call_id=_PROBE_CALL.id, name=_PROBE_CALL.name, content=_PROBE_RESULT)),
    ),
    (ToolSpec(name=_PROBE_CALL.name),),
)
"""A conversation that shows how a template writes calls."""
_SHOWN_CALL: Final = re.compile(rf"{OPENER}\s*(.*?)\s*{CLOSER}", re.DOTALL)


def shows_probe(rendered: str) -> bool:
    """Return True if `PROBE` was rendered whole, with its call in the format that the model is to write."""
    # Templates that explain the format show a pattern of it, too.
    return _PROBE_RESULT in rendered and any(_is_probe_call(text) for text in _SHOWN_CALL.findall(rendered))


def _is_probe_call(text: str) -> bool:
    try:
        return bool(json.loads(text) == _function(_PROBE_CALL))
    except ValueError:
        return False
