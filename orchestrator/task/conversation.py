"""The prompt of a task as messages: a text, `Message`s, or mappings as OpenAI's API has them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from ...protocols import InvalidRequest, Message, ToolCall, ToolResult

Prompt = str | Sequence[Message | Mapping[str, Any]]
"""One text, or the messages of a conversation."""

_HINT = 'Message.user("...") makes one, and {"role": "user", "content": "..."} is one, too'
_ROLES = {"developer": "system"}
"""Roles of OpenAI's API that stand for another one."""


def conversation(prompt: object) -> tuple[Message, ...]:
    """Return the messages of a prompt. Raises `InvalidRequest` if there is nothing to answer, or something that is no message."""
    messages = (Message.user(prompt),) if isinstance(prompt, str) else _messages(prompt)
    if not messages or not any(message.text.strip() for message in messages if message.role == "user"):
        raise InvalidRequest("the prompt is empty", hint="give the task some text")
    return messages


def _messages(prompt: object) -> tuple[Message, ...]:
    if isinstance(prompt, (bytes, Mapping)) or not isinstance(prompt, Sequence):
        raise InvalidRequest(f"a prompt is a string or a list of messages, not {type(prompt).__name__}", hint=_HINT)
    messages: list[Message] = []
    for place, given in enumerate(prompt):
        if isinstance(given, Message):
            messages.append(given)
        elif isinstance(given, Mapping):
            messages.append(_message(given, f"messages[{place}]", _called(messages)))
        else:
            raise InvalidRequest(f"messages[{place}] is no message but {type(given).__name__}", hint=_HINT)
    return tuple(messages)


def _called(messages: Sequence[Message]) -> dict[str, str]:
    """Return the names of the tools that were called so far, by the ids of the calls."""
    return {call.id: call.name for message in messages for call in message.tool_calls}


def _message(given: Mapping[Any, Any], where: str, called: Mapping[str, str]) -> Message:
    try:
        if "content" not in given and "tool_call_id" not in given and not _has_foreign_calls(given):
            return Message.model_validate(dict(given))  # our own form, as `Message.model_dump` writes it
        return Message.model_validate(_fields(given, where, called))
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        place = ".".join([where, *map(str, problem["loc"])])
        raise InvalidRequest(f"{place}: {problem['msg'].removeprefix('Value error, ')}", hint=_HINT) from error


def _has_foreign_calls(given: Mapping[Any, Any]) -> bool:
    calls = given.get("tool_calls")
    return isinstance(calls, Sequence) and any(isinstance(call, Mapping) and "function" in call for call in calls)


def _fields(given: Mapping[Any, Any], where: str, called: Mapping[str, str]) -> dict[str, object]:
    """Return the fields of a `Message` for one of OpenAI's form."""
    unknown = sorted(set(map(str, given)) - {"role", "content", "name", "tool_calls", "tool_call_id", "refusal"})
    if unknown:
        raise InvalidRequest(f"{where}: unknown key {unknown[0]!r}", hint=_HINT)
    role, text = given.get("role"), _text(given.get("content"), f"{where}.content")
    if role == "tool":
        call = given.get("tool_call_id")
        name = given.get("name") or (called.get(call) if isinstance(call, str) else None)
        if not isinstance(call, str) or name is None:
            raise InvalidRequest(f"{where}.tool_call_id names no call of an earlier message", hint="the id of one of its tool_calls")
        return {"role": role, "tool_result": ToolResult(call_id=call, name=name, content=text)}
    calls = given.get("tool_calls") or ()
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise InvalidRequest(f"{where}.tool_calls must be a list, not {type(calls).__name__}", hint=_HINT)
    tool_calls = tuple(_call(call, f"{where}.tool_calls[{place}]") for place, call in enumerate(calls))
    return {"role": _ROLES.get(str(role), role), "text": text, "tool_calls": tool_calls}


def _text(content: object, where: str) -> str:
    """Return the text of a content: a string, or a list of parts of text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise InvalidRequest(f"{where} must be text, not {type(content).__name__}", hint=_HINT)
    texts = []
    for place, part in enumerate(content):
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") in ("text", "input_text", "output_text") else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise InvalidRequest(f"{where}[{place}] is {kind!r}, and agents read text alone", hint='{"type": "text", "text": "..."}')
        texts.append(text)
    return "".join(texts)


def _call(given: object, where: str) -> ToolCall:
    """Return a call of OpenAI's form, whose arguments are a text, or of our own."""
    if isinstance(given, ToolCall):
        return given
    if not isinstance(given, Mapping):
        raise InvalidRequest(f"{where} is no tool call but {type(given).__name__}", hint=_HINT)
    function = given.get("function")
    if not isinstance(function, Mapping):
        return ToolCall.model_validate(dict(given))
    arguments = function.get("arguments", "{}")
    try:
        parsed = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    except ValueError as error:
        raise InvalidRequest(f"{where}.function.arguments is no JSON: {error}", hint='a text such as {"path": "a.txt"}') from error
    return ToolCall.model_validate({"id": given.get("id"), "name": function.get("name"), "arguments": parsed})


def last_words(messages: Sequence[Message]) -> str:
    """Return the user's last message of a conversation; an empty text if there is none."""
    return next((message.text for message in reversed(messages) if message.role == "user"), "")
