"""Turn a conversation with parts left out into messages again."""

from collections.abc import Iterator

from ...protocols import Message
from .conversation import TEXT_MARK, Conversation, Part, result_mark
from .selection import Selection


def rendered(conversation: Conversation, selection: Selection) -> tuple[Message, ...]:
    """Return the kept messages in their order, with marks for missing text."""
    return tuple(_Rendering(conversation, selection).messages())


class _Rendering:
    def __init__(self, conversation: Conversation, selection: Selection) -> None:
        self._conversation = conversation
        self._selection = selection
        self._parts = {part.message: part for part in conversation.parts}

    def messages(self) -> Iterator[Message]:
        before: str | None = None
        """Role of the last message; None at the beginning."""
        gap: str | None = None
        """Role of the first message that is missing before the next one; None if none is missing."""
        for number, group in enumerate(self._conversation.groups):
            messages = [self._message(index) for index in group.messages] if self._selection.groups[number] else []
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

    def _text(self, part: Part) -> str:
        """Return the kept text of a part, word for word, with marks between."""
        kept: list[str] = []
        missing = 0
        for number in part.pieces:
            piece = self._conversation.pieces[number]
            if not self._selection.pieces[number]:
                missing += len(piece.text)
                continue
            kept += [*_marks(missing, part), piece.text]
            missing = 0
        return "".join([*kept, *_marks(missing, part)]).strip(" ")


def _marks(missing: int, part: Part) -> list[str]:
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
