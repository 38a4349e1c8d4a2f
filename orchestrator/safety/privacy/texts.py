"""The texts of a request: all that users, tools and agents have said in it."""

from collections.abc import Callable, Container, Iterable, Iterator

from pydantic import JsonValue

from ....protocols import Message, StepRequest, ToolCall


def texts_in(value: JsonValue) -> Iterator[str]:
    """All texts in a value of JSON, names of fields included."""
    match value:
        case str():
            yield value
        case list():
            for each in value:
                yield from texts_in(each)
        case dict():
            for name, each in value.items():
                yield name
                yield from texts_in(each)


def changed(value: JsonValue, change: Callable[[str], str]) -> JsonValue:
    """A value of JSON with all its texts changed, names of fields included."""
    match value:
        case str():
            return change(value)
        case list():
            return [changed(each, change) for each in value]
        case dict():
            return {change(name): changed(each, change) for name, each in value.items()}
        case _:
            return value


def texts_of(messages: Iterable[Message]) -> list[str]:
    """All texts of a conversation, in its order."""
    return [text for message in messages for text in (*_said(message), *_argued(message)) if text]


def said_in(messages: Iterable[Message]) -> list[str]:
    """The texts that follow each other in a conversation: what is in the arguments of a call stands beside each other, as in a table."""
    return [text for message in messages for text in _said(message) if text]


def _said(message: Message) -> Iterator[str]:
    yield message.text
    if message.tool_result is not None:
        yield message.tool_result.content


def _argued(message: Message) -> Iterator[str]:
    for call in message.tool_calls:
        yield from texts_in(call.arguments)


def with_texts(request: StepRequest, change: Callable[[str], str], *, but: Container[int] = ()) -> StepRequest:
    """The request with all texts of its conversation changed, but for messages at some positions."""
    messages = tuple(message if position in but else changed_message(message, change) for position, message in enumerate(request.messages))
    return request if messages == request.messages else request.model_copy(update={"messages": messages})


def with_arguments(call: ToolCall, change: Callable[[str], str]) -> ToolCall:
    return call.model_copy(update={"arguments": changed(call.arguments, change)})


def changed_message(message: Message, change: Callable[[str], str]) -> Message:
    result = message.tool_result
    changes: dict[str, object] = {"text": change(message.text) if message.text else ""}
    if result is not None:
        changes["tool_result"] = result.model_copy(update={"content": change(result.content)})
    if message.tool_calls:
        changes["tool_calls"] = tuple(with_arguments(call, change) for call in message.tool_calls)
    written = message.model_copy(update=changes)
    return written if written == message else written.without_state
