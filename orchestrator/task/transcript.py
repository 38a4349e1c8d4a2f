"""Write a conversation as text."""

import json
from collections.abc import Sequence

from ...protocols import Message, ToolCall


def transcript(messages: Sequence[Message]) -> str:
    """Return the executor's work as text: a line for each call and each result, and its words as they stand."""
    return "\n".join(line for message in messages for line in _lines(message))


def call_text(call: ToolCall) -> str:
    """Return a call as a line: `open(title="Mira Falk")`."""
    arguments = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items())
    return f"{call.name}({arguments})"


def _lines(message: Message) -> list[str]:
    if message.tool_result is not None:
        return [f"= {message.tool_result.content}"]
    words = [message.text] if message.text.strip() else []
    return [*words, *(call_text(call) for call in message.tool_calls)]
