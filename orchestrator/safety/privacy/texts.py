"""The texts of a request: all that users, tools and agents have said in it."""

from collections.abc import Callable, Container, Iterable, Iterator

from pydantic import JsonValue

from ....protocols import Message, StepRequest, ToolCall


def texts_in(value: JsonValue) -> Iterator[str]:
    """Yield all texts in a JSON value, names of fields included."""
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
    """Return a JSON value with all its texts changed, names of fields included."""
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
    """Return all texts of a conversation, in order."""
    return [text for message in messages for text in (*_said(message), *_argued(message)) if text]


def said_in(messages: Iterable[Message]) -> list[str]:
    """Return the texts that follow each other in a conversation, without the arguments of calls, which are separate values as in a
    table."""
    return [text for message in messages for text in _said(message) if text]


def _said(message: Message) -> Iterator[str]:
    yield message.text
    if message.tool_result is not None:
        yield message.tool_result.content


def _argued(message: Message) -> Iterator[str]:
    for call in message.tool_calls:
        yield from texts_in(call.arguments)


def with_texts(request: StepRequest, change: Callable[[str], str], *, but: Container[int] = ()) -> StepRequest:
    """Return the request with all texts of its conversation changed, except in the messages at the positions `but`."""
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
