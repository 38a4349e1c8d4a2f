"""Take a conversation apart: its tokens, messages that must stay together, messages that stay unchanged, and pieces that can be cut."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ...protocols import Message

TokenCounter = Callable[[str], int]
"""Counts the tokens of a text as a model does."""

MESSAGE_TOKENS = 6
"""Tokens that a chat template puts around a message, a call or a result: the most among the templates we know."""

_TOKEN = re.compile(r"[A-Za-z]{1,4}|\n+|[^\sA-Za-z]")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


Span = tuple[int, int]
"""Start and end of a piece in the text."""
SHORTEST = 24
"""Characters of a piece; a shorter piece joins the piece before it."""
LONGEST = 240
"""Characters of a piece of structured text that is not cut further, and of the pieces of a text without any border."""
_PROSE_BORDER = re.compile(r"\n+|(?<=[.!?])[\"')\]]*\s+|(?<=[。！？])")
_STRUCTURE = re.compile(r'\\.|["\[\]{},]')
_ENTRIES = 3
"""A text with at least this many pairs of key and value at its beginning counts as structured."""
_PAIR = re.compile(r'["\']?[\w-]+["\']?\s*:\s*\S')
TEXT_MARK = "[…]"
"""Stands for text that was left out of a message, and for whole messages that were left out."""


def estimated_tokens(text: str) -> int:
    """Estimate the tokens of a text, on the high side: one for four letters of a word, for each digit and each mark, two beyond ASCII.

    Vocabularies of general models need about two thirds of that for English prose, and about as much for tables of numbers.
    """
    return len(_TOKEN.findall(text)) + (0 if text.isascii() else len(_NOT_ASCII.findall(text)))


def message_tokens(message: Message, count: TokenCounter = estimated_tokens) -> int:
    """Return the tokens of one message with its calls or its result."""
    tokens = MESSAGE_TOKENS + call_tokens(message, count) + count(message.text)
    tokens += sum(attachment.most_tokens for attachment in message.attachments)
    if message.tool_result is not None:
        tokens += count(message.tool_result.content)
    return tokens


def call_tokens(message: Message, count: TokenCounter) -> int:
    """Return the tokens of the calls in a message."""
    arguments = (json.dumps(call.arguments, ensure_ascii=False) for call in message.tool_calls)
    return sum(MESSAGE_TOKENS + count(call.name) + count(given) for call, given in zip(message.tool_calls, arguments, strict=True))


def conversation_tokens(messages: Iterable[Message], count: TokenCounter = estimated_tokens) -> int:
    """Return the tokens of all messages."""
    return sum(message_tokens(message, count) for message in messages)


def pieces(text: str) -> list[Span]:
    """Return consecutive spans that together are the text."""
    cut = _structured if _is_structured(text) else _prose
    joined: list[Span] = []
    for start, end in _bounded(cut(text)):
        if joined and (end - start < SHORTEST or joined[-1][1] - joined[-1][0] < SHORTEST) and end - joined[-1][0] <= LONGEST:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _is_structured(text: str) -> bool:
    return text.lstrip()[:1] in ("{", "[") and len(_PAIR.findall(text[:1000])) >= _ENTRIES


def _prose(text: str) -> Iterator[Span]:
    start = 0
    for border in _PROSE_BORDER.finditer(text):
        if border.end() > start:
            yield start, border.end()
            start = border.end()
    if start < len(text):
        yield start, len(text)


def _structured(text: str) -> Iterator[Span]:
    """Yield each object or list as a whole if it is short, else its entries."""
    marks = list(_marks(text))
    short = _short_ends(marks)
    start = behind = 0
    for place, mark in marks:
        if place < behind:
            continue
        behind = short.get(place, behind)
        if mark == ",":
            yield start, place + 1
            start = place + 1
    if start < len(text):
        yield start, len(text)


def _short_ends(marks: Iterable[tuple[int, str]]) -> dict[int, int]:
    """Return the ends of objects and lists that are no longer than a piece, by their starts."""
    opened: list[int] = []
    ends: dict[int, int] = {}
    for place, mark in marks:
        if mark in "[{":
            opened.append(place)
        elif mark in "]}" and opened:
            start = opened.pop()
            if place + 1 - start <= LONGEST:
                ends[start] = place + 1
    return ends


def _marks(text: str) -> Iterator[tuple[int, str]]:
    """Yield brackets and commas outside strings, with their places."""
    is_string = False
    for match in _STRUCTURE.finditer(text):
        mark = match.group()
        if mark == '"':
            is_string = not is_string
        elif not is_string and len(mark) == 1:
            yield match.start(), mark


def _bounded(spans: Iterator[Span]) -> Iterator[Span]:
    """Yield the spans; a long span without borders of its own is cut at the greatest length."""
    for start, end in spans:
        if end - start <= 2 * LONGEST:
            yield start, end
        else:
            yield from ((place, min(place + LONGEST, end)) for place in range(start, end, LONGEST))


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
class TextPart:
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

    System prompts, the user's last message and messages with attachments are fixed. A tool result that does not follow its call directly
    is left out.
    """

    def __init__(self, messages: Sequence[Message], count: TokenCounter) -> None:
        self.messages = messages
        self.count = count
        self.last_user = max((index for index, message in enumerate(messages) if message.role == "user"), default=-1)
        self.groups: list[Group] = []
        self.parts: list[TextPart] = []
        self.pieces: list[Piece] = []
        self.text_mark_tokens = count(f" {TEXT_MARK} ")
        self.result_mark_tokens = count(f" {result_mark(1_000_000)} ")
        for indices in _together(messages):
            self._add(indices)

    @property
    def ends_with_calls(self) -> bool:
        """Return whether the conversation ends with tool calls, from whose results the agent is about to continue."""
        return bool(self.groups) and bool(self.messages[self.groups[-1].messages[0]].tool_calls)

    def mark_tokens(self, part: TextPart) -> int:
        """Return the tokens of a mark in the part."""
        return self.result_mark_tokens if part.is_result else self.text_mark_tokens

    def _add(self, indices: list[int]) -> None:
        first = self.messages[indices[0]]
        group = Group(indices, is_fixed=first.role == "system" or indices[0] == self.last_user or bool(first.attachments))
        number = len(self.groups)
        self.groups.append(group)
        if group.is_fixed:
            group.tokens = message_tokens(first, self.count)
            return
        group.tokens = call_tokens(first, self.count)
        for index in indices:
            message = self.messages[index]
            group.tokens += MESSAGE_TOKENS + sum(attachment.most_tokens for attachment in message.attachments)
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
        part = TextPart(index, text, is_result, range(first, len(self.pieces)))
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
