"""The end of a provider's stream: check its tool calls and text, and build the `Finished` event."""

import json
import logging
from collections.abc import Iterator, Sequence
from uuid import uuid4

from pydantic import JsonValue, ValidationError

from ..protocols import (
    Finished,
    FinishReason,
    InvalidOutput,
    ProviderState,
    StepRequest,
    ToolCall,
    ToolChoice,
    ToolSpec,
    Usage,
)
from ..protocols.redact import quote
from ..protocols.validation import check_arguments, parse_json, parse_output
from .dialect import Ending, JsonObject, RawCall, check_number_of_calls

_BYTES_PER_TOKEN = 4
_logger = logging.getLogger(__name__)


def checked_calls(ending: Ending, request: StepRequest) -> tuple[ToolCall, ...]:
    """Return the tool calls of a finished stream. Raise `InvalidOutput` if they break the contract or the request.

    A stream cut off by its length limit has none: its last call may be half a call.
    """
    if ending.reason is FinishReason.LENGTH:
        return ()
    if ending.calls and request.tool_choice is ToolChoice.NONE:
        raise InvalidOutput("the provider called a tool although tool_choice is 'none'", hint="the server ignores tool_choice")
    if not ending.calls and (request.tool_choice is ToolChoice.REQUIRED or ending.reason is FinishReason.TOOL_CALLS):
        raise InvalidOutput("the provider called no tool although one was required", hint="try again, or use a model that calls tools")
    check_number_of_calls(len(ending.calls))
    taken = {call.id for message in request.messages for call in message.tool_calls}
    calls = []
    for raw in ending.calls:
        call = _checked(raw, request.tools, taken)
        taken.add(call.id)
        calls.append(call)
    return tuple(calls)


def check_text(text: str, ending: Ending, request: StepRequest) -> None:
    """Raise `InvalidOutput` if `text` is final and does not match the request's output schema."""
    if request.output_schema is not None and ending.reason is FinishReason.STOP and not ending.calls:
        parse_output(text, request.output_schema)


def finished(ending: Ending, usage: Usage, *, provider: str, model: str, called: bool) -> Finished:
    """Return the step's last event. Some servers report "stop" after a tool call, so the calls decide the reason."""
    reason = FinishReason.TOOL_CALLS if called else ending.reason
    state = _state(ending, provider, model)
    return Finished(reason=reason, usage=usage, model=ending.model or model, confidence=ending.confidence, state=state)


def counted_usage(reported: Usage | None, body: JsonObject, written_bytes: int, *, reason: FinishReason, limit: int | None) -> Usage:
    """Return the usage that the provider reported, with an estimate for each missing count: one token per 4 bytes, which is close for
    English and never 0.

    Output that reached its `limit` has exactly that many tokens, and other output at most that many.
    """
    reported = reported or Usage()
    if reported.input_tokens and (reported.output_tokens or not written_bytes):
        return reported
    _logger.warning("the provider reported no usage, or half of it: the rest is estimated from the text's length")
    read = _tokens(sum(len(text.encode()) for text in _texts(body)))
    written = _tokens(written_bytes)
    if limit is not None:
        written = limit if reason is FinishReason.LENGTH else min(written, limit)
    counts = {"input_tokens": reported.input_tokens or read, "output_tokens": reported.output_tokens or written}
    return reported.model_copy(update=counts)


def _state(ending: Ending, provider: str, model: str) -> ProviderState | None:
    """Return the turn in its provider's form, or None for a turn that was cut off or is not proper JSON."""
    if not ending.parts or ending.reason is FinishReason.LENGTH:
        return None
    try:
        parts = parse_json(json.dumps(ending.parts))  # which puts halves of a character together, too
    except ValueError:
        return None
    return ProviderState.model_validate({"provider": provider, "model": model, "parts": parts})


def _checked(raw: RawCall, tools: Sequence[ToolSpec], taken: set[str]) -> ToolCall:
    arguments = _arguments(raw)
    # Servers that number calls from 0 in every turn would repeat ids within a conversation.
    identity = raw.id if raw.id and raw.id not in taken else f"call_{uuid4().hex}"
    try:
        call = ToolCall(id=identity, name=raw.name, arguments=arguments)
    except ValidationError as error:
        problem = "; ".join(part["msg"] for part in error.errors())
        raise InvalidOutput(f"the provider sent an unusable tool call: {quote(problem)}") from None
    check_arguments(call, tools)
    return call


def _arguments(raw: RawCall) -> JsonObject:
    written = raw.arguments if isinstance(raw.arguments, str) else json.dumps(raw.arguments)
    try:
        value = parse_json(written.strip() or "{}")
    except ValueError as error:
        raise InvalidOutput(f"the arguments of the call of {raw.name!r} are not JSON: {error}", hint="try again") from None
    if not isinstance(value, dict):
        raise InvalidOutput(f"the arguments of the call of {raw.name!r} are not a JSON object", hint="try again")
    return value


def _texts(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def _tokens(size: int) -> int:
    return -(-size // _BYTES_PER_TOKEN)
