"""Reads requests of OpenAI's Responses API: the items of a conversation, the tools, and the options of a turn."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from .fields import Body, InvalidField, read, read_list, read_number, read_object, required_text

_IGNORED: Final = (
    "include",
    "max_tool_calls",
    "moderation",
    "prompt",
    "prompt_cache_options",
    "prompt_cache_retention",
    "service_tier",
    "top_logprobs",
)
"""Fields that OpenAI knows and that change nothing here."""
_SILENT: Final = ("client_metadata", "metadata", "prompt_cache_key", "safety_identifier", "store", "stream_options", "truncation", "user")
"""Fields that are kept with the response, read elsewhere, or are of no consequence."""
_READ: Final = (
    "background",
    "conversation",
    "input",
    "instructions",
    "max_output_tokens",
    "model",
    "nearfar",
    "parallel_tool_calls",
    "previous_response_id",
    "reasoning",
    "stream",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_p",
)
_EFFORTS: Final = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})


@dataclass(frozen=True, kw_only=True)
class ReadRequest:
    """A request of any dialect, as a turn takes it."""

    model: str
    """The name that the client asks for."""
    messages: Sequence[Mapping[str, Any]]
    """The conversation in OpenAI's form."""
    tools: Sequence[Mapping[str, Any]] = ()
    """The client's tools."""
    tool_choice: str = "auto"
    """`auto`, `none`, `required`, or the name of a tool."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `TurnOptions`."""
    streams: bool = False
    """The client wants events."""
    warnings: Sequence[str] = ()
    """Things in the request that have no effect: `ignored;FIELD`, `dropped;tool;TYPE`."""


def read_responses(body: Body, earlier: Sequence[Body] = ()) -> ReadRequest:
    """Return what a body asks for. `earlier`: the items of the responses before it, input and output. Raises `InvalidField`."""
    if body.get("conversation") is not None:
        raise InvalidField("conversation", "conversations are not kept", hint="previous_response_id continues a response")
    if body.get("background"):
        raise InvalidField("background", "responses are computed while their caller waits", hint="leave it out")
    items = input_items(body)
    warnings = [*(f"ignored;{name}" for name in _IGNORED if body.get(name)), *_unknown(body)]
    tools, dropped = read_tools(read_list(body, "tools"))
    choice, tools = read_choice(body.get("tool_choice"), tools)
    instructions = read(body, "instructions", str) or ""
    messages = list(_messages([*earlier, *items], warnings))
    return ReadRequest(
        model=read(body, "model", str) or "",
        messages=joined_system([{"role": "system", "content": instructions}, *messages]),
        tools=tools,
        tool_choice=choice,
        options=_options(body),
        streams=bool(read(body, "stream", bool)),
        warnings=[*dict.fromkeys([*warnings, *dropped])],
    )


def input_items(body: Body) -> Sequence[Body]:
    """Return the items of a request's input; a text is a user's message."""
    given = body.get("input")
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": given}]}]
    if given is None:
        return []
    if not isinstance(given, list):
        raise InvalidField("input", "it must be a text or a list of items")
    return [read_object(item, f"input[{place}]") for place, item in enumerate(given)]


def _unknown(body: Body) -> Iterator[str]:
    return (f"ignored;{name}" for name in body if name not in _READ and name not in _SILENT and name not in _IGNORED)


def _options(body: Body) -> dict[str, Any]:
    """Return the options of the turn."""
    given = {"temperature": read_number(body, "temperature"), "top_p": read_number(body, "top_p")}
    given["max_output_tokens"] = read(body, "max_output_tokens", int)
    sampling = {name: value for name, value in given.items() if value is not None}
    options: dict[str, Any] = {"sampling": sampling} if sampling else {}
    if read(body, "parallel_tool_calls", bool) is False:
        options["parallel_calls"] = False
    effort = (read(body, "reasoning", dict) or {}).get("effort")
    if effort is not None:
        if effort not in _EFFORTS:
            raise InvalidField("reasoning.effort", f"{effort!r} is none of {', '.join(sorted(_EFFORTS))}")
        options["effort"] = effort
    if (schema := read_format((read(body, "text", dict) or {}).get("format"), "text.format")) is not None:
        options["output"] = schema
    return options


def read_format(given: object, param: str) -> dict[str, Any] | None:
    """Return the JSON Schema of an answer, from `text.format` or from the inner part of `response_format`; None for free text."""
    if given is None:
        return None
    wanted = read_object(given, param)
    kind = wanted.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema":
        raise InvalidField(f"{param}.type", f"{kind!r} is none of text, json_object, json_schema")
    return dict(read_object(wanted.get("schema"), f"{param}.schema"))


def read_tools(given: Sequence[Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the function tools of a request, and a warning for each of another type, which no model here can call."""
    tools: list[dict[str, Any]] = []
    dropped: list[str] = []
    for place, each in enumerate(given):
        tool = read_object(each, f"tools[{place}]")
        if tool.get("type") != "function":
            dropped.append(f"dropped;tool;{tool.get('type')}")
            continue
        name = required_text(tool, "name", f"tools[{place}]")
        tools.append({"name": name, "description": tool.get("description") or "", "parameters": tool.get("parameters") or {}})
    return tools, dropped


def read_choice(given: object, tools: Sequence[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """Return the choice as a turn takes it, and the tools that may be called: `allowed_tools` leaves out all others."""
    if given is None or isinstance(given, str):
        if given not in (None, "auto", "none", "required"):
            raise InvalidField("tool_choice", f"{given!r} is none of auto, none, required")
        return str(given or "auto"), list(tools)
    choice = read_object(given, "tool_choice")
    inner = choice.get("allowed_tools", choice) if choice.get("type") == "allowed_tools" else choice.get("function", choice)
    inner = read_object(inner, "tool_choice")
    if choice.get("type") != "allowed_tools":
        return _named(inner, tools)
    names = {_name(each) for each in read_list(inner, "tools", within="tool_choice.")}
    mode = inner.get("mode", "auto")
    if mode not in ("auto", "required"):
        raise InvalidField("tool_choice.mode", f"{mode!r} is none of auto, required")
    return str(mode), [tool for tool in tools if tool["name"] in names]


def _name(given: object) -> str:
    tool = read_object(given, "tool_choice.tools")
    inner = tool.get("function", tool)
    return required_text(read_object(inner, "tool_choice.tools"), "name", "tool_choice.tools")


def _named(choice: Body, tools: Sequence[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    name = required_text(choice, "name", "tool_choice")
    if all(tool["name"] != name for tool in tools):
        raise InvalidField("tool_choice", f"{name!r} is none of the tools")
    return name, list(tools)


def _messages(items: Sequence[Body], warnings: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the messages that items stand for: an assistant's words and the calls behind them are one message."""
    said: dict[str, Any] | None = None
    for place, item in enumerate(items):
        kind = item.get("type", "message")
        if kind == "function_call":
            said = said or {"role": "assistant", "content": "", "tool_calls": []}
            said["tool_calls"].append(_call(item, f"input[{place}]"))
        elif kind in ("reasoning", "item_reference") or (kind not in ("message", "function_call_output")):
            if kind != "reasoning":
                warnings.append(f"dropped;item;{kind}")
        else:
            if said is not None:
                yield said
                said = None
            message = _result(item, place) if kind == "function_call_output" else _message(item, place, warnings)
            if message["role"] == "assistant":
                said = {**message, "tool_calls": []}
            else:
                yield message
    if said is not None:
        yield said


def _message(item: Body, place: int, warnings: list[str]) -> dict[str, Any]:
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        warnings.append(f"dropped;role;{role}")
        return {"role": "user", "content": ""}
    content = item.get("content")
    if not isinstance(content, (str, list)):
        raise InvalidField(f"input[{place}].content", "it must be a text or a list of parts")
    if isinstance(content, list) and role == "assistant":
        content = "".join(str(part.get("text") or part.get("refusal") or "") for part in content if isinstance(part, Mapping))
    return {"role": "system" if role == "developer" else role, "content": content}


def _call(item: Body, param: str) -> dict[str, Any]:
    arguments = item.get("arguments") or "{}"
    try:
        read_object(json.loads(arguments), f"{param}.arguments")
    except (TypeError, ValueError) as error:
        raise InvalidField(f"{param}.arguments", "it must be a JSON object as text") from error
    call = {"name": required_text(item, "name", param), "arguments": arguments}
    return {"id": required_text(item, "call_id", param), "type": "function", "function": call}


def _result(item: Body, place: int) -> dict[str, Any]:
    output = item.get("output")
    if isinstance(output, list):
        output = "".join(str(part.get("text") or "") for part in output if isinstance(part, Mapping))
    if not isinstance(output, str):
        raise InvalidField(f"input[{place}].output", "it must be a text or a list of texts")
    return {"role": "tool", "tool_call_id": required_text(item, "call_id", f"input[{place}]"), "content": output}


def joined_system(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the messages with all instructions in one system message in front: chat templates of many models refuse a second one."""
    texts = [text for message in messages if message["role"] == "system" if (text := plain(message["content"])).strip()]
    rest = [message for message in messages if message["role"] != "system" and (message["content"] or message.get("tool_calls"))]
    return [*([{"role": "system", "content": "\n\n".join(texts)}] if texts else []), *rest]


def plain(content: object) -> str:
    """Return the text of a content: a text, or a list of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n\n".join(str(part["text"]) for part in parts if isinstance(part, Mapping) and part.get("text"))
