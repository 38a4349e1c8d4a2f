"""Conversations with tau-bench's airline (arXiv 2406.12045), which the repository does not hold."""

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from nearfar.protocols import Message, ToolCall, ToolResult

from .puppet import Parameter, ToolKind, one_of

_VALUES: Final = 4
_CALLS: Final = 20
"""A text with so few values in so many calls is an enumeration."""


class Turn(NamedTuple):
    """What the user said, and what was done thereupon."""

    said: Message
    work: list[Message]


class Conversation(NamedTuple):
    """One of them."""

    rules: list[Message]
    turns: list[Turn]
    tools: tuple[ToolKind, ...]


def conversations(folder: Path) -> list[Conversation]:
    """All of them, in the order of the file."""
    lines = gzip.decompress((folder / "tau_airline_gpt4o.jsonl.gz").read_bytes()).decode().splitlines()
    recorded = [json.loads(line)["traj"] for line in lines]
    tools = tuple(_tools(recorded))
    return [_conversation(rows, tools) for rows in recorded]


def _conversation(rows: list[dict[str, Any]], tools: tuple[ToolKind, ...]) -> Conversation:
    rules: list[Message] = []
    turns: list[Turn] = []
    for row in rows:
        if row["role"] == "system":
            rules.append(Message.system(row["content"]))
        elif row["role"] == "user":
            turns.append(Turn(Message.user(row["content"]), []))
        else:
            turns[-1].work.append(_message(row))
    return Conversation(rules, [turn for turn in turns if turn.work], tools)


def _message(row: dict[str, Any]) -> Message:
    if row["role"] == "tool":
        return Message.tool(ToolResult(call_id=row["tool_call_id"], name=row["name"], content=row["content"]))
    return Message.assistant(row["content"] or "", tuple(_calls(row)))


def _calls(row: dict[str, Any]) -> Iterator[ToolCall]:
    for call in row.get("tool_calls") or ():
        yield ToolCall(id=call["id"], name=call["function"]["name"], arguments=json.loads(call["function"]["arguments"]))


def _tools(recorded: list[list[dict[str, Any]]]) -> Iterator[ToolKind]:
    """With parameters and types as they occur; those that always occur are required."""
    calls: defaultdict[str, list[ToolCall]] = defaultdict(list)
    for row in (row for rows in recorded for row in rows):
        for call in _calls(row):
            calls[call.name].append(call)
    for name, made in calls.items():
        names = dict.fromkeys(argument for call in made for argument in call.arguments)
        yield ToolKind(name, name.split("_")[0], tuple(_parameter(argument, made) for argument in names))


def _parameter(name: str, calls: list[ToolCall]) -> Parameter:
    values = [call.arguments[name] for call in calls if name in call.arguments]
    texts = Counter(value for value in values if isinstance(value, str))
    if texts:
        kind = one_of(list(texts)) if len(texts) <= _VALUES and texts.total() >= _CALLS else str
    else:
        kind = list[dict[str, Any]] if isinstance(values[0], list) else type(values[0])
    return Parameter(name, kind, len(values) == len(calls))
