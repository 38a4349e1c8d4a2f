"""Reads requests of OpenAI's Responses API: the items of a conversation, the tools, and the options of a turn."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from .requests import (
    Fields,
    as_object,
    as_objects,
    choice_of,
    effort_of,
    field,
    given_fields,
    ignored,
    required_text,
    sampling_of,
    schema_of,
    warning,
    with_one_system,
    wrong,
)

_KNOWN: Final = (
    *("background", "client_metadata", "conversation", "input", "instructions", "max_output_tokens", "metadata", "model", "nearfar"),
    *("parallel_tool_calls", "previous_response_id", "prompt_cache_key", "reasoning", "safety_identifier", "store", "stream"),
    *("stream_options", "temperature", "text", "tool_choice", "tools", "top_p", "truncation", "user"),
)
"""Fields that are read, told back, or of no consequence; others are named in the warnings."""
_SAMPLING: Final = {"temperature": "temperature", "top_p": "top_p", "max_output_tokens": "max_output_tokens"}
_ROLES: Final = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}


class ReadRequest(NamedTuple):
    """A request of any dialect, as a turn takes it."""

    messages: Sequence[Fields]
    """The conversation in OpenAI's form."""
    tools: Sequence[Fields]
    """The client's tools."""
    tool_choice: str
    """`auto`, `none`, `required`, or the name of a tool."""
    options: Mapping[str, Any]
    """Options of the turn."""
    stream: bool
    """The client wants events."""
    warnings: Sequence[str]
    """Things in the request that have no effect."""


def read_responses(body: Fields, given: Sequence[Fields], *, earlier: Sequence[Fields] = ()) -> ReadRequest:
    """Return what a body asks for. Raises `BadField`.

    Args:
        body: the request.
        given: the items of its input.
        earlier: the items of the responses before it, input and output.
    """
    if body.get("conversation") is not None:
        raise wrong("conversation", "conversations are not kept", hint="previous_response_id continues a response")
    if body.get("background"):
        raise wrong("background", "responses are computed while their caller waits", hint="leave it out")
    field(body, "metadata", dict, "an object")
    warnings = ignored(body, _KNOWN)
    tools = list(_tools(as_objects(body, "tools"), warnings))
    choice, tools = read_choice(body.get("tool_choice"), tools)
    instructions = field(body, "instructions", str, "a text", "")
    messages = list(_messages([*earlier, *given], len(earlier), warnings))
    return ReadRequest(
        messages=with_one_system([*([{"role": "system", "content": instructions}] if instructions else []), *messages]),
        tools=tools,
        tool_choice=choice,
        options=_options(body),
        stream=field(body, "stream", bool, "true or false", False),
        warnings=warnings,
    )


def input_items(body: Fields) -> Sequence[Fields]:
    """Return the items of a request's input; a text is a user's message."""
    given = body.get("input")
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": given}]}]
    return as_objects(body, "input")


def _options(body: Fields) -> dict[str, Any]:
    options: dict[str, Any] = {"sampling": sampling_of(given_fields(body, _SAMPLING))}
    options["parallel_calls"] = field(body, "parallel_tool_calls", bool, "true or false", True)
    effort = effort_of(field(body, "reasoning", dict, "an object", {}).get("effort"), "reasoning.effort")
    schema = schema_of(field(body, "text", dict, "an object", {}).get("format"), "text.format")
    return options | ({} if effort is None else {"effort": effort}) | ({} if schema is None else {"output": schema})


def _tools(given: Sequence[Fields], warnings: list[str]) -> Iterator[Fields]:
    """Yield the function tools; any other type is dropped with a warning, since no model here can call it."""
    for place, tool in enumerate(given):
        if tool.get("type") != "function":
            warnings.append(warning("dropped", "tool", str(tool.get("type"))))
        else:
            name = required_text(tool, "name", f"tools[{place}]")
            yield {"name": name, "description": tool.get("description") or "", "parameters": tool.get("parameters") or {}}


def read_choice(given: object, tools: Sequence[Fields]) -> tuple[str, list[Fields]]:
    """Return the choice as a turn takes it, and the tools that may be called: `allowed_tools` leaves out all others."""
    if given is None or isinstance(given, str):
        return choice_of(given or "auto", ("auto", "none", "required"), "tool_choice"), list(tools)
    choice = as_object(given, "tool_choice")
    if choice.get("type") != "allowed_tools":
        name = required_text(as_object(choice.get("function", choice), "tool_choice"), "name", "tool_choice")
        return choice_of(name, [tool["name"] for tool in tools], "tool_choice"), list(tools)
    allowed = as_object(choice.get("allowed_tools", choice), "tool_choice")
    names = [as_object(each.get("function", each), "tool_choice.tools").get("name") for each in as_objects(allowed, "tools")]
    mode = choice_of(allowed.get("mode", "auto"), ("auto", "required"), "tool_choice.mode")
    return mode, [tool for tool in tools if tool["name"] in names]


def _messages(items: Sequence[Fields], earlier: int, warnings: list[str]) -> Iterator[Fields]:
    """Yield the messages that items stand for: an assistant's words and the calls behind them are one message.

    The input begins after as many `earlier` items.
    """
    said: dict[str, Any] | None = None
    for place, item in enumerate(items, -earlier):
        message = _message(item, f"input[{place}]", warnings)
        if message is None:
            continue
        if message["role"] == "assistant" and said is not None and not message["content"]:
            said["tool_calls"] += message["tool_calls"]
            continue
        if said is not None:
            yield said
        said = message if message["role"] == "assistant" else None
        if said is None:
            yield message
    if said is not None:
        yield said


def _message(item: Fields, param: str, warnings: list[str]) -> dict[str, Any] | None:
    """Return the message that an item stands for; None for one that has no place in a conversation here."""
    match item.get("type", "message"):
        case "message":
            return _said(item, param)
        case "function_call":
            return {"role": "assistant", "content": "", "tool_calls": [_call(item, param)]}
        case "function_call_output":
            return _result(item, param)
        case "reasoning":
            return None
        case kind:
            warnings.append(warning("dropped", "item", str(kind)))
            return None


def _said(item: Fields, param: str) -> dict[str, Any]:
    role = _ROLES[choice_of(item.get("role"), tuple(_ROLES), f"{param}.role")]
    content = item.get("content")
    if not isinstance(content, (str, list)):
        raise wrong(f"{param}.content", "it must be a text or a list of parts")
    if role != "assistant":
        return {"role": role, "content": content}
    if isinstance(content, list):
        content = "".join(str(part.get("text") or part.get("refusal") or "") for part in content if isinstance(part, Mapping))
    return {"role": role, "content": content, "tool_calls": []}


def _call(item: Fields, param: str) -> dict[str, Any]:
    arguments = item.get("arguments") or "{}"
    try:
        as_object(json.loads(arguments), f"{param}.arguments")
    except (TypeError, ValueError):
        raise wrong(f"{param}.arguments", "it must be a JSON object as text") from None
    call = {"name": required_text(item, "name", param), "arguments": arguments}
    return {"id": required_text(item, "call_id", param), "type": "function", "function": call}


def _result(item: Fields, param: str) -> dict[str, Any]:
    output = item.get("output")
    if not isinstance(output, (str, list)):
        raise wrong(f"{param}.output", "it must be a text or a list of parts")
    return {"role": "tool", "tool_call_id": required_text(item, "call_id", param), "content": output}
