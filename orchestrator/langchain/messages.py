"""Turns in LangChain's words: messages, pieces of streamed messages, and the tools and tool choices of `bind_tools`."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata
from langchain_core.messages.tool import ToolCall as LangChainCall
from langchain_core.messages.tool import tool_call, tool_call_chunk
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from ...protocols import InvalidRequest, JsonSchema, ToolCall, Usage
from ..task.task import STATE
from ..task.tools import Tool
from ..task.turns import Turn, TurnEvent

PROVIDER: Final = "nearfar"
"""Name of the provider in LangChain's metadata."""


def to_message(turn: Turn) -> AIMessage:
    """Return the message of a turn."""
    return AIMessage(
        content=turn.text,
        tool_calls=[_call(call) for call in turn.calls],
        usage_metadata=_usage(turn.usage),
        response_metadata=_facts(turn),
        additional_kwargs=_state(turn),
    )


class Pieces:
    """The pieces of one streamed message, whose calls are numbered."""

    def __init__(self) -> None:
        self._calls = 0

    def chunk(self, event: TurnEvent) -> AIMessageChunk:
        """Return the piece that an event brings. The last one carries the usage and the metadata."""
        if event.type == "text":
            return AIMessageChunk(content=event.text)
        if event.type == "call":
            self._calls += 1
            arguments = json.dumps(event.call.arguments, ensure_ascii=False)
            piece = tool_call_chunk(name=event.call.name, args=arguments, id=event.call.id, index=self._calls - 1)
            return AIMessageChunk(content="", tool_call_chunks=[piece])
        turn = event.turn
        return AIMessageChunk(
            content="",
            usage_metadata=_usage(turn.usage),
            response_metadata=_facts(turn),
            additional_kwargs=_state(turn),
            chunk_position="last",
        )


def _facts(turn: Turn) -> dict[str, Any]:
    """Return the facts of a turn that LangChain keeps with its message. None: unknown."""
    return {
        "model_name": turn.model,
        "model_provider": PROVIDER,
        "finish_reason": str(turn.finish_reason),
        "run": turn.id,
        "agent": turn.agent,
        "side": str(turn.side),
        "attempts": len(turn.result.attempts),
        "confidence": turn.confidence,
        "dollars": None if turn.dollars is None else float(turn.dollars),
        "saved_dollars": None if turn.saved is None else float(turn.saved),
    }


def _call(call: ToolCall) -> LangChainCall:
    return tool_call(name=call.name, args=dict(call.arguments), id=call.id)


def _usage(usage: Usage) -> UsageMetadata:
    return UsageMetadata(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.total_tokens,
        input_token_details=InputTokenDetails(cache_read=usage.cached_tokens, cache_creation=usage.cache_write_tokens),
        output_token_details=OutputTokenDetails(reasoning=usage.reasoning_tokens),
    )


def _state(turn: Turn) -> dict[str, Any]:
    """Return the provider's state of a turn where LangChain keeps it until the conversation is sent again."""
    state = turn.message.state
    return {} if state is None else {STATE: state.model_dump(mode="json")}


def to_function(given: Mapping[str, Any] | type | Callable[..., Any] | BaseTool) -> dict[str, Any]:
    """Return a tool in OpenAI's form. Raises `InvalidRequest` for a tool that a provider runs itself, and for what is no tool."""
    if isinstance(given, Tool):
        return {"type": "function", "function": given.spec.model_dump(mode="json")}
    try:
        tool = convert_to_openai_tool(dict(given) if isinstance(given, Mapping) else given)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{given!r:.80} is no tool: {error}", hint="a function, a pydantic model, or a tool of LangChain") from error
    if tool.get("type") != "function" or "function" not in tool:
        hint = "give a function, a pydantic model, or a tool of LangChain"
        raise InvalidRequest(f"{tool.get('type')!r} is a tool that one provider runs itself", hint=hint)
    return tool


def to_choice(given: str | bool | Mapping[str, Any] | None) -> str:
    """Return a tool choice of LangChain or OpenAI as a turn takes it: `auto`, `none`, `required` or a tool's name."""
    if given is None:
        return "auto"
    if isinstance(given, bool):
        return "required" if given else "none"
    if isinstance(given, str):
        return {"any": "required"}.get(given, given)
    function = given.get("function", given)
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise InvalidRequest(f"{given!r:.80} is no tool choice", hint='"auto", "none", "any", or the name of a tool')
    return name


def to_schema(response_format: object) -> JsonSchema | type | None:
    """Return the JSON Schema of a response format of OpenAI's, or the pydantic model that stands in its place; None: a text."""
    if isinstance(response_format, type):
        return response_format
    match response_format:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"type": "object"}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return schema
    raise InvalidRequest(f"{response_format!r:.80} is no response format", hint='{"type": "json_schema", "json_schema": {"schema": {...}}}')
