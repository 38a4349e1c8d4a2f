"""Trajectories of an agent with tools (tau-bench airline): are the arguments of its next calls still to be read?"""

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nearfar.orchestrator.compression.conversation import conversation_tokens
from nearfar.protocols import ContextOverflow, Message, ToolCall, ToolResult

from .methods import METHODS, SHARES, leaves, mean, shown

FILE = Path("tools") / "tau_airline_gpt4o.jsonl.gz"
SHORTEST = 1500
"""Tokens of a history, without the system prompt, that is worth cutting."""
SHORTEST_VALUE = 3
"""Characters of an argument that does not occur by accident."""


def figures(data: Path, *, quick: bool) -> dict[str, object]:
    """By budget and method: of the arguments of each call that stand in the history before it, the share that still stand there."""
    lines = gzip.decompress((data / FILE).read_bytes()).splitlines()
    kept: dict[str, list[float]] = {}
    for line in lines[:: 6 if quick else 1]:
        messages = [_message(each) for each in json.loads(line)["traj"]]
        for history, values in _steps(messages):
            _measure(history, values, kept)
    return {**{name: mean(found) for name, found in kept.items()}, "calls": len(next(iter(kept.values()), []))}


def _measure(history: Sequence[Message], values: Sequence[str], kept: dict[str, list[float]]) -> None:
    system = [message for message in history if message.role == "system"]
    rest = conversation_tokens(history) - conversation_tokens(system)
    for share in SHARES:
        for name, method in METHODS.items():
            try:
                messages = method(history, budget=conversation_tokens(system) + rest // share).messages
            except ContextOverflow:  # the user's last message alone is longer
                messages = ()
            text = shown(message for message in messages if message.role != "system")
            kept.setdefault(f"1/{share} {name}", []).append(sum(value in text for value in values) / len(values))


def _steps(messages: Sequence[Message]) -> Iterator[tuple[Sequence[Message], list[str]]]:
    """Each history before a call that needs something from it, and what it needs."""
    for index, message in enumerate(messages):
        history = messages[:index]
        own = [each for each in history if each.role != "system"]
        text = shown(own)
        values = [str(value) for call in message.tool_calls for value in leaves(call.arguments)]
        needed = [value for value in values if len(value) >= SHORTEST_VALUE and value in text]
        if needed and conversation_tokens(own) >= SHORTEST:
            yield history, needed


def _message(recorded: dict[str, Any]) -> Message:
    text = recorded.get("content") or ""
    if recorded["role"] == "tool":
        return Message.tool(ToolResult(call_id=recorded["tool_call_id"], name=recorded["name"], content=text))
    calls = tuple(_call(each) for each in recorded.get("tool_calls") or ())
    return Message(role=recorded["role"], text=text, tool_calls=calls)


def _call(recorded: dict[str, Any]) -> ToolCall:
    return ToolCall(id=recorded["id"], name=recorded["function"]["name"], arguments=json.loads(recorded["function"]["arguments"]))
