"""Take a conversation apart: messages that must stay together, messages that stay unchanged, and the pieces that can be cut."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ...protocols import Message
from .pieces import pieces
from .tokens import MESSAGE_TOKENS, TokenCounter, call_tokens, message_tokens

TEXT_MARK = "[…]"
"""Stands for text that was left out of a message, and for whole messages that were left out."""


def result_mark(characters: int) -> str:
    """Return the mark that stands for left-out text in a tool result."""
    return f"[… {characters:,} characters left out]"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a message's text that is kept or left out as a whole."""

    group: int
    part: int
    start: int
    """First character in the part's text."""
    end: int
    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Part:
    """The text of a message, or the content of its tool result."""

    message: int
    text: str
    is_result: bool
    pieces: range
    """The numbers of the part's pieces."""


@dataclass(slots=True)
class Group:
    """Messages that are kept or left out together: a tool result never stands without its call, nor a call without its results."""

    messages: list[int]
    is_fixed: bool
    """A fixed group stays, word for word."""
    tokens: int = 0
    """Tokens of the group if all its pieces are left out, with a mark for each part; for a fixed group, all its tokens."""
    parts: list[int] = field(default_factory=list)


class Conversation:
    """Messages taken apart into groups, parts and pieces.

    System prompts and the user's last message are fixed. A tool result that does not follow its call directly is left out.
    """

    def __init__(self, messages: Sequence[Message], count: TokenCounter) -> None:
        self.messages = messages
        self.count = count
        self.last_user = max((index for index, message in enumerate(messages) if message.role == "user"), default=-1)
        self.groups: list[Group] = []
        self.parts: list[Part] = []
        self.pieces: list[Piece] = []
        self.text_mark_tokens = count(f" {TEXT_MARK} ")
        self.result_mark_tokens = count(f" {result_mark(1_000_000)} ")
        for indices in _together(messages):
            self._add(indices)

    @property
    def ends_with_calls(self) -> bool:
        """Return whether the conversation ends with tool calls, from whose results the agent is about to continue."""
        return bool(self.groups) and bool(self.messages[self.groups[-1].messages[0]].tool_calls)

    def mark_tokens(self, part: Part) -> int:
        """Return the tokens of a mark in the part."""
        return self.result_mark_tokens if part.is_result else self.text_mark_tokens

    def _add(self, indices: list[int]) -> None:
        first = self.messages[indices[0]]
        group = Group(indices, is_fixed=first.role == "system" or indices[0] == self.last_user)
        number = len(self.groups)
        self.groups.append(group)
        if group.is_fixed:
            group.tokens = message_tokens(first, self.count)
            return
        group.tokens = call_tokens(first, self.count)
        for index in indices:
            message = self.messages[index]
            group.tokens += MESSAGE_TOKENS
            text = message.text if message.tool_result is None else message.tool_result.content
            if text:
                self._take_apart(number, group, index, text, is_result=message.tool_result is not None)

    def _take_apart(self, number: int, group: Group, index: int, text: str, *, is_result: bool) -> None:
        mark = self.result_mark_tokens if is_result else self.text_mark_tokens
        if self.messages[group.messages[0]].tool_calls and (whole := self.count(text)) <= mark:  # no more than the mark in its place
            group.tokens += whole
            return
        first = len(self.pieces)
        for start, end in pieces(text):
            piece = text[start:end]
            self.pieces.append(Piece(number, len(self.parts), start, end, piece, self.count(piece)))
        part = Part(index, text, is_result, range(first, len(self.pieces)))
        group.parts.append(len(self.parts))
        self.parts.append(part)
        group.tokens += mark


def _together(messages: Sequence[Message]) -> Iterator[list[int]]:
    """Yield the indices of messages that belong together: each call with its results, every other message by itself."""
    index = 0
    while index < len(messages):
        wanted = {call.id for call in messages[index].tool_calls}
        indices = [index]
        index += 1
        while index < len(messages) and (result := messages[index].tool_result) is not None and result.call_id in wanted:
            wanted.discard(result.call_id)
            indices.append(index)
            index += 1
        if messages[indices[0]].tool_result is None:
            yield indices
