"""Writes Anthropic's messages, and the events of a message that is streamed."""

import json
from collections.abc import Iterator
from typing import Any, Final
from uuid import uuid4

from ...protocols import FinishReason, ToolCall, Usage
from ..task.turns import Turn, TurnCall, TurnEvent, TurnFinished, TurnText

Json = dict[str, Any]
_REASONS: Final = {FinishReason.STOP: "end_turn", FinishReason.TOOL_CALLS: "tool_use", FinishReason.LENGTH: "max_tokens"}


def whole_message(turn: Turn) -> Json:
    """Return the message that a turn is."""
    text = [{"type": "text", "text": turn.text, "citations": None}] if turn.text else []
    calls = [{"type": "tool_use", "id": call.id, "name": call.name, "input": dict(call.arguments)} for call in turn.calls]
    message = _shell(turn.model, turn.usage)
    return {**message, "content": [*text, *calls], "stop_reason": _REASONS[turn.finish_reason]}


def _shell(model: str, usage: Usage) -> Json:
    return {
        "id": f"msg_{uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(usage),
    }


def _usage(usage: Usage) -> Json:
    """Return the tokens as Anthropic counts them: those of the cache are not part of `input_tokens`."""
    return {
        "input_tokens": usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    }


class MessageWriter:
    """Writes one message as events. Its head names the model, so it is written when the attempt that stands begins to speak."""

    def __init__(self) -> None:
        """Begin nothing: the first event of the turn does."""
        self._blocks = 0
        self._is_in_text = False
        self._has_begun = False
        self._calls: list[ToolCall] = []

    def hear(self, event: TurnEvent) -> Iterator[Json]:
        """Yield the events that an event of the turn stands for. Calls wait for the turn's end, which says whose they are."""
        match event:
            case TurnText():
                yield from self._begin(event.by.model)
                if not self._is_in_text:
                    yield self._start({"type": "text", "text": "", "citations": None})
                    self._is_in_text = True
                yield self._delta({"type": "text_delta", "text": event.text})
            case TurnCall():
                self._calls.append(event.call)
            case TurnFinished():
                yield from self._begin(event.turn.model)
                yield from self._end_text()
                for call in self._calls:
                    yield from self._call(call)
                yield from self._finish(event.turn)

    def _begin(self, model: str) -> Iterator[Json]:
        if not self._has_begun:
            self._has_begun = True
            yield {"type": "message_start", "message": _shell(model, Usage())}

    def _end_text(self) -> Iterator[Json]:
        if self._is_in_text:
            self._is_in_text = False
            yield self._stop()

    def _call(self, call: ToolCall) -> Iterator[Json]:
        yield self._start({"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
        yield self._delta({"type": "input_json_delta", "partial_json": json.dumps(call.arguments, ensure_ascii=False)})
        yield self._stop()

    def _finish(self, turn: Turn) -> Iterator[Json]:
        delta = {"stop_reason": _REASONS[turn.finish_reason], "stop_sequence": None}
        yield {"type": "message_delta", "delta": delta, "usage": _usage(turn.usage)}
        yield {"type": "message_stop"}

    def _start(self, block: Json) -> Json:
        return {"type": "content_block_start", "index": self._blocks, "content_block": block}

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._blocks, "delta": delta}

    def _stop(self) -> Json:
        self._blocks += 1
        return {"type": "content_block_stop", "index": self._blocks - 1}
