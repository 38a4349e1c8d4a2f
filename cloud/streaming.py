"""Read a provider's stream, and conclude the step that it carries."""

import json
import logging
from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, suppress
from typing import cast
from uuid import uuid4

import anyio
import httpx
from httpx_sse import EventSource, ServerSentEvent
from pydantic import JsonValue, ValidationError

from ..protocols import (
    Attachment,
    Finished,
    FinishReason,
    InvalidOutput,
    LikelyToken,
    ProviderState,
    StepRequest,
    TokenLogprob,
    ToolCall,
    ToolChoice,
    ToolSpec,
    Usage,
)
from ..protocols.confidence import as_logprob
from ..protocols.limits import LINE_CHARACTERS, STEP_BYTES
from ..protocols.secrets import quote
from ..protocols.validation import check_arguments, parse_json, parse_output
from .dialect import Ending, JsonObject, RawCall, as_name, as_objects, as_text, check_number_of_calls

_DRAIN_SECONDS = 1.0
_UTF8 = getincrementaldecoder("utf-8-sig")
_LAST_EVENTS = frozenset(("message_stop", "response.completed", "response.incomplete", "response.failed"))
"""Last events of Anthropic and OpenAI's responses; other streams end with [DONE], or just end."""


async def json_events(response: httpx.Response) -> AsyncGenerator[JsonObject, None]:
    """Yield the JSON objects of an event stream. Raise `InvalidOutput` for an event that is not one."""
    bounded = cast(httpx.Response, _Bounded(response))  # it has what an EventSource reads
    async with aclosing(EventSource(bounded).aiter_sse()) as events:
        async for event in events:
            data = event.data.strip()
            if data == "[DONE]":
                await _drain(events)
                return
            if data:
                yield _json_object(data)
            if event.event in _LAST_EVENTS:
                await _drain(events)
                return


class _Bounded:
    """A response that raises `InvalidOutput` if it is longer than any answer.

    An event stream is UTF-8. The charset that a server names is ignored: it may be a codec of Python's that decodes no text.
    """

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.headers = response.headers

    async def aiter_text(self) -> AsyncGenerator[str, None]:
        whole = line = 0
        decoder = _UTF8("replace")
        async for piece in self._response.aiter_bytes():
            text = decoder.decode(piece)
            whole += len(text)
            line = len(text) - text.rindex("\n") if "\n" in text else line + len(text)
            if whole > STEP_BYTES or line > LINE_CHARACTERS:
                raise InvalidOutput("the provider's answer does not end", hint="check base_url, and ask for fewer tokens")
            yield text


async def _drain(events: AsyncGenerator[ServerSentEvent, None]) -> None:
    # A response read to its end gives its connection back. One that never ends is not waited for, and one that breaks now is complete.
    with anyio.move_on_after(_DRAIN_SECONDS), suppress(httpx.TransportError):
        async for _ in events:
            pass


def _json_object(data: str) -> JsonObject:
    # Not `parse_json`: it refuses halved characters, which `SurrogateJoiner` puts together. Arguments are parsed strictly later.
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        message = f"the provider's stream is not JSON: {quote(str(error))}; it says {quote(data)!r}"
        raise InvalidOutput(message, hint="check that base_url speaks the configured dialect") from None
    if not isinstance(value, dict):
        message = f"the provider's stream holds {type(value).__name__} instead of an object"
        raise InvalidOutput(message, hint="check that base_url speaks the configured dialect")
    return value


class SurrogateJoiner:
    """Joins characters that a server split into two escaped halves, over two chunks; a half without its other half becomes U+FFFD."""

    def __init__(self) -> None:
        self._half = ""

    def join(self, text: str) -> str:
        """Return `text` as valid Unicode, without a last half character, which is kept for the next call."""
        text, self._half = self._half + text, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def rest(self) -> str:
        """Return the remaining text when the stream has ended."""
        return "\ufffd" if self._half else ""


class StopCutter:
    """Ends a text at the first complete stop sequence, if the provider does not. Holds back text that may begin one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.stopped_at: str | None = None
        """The sequence at which the text has ended."""

    @property
    def has_stopped(self) -> bool:
        return self.stopped_at is not None

    def cut(self, text: str) -> str:
        """Return the new part of the text that may be shown."""
        if not self._stops or self.has_stopped:
            return "" if self.has_stopped else text
        text = self._held + text
        found = [(place + len(stop), place, stop) for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            _, end, self.stopped_at = min(found)
        else:
            end = len(text) - self._length_of_a_beginning(text)
        self._held = "" if found else text[end:]
        return text[:end]

    def rest(self) -> str:
        """Return the text that is held back when the stream has ended."""
        return self._held

    def _length_of_a_beginning(self, text: str) -> int:
        """Return the number of characters at the end of `text` that begin a stop sequence."""
        longest = max(map(len, self._stops)) - 1
        lengths = range(min(longest, len(text)), 0, -1)
        return next((length for length in lengths if any(stop.startswith(text[-length:]) for stop in self._stops)), 0)


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


def finished(ending: Ending, usage: Usage, request: StepRequest, *, provider: str, model: str, called: bool) -> Finished:
    """Return the step's last event. Some servers report "stop" after a tool call, so the calls decide the reason."""
    return Finished(
        reason=FinishReason.TOOL_CALLS if called else ending.reason,
        usage=usage,
        model=as_name(ending.model) or model,
        confidence=ending.confidence,
        state=_state(ending, provider, model),
        logprobs=() if request.top_logprobs is None else _logprobs(ending.logprobs, request.top_logprobs),
        stop=ending.stop if ending.stop in request.stop and not called else None,
    )


def _logprobs(tokens: Sequence[JsonObject], top: int) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(
            token=as_text(token.get("token")),
            logprob=as_logprob(token.get("logprob")),
            top=tuple(
                LikelyToken(token=as_text(one.get("token")), logprob=as_logprob(one.get("logprob")))
                for one in as_objects(token.get("top_logprobs"))[:top]
            ),
        )
        for token in tokens
    )


def counted_usage(
    reported: Usage | None,
    body: JsonObject,
    written_bytes: int,
    *,
    attachments: Sequence[Attachment],
    reason: FinishReason,
    limit: int | None,
    is_free: bool = False,
) -> Usage:
    """Return the usage that the provider reported, with an estimate for each missing count: one token per 4 bytes, which is close for
    English and never 0. An attachment counts as the most tokens that it may take.

    Output that reached its `limit` has exactly that many tokens, and other output at most that many.
    """
    reported = reported or Usage()
    if reported.input_tokens and (reported.output_tokens or not written_bytes):
        return reported
    _logger.log(
        logging.DEBUG if is_free else logging.WARNING,
        "the provider reported no usage, or half of it: the rest is estimated from the text's length",
    )
    attached_bytes = sum(len(attachment.base64) for attachment in attachments)
    read = _tokens(sum(len(text.encode()) for text in _texts(body)) - attached_bytes)
    read += sum(attachment.most_tokens for attachment in attachments)
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
