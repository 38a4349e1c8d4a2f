"""Select the parts of a conversation to keep, most worth for the tokens, and turn them into messages again."""

import heapq
from collections.abc import Iterator

from ...protocols import Message
from .conversation import TEXT_MARK, Conversation, TextPart, result_mark
from .scoring import Scores


class Selection:
    """The kept part of a conversation.

    Worth has diminishing returns, since a fact is new only once. Therefore a greedy choice by worth for tokens comes close to the best
    one (Lin and Bilmes, *Multi-document Summarization via Budgeted Maximization of Submodular Functions*, 2010).
    """

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._scores = Scores(conversation)
        self._parts = {part.message: part for part in conversation.parts}
        self.pieces = bytearray(len(conversation.pieces))
        """1 for each piece that is kept."""
        self.groups = bytearray(group.is_fixed for group in conversation.groups)
        """1 for each group of which any part is kept."""
        self._known: set[str] = set()
        """Facts and words in the kept pieces."""
        self._order: list[tuple[str, int]] = []
        """The kept entries, in the order of selection."""
        if conversation.ends_with_calls:  # an agent that does not see its last calls repeats them
            self._keep(~(len(conversation.groups) - 1))

    def fill(self, budget: int) -> None:
        """Keep the entries with the most worth until `budget` tokens are used."""
        # An entry stands for a piece, or, by its complement, for the calls of a group.
        entries = [number for number, is_kept in enumerate(self.pieces) if not is_kept]
        entries += [~group for group, is_kept in enumerate(self.groups) if not is_kept and self._scores.call_worth(group)]
        # An entry that is too long may fit once its neighbour is kept, and is then tried again.
        heap = [(-self._density(entry, cost), entry) for entry in entries if (cost := self._cost(entry)) <= budget]
        heapq.heapify(heap)
        while heap and budget > 0:
            promised, entry = heapq.heappop(heap)
            if self._is_kept(entry):
                continue
            if (cost := self._cost(entry)) > budget:
                continue
            if (density := self._density(entry, cost)) < -promised * 0.999:
                heapq.heappush(heap, (-density, entry))
                continue
            budget -= cost
            for cheaper in self._keep(entry):
                heapq.heappush(heap, (-self._density(cheaper, self._cost(cheaper)), cheaper))

    def drop(self, tokens: int) -> bool:
        """Drop the entries that were selected last, at least `tokens` of them; return False if nothing is left to drop."""
        if not self._order:
            return False
        while self._order and tokens > 0:
            kind, number = self._order.pop()
            if kind == "piece":
                self.pieces[number] = 0
                tokens -= self._conversation.pieces[number].tokens
            else:
                self.groups[number] = 0
                tokens -= self._conversation.groups[number].tokens
        return True

    def _is_kept(self, entry: int) -> bool:
        return bool(self.pieces[entry] if entry >= 0 else self.groups[~entry])

    def _group(self, entry: int) -> int:
        return self._conversation.pieces[entry].group if entry >= 0 else ~entry

    def _density(self, entry: int, cost: int) -> float:
        """Return worth for tokens. An entry without cost comes first."""
        group = self._group(entry)
        worth = 0.0
        if entry >= 0:
            worth += self._scores.worth[entry] + self._scores.new(self._scores.news[entry], self._known)
        if not self.groups[group]:
            worth += self._scores.call_worth(group) + self._scores.new(self._scores.call_news[group], self._known)
        return worth / max(cost, 1)

    def _cost(self, entry: int) -> int:
        """Return the tokens by which the conversation grows. A piece next to a kept one can save a mark."""
        group = self._group(entry)
        cost = 0 if self.groups[group] else self._conversation.groups[group].tokens + self._conversation.text_mark_tokens
        if entry < 0:
            return cost
        piece = self._conversation.pieces[entry]
        part = self._conversation.parts[piece.part]
        gaps = (entry > part.pieces.start and not self.pieces[entry - 1]) + (entry + 1 < part.pieces.stop and not self.pieces[entry + 1])
        return cost + piece.tokens + self._conversation.mark_tokens(part) * (gaps - 1)

    def _keep(self, entry: int) -> list[int]:
        """Keep a piece or a group's calls, and return the pieces that became cheaper by that."""
        group = self._group(entry)
        cheaper: list[int] = []
        if not self.groups[group]:
            self.groups[group] = 1
            self._order.append(("group", group))
            self._known |= self._scores.call_news[group]
            cheaper += [number for part in self._conversation.groups[group].parts for number in self._conversation.parts[part].pieces]
        if entry >= 0:
            self.pieces[entry] = 1
            self._order.append(("piece", entry))
            self._known |= self._scores.news[entry]
            part_pieces = self._conversation.parts[self._conversation.pieces[entry].part].pieces
            cheaper += [number for number in (entry - 1, entry + 1) if number in part_pieces]
        return [number for number in cheaper if not self.pieces[number]]

    def render(self) -> tuple[Message, ...]:
        """Return the kept messages in their order, with marks for missing text."""
        return tuple(self._messages())

    def _messages(self) -> Iterator[Message]:
        before: str | None = None
        """Role of the last message; None at the beginning."""
        gap: str | None = None
        """Role of the first message that is missing before the next one; None if none is missing."""
        for number, group in enumerate(self._conversation.groups):
            messages = [self._message(index) for index in group.messages] if self.groups[number] else []
            # A message of nothing but a mark is not worth its tokens.
            if not messages or (not group.is_fixed and messages == [_nothing(messages[0])]):
                gap = gap or self._conversation.messages[group.messages[0]].role
                continue
            if gap is not None:
                yield from _bridge(before, messages, is_fixed=group.is_fixed)
            yield from messages
            before, gap = messages[-1].role, None

    def _message(self, index: int) -> Message:
        message = self._conversation.messages[index]
        part = self._parts.get(index)
        if part is None:
            return message
        text = self._text(part)
        if message.tool_result is None:
            return message if text == message.text else message.without_state.model_copy(update={"text": text})
        return Message.tool(message.tool_result.model_copy(update={"content": text}))

    def _text(self, part: TextPart) -> str:
        """Return the kept text of a part, word for word, with marks between."""
        kept: list[str] = []
        missing = 0
        for number in part.pieces:
            piece = self._conversation.pieces[number]
            if not self.pieces[number]:
                missing += len(piece.text)
                continue
            kept += [*_marks(missing, part), piece.text]
            missing = 0
        return "".join([*kept, *_marks(missing, part)]).strip(" ")


def _marks(missing: int, part: TextPart) -> list[str]:
    if not missing:
        return []
    return [f" {result_mark(missing)} "] if part.is_result else [f" {TEXT_MARK} "]


def _nothing(message: Message) -> Message:
    return message.without_state.model_copy(update={"text": TEXT_MARK})


def _bridge(before: str | None, messages: list[Message], *, is_fixed: bool) -> Iterator[Message]:
    """Mark missing messages before `messages`.

    The mark is a message in the role of a missing one if two messages of one role would otherwise meet, since chat templates refuse
    that; else it stands at the beginning of the next message. Between the system prompt and the user's last message there is no place
    for a mark, nor in calls and results: a tool's result may be cut, but it holds only the tool's words.
    """
    first = messages[0]
    if first.role == "user" and before == "user":
        yield Message.assistant(TEXT_MARK)
    elif first.role == "assistant" and before in (None, "system", "assistant"):
        yield Message.user(TEXT_MARK)
    elif not is_fixed and not first.tool_calls and not first.text.startswith(TEXT_MARK):
        messages[0] = first.without_state.model_copy(update={"text": f"{TEXT_MARK} {first.text}"})
