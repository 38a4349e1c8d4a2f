"""What the compressor is held against: the simplest ways to make a conversation shorter, under the same rules about calls and results."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from nearfar.orchestrator.compression import Compressed, compress
from nearfar.orchestrator.compression.conversation import Conversation, conversation_tokens, estimated_tokens
from nearfar.protocols import Message

SHARES = (2, 4, 8)
"""Budgets: the whole conversation's tokens divided by these."""


class Method(Protocol):
    def __call__(self, messages: Sequence[Message], *, budget: int) -> Compressed: ...


def keep_last(messages: Sequence[Message], *, budget: int) -> Compressed:
    """System prompts, the user's last message, and the last messages that fit."""
    return _kept(messages, budget, lambda numbers: numbers[::-1])


def head_and_tail(messages: Sequence[Message], *, budget: int) -> Compressed:
    """The same with first and last messages by turns."""
    return _kept(messages, budget, lambda numbers: [number for pair in zip(numbers[::-1], numbers, strict=True) for number in pair])


METHODS: dict[str, Method] = {"compress": compress, "keep_last": keep_last, "head_and_tail": head_and_tail}


def _kept(messages: Sequence[Message], budget: int, order: Callable[[list[int]], Iterable[int]]) -> Compressed:
    groups = Conversation(messages, estimated_tokens).groups
    sizes = [conversation_tokens(messages[index] for index in group.messages) for group in groups]
    chosen = {number for number, group in enumerate(groups) if group.is_fixed}
    room = budget - sum(sizes[number] for number in chosen)
    for number in order(list(range(len(groups)))):
        if number in chosen:
            continue
        if sizes[number] > room:
            break
        room -= sizes[number]
        chosen.add(number)
    kept = tuple(messages[index] for number in sorted(chosen) for index in groups[number].messages)
    return Compressed(messages=kept, tokens=conversation_tokens(kept), original_tokens=sum(sizes))


def shown(messages: Iterable[Message]) -> str:
    """Everything that a model reads of a conversation, arguments as values."""
    return "\n".join(part for message in messages for part in _parts(message))


def _parts(message: Message) -> Iterable[str]:
    yield message.text
    for call in message.tool_calls:
        yield from map(str, leaves(call.arguments))
    if message.tool_result is not None:
        yield message.tool_result.content


def leaves(value: object) -> Iterable[object]:
    """The values inside lists and objects."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value


def mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None
