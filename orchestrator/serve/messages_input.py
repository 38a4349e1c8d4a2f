"""Reads requests of Anthropic's Messages API."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from .fields import Body, InvalidField, read, read_list, read_number, read_object, required_text
from .responses_input import ReadRequest, joined_system, plain

_READ: Final = frozenset(
    {"max_tokens", "messages", "metadata", "model", "nearfar", "output_config", "output_format", "stop_sequences", "stream", "system"}
    | {"temperature", "thinking", "tool_choice", "tools", "top_k", "top_p"}
)
_SILENT: Final = frozenset({"cache_control", "context_management"})
"""Fields that save the provider's work, and change no answer."""
_EFFORTS: Final = frozenset({"low", "medium", "high", "xhigh", "max"})
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
_NOT_SAID: Final = frozenset({"thinking", "redacted_thinking"})
_ATTACHED: Final = frozenset({"image", "document"})


def read_messages(body: Body) -> ReadRequest:
    """Return what a body asks for. Raises `InvalidField`."""
    warnings = [f"ignored;{name}" for name in body if name not in _READ and name not in _SILENT]
    tools = [tool for place, each in enumerate(read_list(body, "tools")) if (tool := _tool(each, place, warnings)) is not None]
    choice = read_object(body.get("tool_choice") or {"type": "auto"}, "tool_choice")
    given = read_list(body, "messages")
    said = [message for place, each in enumerate(given) for message in _message(read_object(each, f"messages[{place}]"), place, warnings)]
    return ReadRequest(
        model=read(body, "model", str) or "",
        messages=joined_system([{"role": "system", "content": plain(body.get("system"))}, *said]),
        tools=tools,
        tool_choice=_choice(choice, tools),
        options={**_options(body), **({"parallel_calls": False} if choice.get("disable_parallel_tool_use") else {})},
        streams=bool(read(body, "stream", bool)),
        warnings=[*dict.fromkeys(warnings)],
    )


def _options(body: Body) -> dict[str, Any]:
    sampling: dict[str, Any] = {
        "temperature": read_number(body, "temperature"),
        "top_p": read_number(body, "top_p"),
        "top_k": read(body, "top_k", int),
        "max_output_tokens": read(body, "max_tokens", int),
        "stop": tuple(read_list(body, "stop_sequences")) or None,
    }
    options: dict[str, Any] = {"sampling": {name: value for name, value in sampling.items() if value is not None}}
    config = read(body, "output_config", dict) or {}
    if (effort := config.get("effort")) is not None:
        if effort not in _EFFORTS:
            raise InvalidField("output_config.effort", f"{effort!r} is none of {', '.join(sorted(_EFFORTS))}")
        options["effort"] = effort
    wanted = config.get("format") or body.get("output_format")
    if wanted is not None:
        options["output"] = dict(read_object(read_object(wanted, "output_config.format").get("schema"), "output_config.format.schema"))
    return options


def _tool(given: object, place: int, warnings: list[str]) -> dict[str, Any] | None:
    """Return a tool of the client's; None for one that Anthropic itself would run."""
    tool = read_object(given, f"tools[{place}]")
    if tool.get("type", "custom") != "custom":
        warnings.append(f"dropped;tool;{tool['type']}")
        return None
    name = required_text(tool, "name", f"tools[{place}]")
    return {"name": name, "description": tool.get("description") or "", "parameters": tool.get("input_schema") or {}}


def _choice(choice: Body, tools: Sequence[Mapping[str, Any]]) -> str:
    kind = choice.get("type")
    if kind == "tool":
        name = required_text(choice, "name", "tool_choice")
        if all(tool["name"] != name for tool in tools):
            raise InvalidField("tool_choice.name", f"{name!r} is none of the tools")
        return name
    if kind not in _CHOICES:
        raise InvalidField("tool_choice.type", f"{kind!r} is none of auto, any, tool, none")
    return _CHOICES[kind]


def _message(given: Body, place: int, warnings: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the messages that one of Anthropic's stands for: results of tools are messages of their own."""
    role, content = given.get("role"), given.get("content")
    if role not in ("user", "assistant", "system"):
        raise InvalidField(f"messages[{place}].role", f"{role!r} is none of user, assistant")
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    if not isinstance(content, list):
        raise InvalidField(f"messages[{place}].content", "it must be a text or a list of blocks")
    blocks = [read_object(block, f"messages[{place}].content[{index}]") for index, block in enumerate(content)]
    if role == "assistant":
        yield _said(blocks, place, warnings)
        return
    results = [block for block in blocks if block.get("type") == "tool_result"]
    yield from (_result(block, place) for block in results)
    parts = [_part(block) for block in blocks if block.get("type") == "text" or block.get("type") in _ATTACHED]
    warnings += [f"dropped;block;{block.get('type')}" for block in blocks if block.get("type") not in {"text", "tool_result", *_ATTACHED}]
    if parts:
        yield {"role": role, "content": parts}


def _said(blocks: Sequence[Body], place: int, warnings: list[str]) -> dict[str, Any]:
    texts = [str(block.get("text") or "") for block in blocks if block.get("type") == "text"]
    calls = [_call(block, f"messages[{place}]") for block in blocks if block.get("type") == "tool_use"]
    known = {"text", "tool_use"} | _NOT_SAID
    warnings += [f"dropped;block;{block.get('type')}" for block in blocks if block.get("type") not in known]
    return {"role": "assistant", "content": "".join(texts), "tool_calls": calls}


def _call(block: Body, param: str) -> dict[str, Any]:
    arguments = json.dumps(read_object(block.get("input") or {}, f"{param}.input"), ensure_ascii=False)
    call = {"name": required_text(block, "name", param), "arguments": arguments}
    return {"id": required_text(block, "id", param), "type": "function", "function": call}


def _result(block: Body, place: int) -> dict[str, Any]:
    content = block.get("content") or ""
    if isinstance(content, list) and any(isinstance(part, Mapping) and part.get("type") in _ATTACHED for part in content):
        raise InvalidField(f"messages[{place}]", "a tool_result holds an image or a document, which no agent here reads there")
    call = required_text(block, "tool_use_id", f"messages[{place}]")
    return {"role": "tool", "tool_call_id": call, "content": plain(content), "is_error": bool(block.get("is_error"))}


def _part(block: Body) -> Body:
    """Return a block as a part of a message: without what is for the provider's cache."""
    return {name: value for name, value in block.items() if name not in ("cache_control", "citations")}
