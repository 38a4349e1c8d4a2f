"""`/v1/messages`: Anthropic's Messages API."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from ...protocols import FinishReason, NearfarError, ToolCall, Usage
from ..task.events import Speaker, Turn
from .dialect import AskedOfTurn, Encoder, Incoming, TurnDialect, event, turn_object
from .endpoint import Exchange, answer_count
from .requests import (
    Fields,
    anthropic_error,
    as_object,
    as_objects,
    choice_of,
    effort_of,
    field,
    given_fields,
    ignored,
    opening_of,
    plain,
    required_text,
    sampling_of,
    warning,
    with_one_system,
    wrong,
)
from .responses_input import ReadRequest

_KNOWN: Final = (
    *("cache_control", "context_management", "max_tokens", "messages", "metadata", "model", "nearfar", "output_config", "output_format"),
    *("stop_sequences", "stream", "system", "temperature", "thinking", "tool_choice", "tools", "top_k", "top_p"),
)
"""Fields that are read, or save the provider's work and change no answer; others are named in the warnings."""
_SAMPLING: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "max_tokens": "max_output_tokens",
    "stop_sequences": "stop",
}
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none", "tool": "tool"}
_NOT_SAID: Final = ("thinking", "redacted_thinking")
_ATTACHED: Final = ("image", "document")


def read_messages(body: Fields) -> ReadRequest:
    """Return what a body asks for. Raises `BadField`."""
    warnings = ignored(body, _KNOWN)
    tools = list(_tools(as_objects(body, "tools"), warnings))
    choice = as_object(body.get("tool_choice") or {"type": "auto"}, "tool_choice")
    said = [each for place, given in enumerate(as_objects(body, "messages")) for each in _message(given, f"messages[{place}]", warnings)]
    one_call = {"parallel_calls": False} if choice.get("disable_parallel_tool_use") else {}
    instructions = field(body, "system", (str, list), "a text or a list of blocks", "")
    if isinstance(instructions, list):
        warnings += _dropped(as_objects(body, "system"), ("text",))
    system = plain(instructions)
    return ReadRequest(
        messages=with_one_system([*([{"role": "system", "content": system}] if system else []), *said]),
        tools=tools,
        tool_choice=_choice(choice, tools),
        options=_options(body) | one_call,
        stream=field(body, "stream", bool, "true or false", False),
        warnings=warnings,
    )


def _options(body: Fields) -> dict[str, Any]:
    options: dict[str, Any] = {"sampling": sampling_of(given_fields(body, _SAMPLING))}
    config: Fields = field(body, "output_config", dict, "an object", {})
    if (effort := effort_of(config.get("effort"), "output_config.effort")) is not None:
        options["effort"] = effort
    if (wanted := config.get("format") or body.get("output_format")) is not None:
        schema = as_object(as_object(wanted, "output_config.format").get("schema"), "output_config.format.schema")
        options["output"] = dict(schema)
    return options


def _tools(given: Sequence[Fields], warnings: list[str]) -> Iterator[Fields]:
    """Yield the client's tools; one that Anthropic itself would run is dropped with a warning."""
    for place, tool in enumerate(given):
        if tool.get("type", "custom") != "custom":
            warnings.append(warning("dropped", "tool", str(tool["type"])))
        else:
            name = required_text(tool, "name", f"tools[{place}]")
            yield {"name": name, "description": tool.get("description") or "", "parameters": tool.get("input_schema") or {}}


def _choice(choice: Fields, tools: Sequence[Fields]) -> str:
    kind = _CHOICES[choice_of(choice.get("type"), tuple(_CHOICES), "tool_choice.type")]
    if kind != "tool":
        return kind
    return choice_of(choice.get("name"), [tool["name"] for tool in tools], "tool_choice.name")


def _message(given: Fields, param: str, warnings: list[str]) -> Iterator[Fields]:
    """Yield the messages that one of Anthropic's stands for: results of tools are messages of their own."""
    role = choice_of(given.get("role"), ("user", "assistant", "system"), f"{param}.role")
    content = given.get("content")
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    if not isinstance(content, list):
        raise wrong(f"{param}.content", "it must be a text or a list of blocks")
    blocks = [as_object(block, f"{param}.content[{place}]") for place, block in enumerate(content)]
    read = ("text", "tool_use", *_NOT_SAID) if role == "assistant" else ("text", "tool_result", *_ATTACHED)
    warnings += _dropped(blocks, read)
    if role == "assistant":
        texts = [str(block.get("text") or "") for block in blocks if block.get("type") == "text"]
        calls = [_call(block, param) for block in blocks if block.get("type") == "tool_use"]
        yield {"role": role, "content": "".join(texts), "tool_calls": calls}
        return
    yield from (_result(block, param) for block in blocks if block.get("type") == "tool_result")
    parts = [_part(block) for block in blocks if block.get("type") == "text" or block.get("type") in _ATTACHED]
    if parts:
        yield {"role": role, "content": parts}


def _dropped(blocks: Sequence[Fields], read: Sequence[str]) -> list[str]:
    """Return a warning for each block of a type that is not `read`."""
    return [warning("dropped", "block", str(block.get("type"))) for block in blocks if block.get("type") not in read]


def _call(block: Fields, param: str) -> dict[str, Any]:
    arguments = json.dumps(as_object(block.get("input") or {}, f"{param}.input"), ensure_ascii=False)
    call = {"name": required_text(block, "name", param), "arguments": arguments}
    return {"id": required_text(block, "id", param), "type": "function", "function": call}


def _result(block: Fields, param: str) -> Fields:
    content = block.get("content") or ""
    has_files = isinstance(content, list) and any(isinstance(part, Mapping) and part.get("type") in _ATTACHED for part in content)
    said = [_part(as_object(part, f"{param}.content")) for part in content] if has_files else plain(content)
    call = required_text(block, "tool_use_id", param)
    return {"role": "tool", "tool_call_id": call, "content": said, "is_error": bool(block.get("is_error"))}


def _part(block: Fields) -> Fields:
    """Return a block as a part of a message, without what is for the provider's cache."""
    return {name: value for name, value in block.items() if name not in ("cache_control", "citations")}


Json = dict[str, Any]
_REASONS: Final = {FinishReason.STOP: "end_turn", FinishReason.TOOL_CALLS: "tool_use", FinishReason.LENGTH: "max_tokens"}


class Messages(TurnDialect):
    """Reads requests for messages, and writes the messages."""

    error_body = staticmethod(anthropic_error)

    async def read(self, incoming: Incoming) -> AskedOfTurn:
        read = read_messages(incoming.body)
        options, asked, warnings = incoming.options(opening=opening_of(read.messages))
        return AskedOfTurn(
            prompt=read.messages,
            options=options | dict(read.options),  # type: ignore[arg-type]  # they are checked when the turn begins
            tools=read.tools,
            tool_choice=read.tool_choice,
            stream=read.stream,
            debug=asked.debug,
            warnings=[*dict.fromkeys([*read.warnings, *warnings])],
        )

    def whole(self, incoming: Incoming, asked: AskedOfTurn, turn: Turn) -> Mapping[str, Any]:
        text = [{"type": "text", "text": turn.text}] if turn.text else []
        calls = [{"type": "tool_use", "id": call.id, "name": call.name, "input": dict(call.arguments)} for call in turn.calls]
        told = {"content": [*text, *calls], **_end(turn)}
        return {**_shell(incoming, turn.model, turn.usage), **told, "nearfar": turn_object(turn, asked.warnings, debug=asked.debug)}

    def encoder(self, incoming: Incoming, asked: AskedOfTurn) -> Encoder:
        return MessageEncoder(incoming, asked)

    async def count(self, exchange: Exchange) -> None:
        """Answer with the number of tokens of a request: instructions, tools and template included."""
        await answer_count(exchange, await self.read(exchange.incoming))


class MessageEncoder(Encoder):
    """Writes a message as server-sent events."""

    sign = event(b'{"type":"ping"}', name="ping")

    def __init__(self, incoming: Incoming, asked: AskedOfTurn) -> None:
        """Write the message that answers a request."""
        self._incoming = incoming
        self._asked = asked
        self._blocks = 0
        self._is_in_text = False

    def begin(self, speaker: Speaker) -> bytes:
        return _event("message_start", message=_shell(self._incoming, speaker.model, Usage()))

    def text(self, piece: str) -> bytes:
        opening = b"" if self._is_in_text else self._start({"type": "text", "text": ""})
        self._is_in_text = True
        return opening + self._delta({"type": "text_delta", "text": piece})

    def finish(self, turn: Turn) -> bytes:
        text = self._stop() if self._is_in_text else b""
        calls = b"".join(self._call(call) for call in turn.calls)
        told = turn_object(turn, self._asked.warnings, debug=self._asked.debug)
        return text + calls + _event("message_delta", delta=_end(turn), usage=_usage(turn.usage)) + _event("message_stop", nearfar=told)

    def fail(self, error: NearfarError) -> bytes:
        return event(orjson.dumps(anthropic_error(error, self._incoming.run)), name="error")

    def _call(self, call: ToolCall) -> bytes:
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        start = self._start({"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
        return start + self._delta({"type": "input_json_delta", "partial_json": arguments}) + self._stop()

    def _start(self, block: Json) -> bytes:
        return _event("content_block_start", index=self._blocks, content_block=block)

    def _delta(self, delta: Json) -> bytes:
        return _event("content_block_delta", index=self._blocks, delta=delta)

    def _stop(self) -> bytes:
        self._blocks += 1
        return _event("content_block_stop", index=self._blocks - 1)


def _event(type: str, **fields: object) -> bytes:
    return event(orjson.dumps({"type": type, **fields}), name=type)


def _shell(incoming: Incoming, model: str, usage: Usage) -> Json:
    return {
        "id": f"msg_{incoming.run}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(usage),
    }


def _end(turn: Turn) -> Json:
    return {"stop_reason": _REASONS[turn.finish_reason] if turn.stop is None else "stop_sequence", "stop_sequence": turn.stop}


def _usage(usage: Usage) -> Json:
    """Return the tokens as Anthropic counts them: those of the cache are not part of `input_tokens`."""
    return {
        "input_tokens": max(usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens, 0),
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    }
