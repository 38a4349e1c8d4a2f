"""`POST /v1/chat/completions`: OpenAI's chat completions."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from ...protocols import FinishReason, JsonSchema, NearfarError, ToolCall, ToolChoice, Usage
from ..task.events import Speaker, Turn
from .dialect import AskedOfTurn, Encoder, Incoming, TurnDialect, event, turn_object
from .requests import (
    BadField,
    UnsupportedField,
    as_object,
    as_objects,
    effort_of,
    field,
    given_fields,
    ignored,
    openai_error,
    opening_of,
    sampling_of,
    warning,
    with_one_system,
)

_SAMPLING: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "seed": "seed",
    "stop": "stop",
}
"""From OpenAI's names of samplers to ours."""
_READ: Final = frozenset(
    {
        *_SAMPLING,
        "messages",
        "model",
        "nearfar",
        "n",
        "logprobs",
        "top_logprobs",
        "modalities",
        "audio",
        "parallel_tool_calls",
        "prompt_cache_key",
        "reasoning_effort",
        "response_format",
        "stream",
        "stream_options",
        "tool_choice",
        "tools",
        "functions",
        "function_call",
    }
)
_OF_MESSAGE: Final = frozenset({"role", "content", "name", "tool_calls", "tool_call_id", "refusal"})
_ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_REASONS: Final = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.TOOL_CALLS: "tool_calls"}
_ANY_OBJECT: Final[JsonSchema] = {"type": "object"}


class Chat(TurnDialect):
    """The dialect of chat completions."""

    error_body = staticmethod(openai_error)

    async def read(self, incoming: Incoming) -> AskedOfTurn:
        body = incoming.body
        _refuse_what_cannot_be(body)
        warnings = ignored(body, _READ)
        messages = with_one_system(list(_messages(body, warnings)))
        options, asked, more = incoming.options(opening=opening_of(messages))
        tools, choice = read_tools(body, warnings)
        options["sampling"] = sampling_of(given_fields(body, _SAMPLING))
        options["parallel_calls"] = field(body, "parallel_tool_calls", bool, "true or false", True)
        if (effort := effort_of(body.get("reasoning_effort"), "reasoning_effort")) is not None:
            options["effort"] = effort
        if (output := _output(field(body, "response_format", dict, "an object", {}))) is not None:
            options["output"] = output
        stream_options = field(body, "stream_options", dict, "an object", {})
        return AskedOfTurn(
            prompt=messages,
            options=options,
            tools=tools,
            tool_choice=choice,
            stream=field(body, "stream", bool, "true or false", False),
            debug=asked.debug,
            warnings=(*warnings, *more),
            extra={"include_usage": bool(stream_options.get("include_usage"))},
        )

    def whole(self, incoming: Incoming, asked: AskedOfTurn, turn: Turn) -> Mapping[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": turn.text or None, "refusal": None}
        if turn.calls:
            message["tool_calls"] = [_call(call) for call in turn.calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _REASONS[turn.finish_reason]}
        return {
            "id": f"chatcmpl-{incoming.run}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": turn.model,
            "choices": [choice if turn.calls else {**choice, "message": {**message, "content": turn.text}}],
            "usage": usage_of(turn.usage),
            "nearfar": turn_object(turn, asked.warnings, debug=asked.debug),
        }

    def encoder(self, incoming: Incoming, asked: AskedOfTurn) -> Encoder:
        return _Chunks(incoming.run, asked)


class _Chunks(Encoder):
    """Chunks of one completion."""

    def __init__(self, run: str, asked: AskedOfTurn) -> None:
        self._asked = asked
        self._has_usage = asked.extra["include_usage"]
        self._common: dict[str, Any] = {"id": f"chatcmpl-{run}", "object": "chat.completion.chunk", "created": int(time.time())}

    def begin(self, speaker: Speaker) -> bytes:
        self._common["model"] = speaker.model
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def text(self, piece: str) -> bytes:
        return self._chunk({"content": piece})

    def finish(self, turn: Turn) -> bytes:
        pieces = [self._chunk({"tool_calls": [piece]}) for piece in _call_pieces(turn.calls)]
        told = {"nearfar": turn_object(turn, self._asked.warnings, debug=self._asked.debug)}
        reason = _REASONS[turn.finish_reason]
        if self._has_usage:
            last = {**self._common, "choices": [], "usage": usage_of(turn.usage), **told}
            pieces += [self._chunk({}, reason), event(orjson.dumps(last))]
        else:
            pieces.append(self._chunk({}, reason, told))
        return b"".join((*pieces, event(b"[DONE]")))

    def fail(self, error: NearfarError) -> bytes:
        return event(orjson.dumps(openai_error(error)))

    def _chunk(self, delta: Mapping[str, Any], reason: str | None = None, told: Mapping[str, Any] | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        usage = {"usage": None} if self._has_usage else {}
        return event(orjson.dumps({**self._common, "choices": [choice], **usage, **(told or {})}))


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": orjson.dumps(call.arguments).decode()}}


def _call_pieces(calls: Sequence[ToolCall]) -> Iterator[dict[str, Any]]:
    """Yield two pieces of each call: its id and name, then its arguments."""
    for index, call in enumerate(map(_call, calls)):
        function = call["function"]
        yield {"index": index, **call, "function": {"name": function["name"], "arguments": ""}}
        yield {"index": index, "function": {"arguments": function["arguments"]}}


def usage_of(usage: Usage) -> dict[str, Any]:
    """Return usage as chat completions tell it."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _refuse_what_cannot_be(body: Mapping[str, Any]) -> None:
    """Raise `UnsupportedField` for what would change the answer, and no agent can do through this API."""
    asks = {
        "n": body.get("n") not in (None, 1),
        "logprobs": bool(body.get("logprobs")),
        "top_logprobs": body.get("top_logprobs") is not None,
        "audio": body.get("audio") is not None,
        "modalities": body.get("modalities") not in (None, ["text"]),
        "functions": bool(body.get("functions")),
        "function_call": body.get("function_call") not in (None, "none", "auto"),
    }
    for param, is_asked in asks.items():
        if is_asked:
            hint = "use tools" if param.startswith("function") else "leave it out"
            raise UnsupportedField(f"{param} is not supported here", param=param, hint=hint)


def _messages(body: Mapping[str, Any], warnings: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the messages with the fields and roles that turns know."""
    for place, message in enumerate(field(body, "messages", list, "a list of messages", [])):
        if not isinstance(message, dict):
            raise BadField(f"it is no message but {type(message).__name__}", param=f"messages[{place}]")
        warnings += ignored(message, _OF_MESSAGE, prefix="messages.")
        role = str(message.get("role"))
        if role not in _ROLES:
            warnings.append(warning("unknown", "role", role))
        known = {name: value for name, value in message.items() if name in _OF_MESSAGE and name != "refusal"}
        yield {**known, "role": _ROLES.get(role, "user"), "content": message.get("content")}


def read_tools(body: Mapping[str, Any], warnings: list[str]) -> tuple[list[Mapping[str, Any]], str]:
    """Return the functions among the tools, and the choice, which may leave only some of them. Others are dropped with a warning."""
    given = field(body, "tools", list, "a list of tools", [])
    tools = []
    for tool in given:
        kind = tool.get("type") if isinstance(tool, dict) else type(tool).__name__
        if kind == "function":
            tools.append(tool)
        else:
            warnings.append(warning("dropped", "tool", str(kind)))
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = as_object(choice.get("allowed_tools", choice), "tool_choice.allowed_tools")
        names = {_named(each) for each in as_objects(allowed, "tools")}
        return [tool for tool in tools if _named(tool) in names], str(allowed.get("mode", ToolChoice.AUTO))
    return tools, _choice(choice)


def _choice(choice: object) -> str:
    if choice is None:
        return ToolChoice.AUTO
    if isinstance(choice, str) and choice in tuple(ToolChoice):
        return choice
    name = _named(choice)
    if name is None:
        raise BadField(f"tool_choice is {', '.join(ToolChoice)}, a function, or allowed_tools", param="tool_choice")
    return name


def _named(tool: object) -> str | None:
    """Return the name of a function, as chat completions (`function.name`) or responses (`name`) write it."""
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return None
    function = tool.get("function", tool)
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def _output(form: Mapping[str, Any]) -> JsonSchema | None:
    """Return the JSON Schema that the answer has to fit; None: it is a text."""
    kind = form.get("type")
    if kind in (None, "text"):
        return None
    if kind == "json_object":
        return _ANY_OBJECT
    inner = form.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if kind != "json_schema" or not isinstance(schema, dict):
        raise BadField("response_format is text, json_object, or json_schema with a schema", param="response_format")
    return schema
