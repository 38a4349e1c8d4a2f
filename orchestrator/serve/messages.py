"""`/v1/messages`: Anthropic's Messages API."""

import json
from collections.abc import Mapping
from typing import Any, Final

import orjson

from ...protocols import FinishReason, NearfarError, ToolCall, Usage
from ..task.turns import Speaker, Turn
from .counting import answer_count
from .dialect import AskedOfTurn, Encoder, Incoming, TurnDialect
from .endpoint import Exchange
from .errors import anthropic_error
from .fields import opening_of
from .messages_input import read_messages
from .metadata import turn_object
from .sse import event

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
