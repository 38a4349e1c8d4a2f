"""Writes OpenAI's response objects, and the events of a response that is streamed."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from ...protocols import FinishReason, ToolCall, Usage
from ..task.turns import Turn, TurnCall, TurnEvent, TurnFinished, TurnText
from .fields import Body

Json = dict[str, Any]
_ECHOED: Final[Json] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""Fields of a response that repeat the request, with the values that they have where the request does not say."""


def new_id(kind: str) -> str:
    """Return an id of OpenAI's shape: `resp_`, `msg_` or `fc_` and hex digits."""
    return f"{kind}_{uuid4().hex}"


class ResponseWriter:
    """Writes one response, whole or as events."""

    def __init__(self, body: Body, model: str) -> None:
        """Begin a response to a request's `body`. `model`: the name that stands for the model until it is known which one answers."""
        self.id = new_id("resp")
        self._created = int(time.time())
        self._model = model
        self._echo = {name: body[name] if body.get(name) is not None else default for name, default in _ECHOED.items()}
        self._echo["tools"] = [{"strict": None, **tool} for tool in self._echo["tools"] if tool.get("type") == "function"]
        self._number = 0
        self._output: list[Json] = []
        self._text = ""

    def whole(self, turn: Turn) -> Json:
        """Return the response that a turn is."""
        said: list[TurnEvent] = [TurnText(text=turn.text, by=turn.speaker)] if turn.text else []
        said += [TurnCall(call=call) for call in turn.calls]
        for event in said:
            list(self.hear(event))
        *_, last = self.hear(TurnFinished(turn=turn))
        response: Json = last["response"]
        return response

    def begin(self) -> Iterator[Json]:
        """Yield the events with which a stream begins, before it is known who answers."""
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))

    def hear(self, event: TurnEvent) -> Iterator[Json]:
        """Yield the events that an event of the turn stands for."""
        match event:
            case TurnText():
                if not self._text:
                    yield from self._begin_text()
                self._text += event.text
                yield self._event("response.output_text.delta", **self._place(), delta=event.text, logprobs=[])
            case TurnCall():
                yield from self._end_text("completed")
                yield from self._call(event.call)
            case TurnFinished():
                yield from self._finish(event.turn)

    def fail(self, error: Mapping[str, Any]) -> Iterator[Json]:
        """Yield the events of a response that fails. `error`: OpenAI's `code` and `message`."""
        yield self._event("error", code=error["code"], message=error["message"], param=error.get("param"))
        failed = {"code": "rate_limit_exceeded" if error.get("is_limit") else "server_error", "message": error["message"]}
        yield self._event("response.failed", response=self._response("failed", error=failed))

    def _begin_text(self) -> Iterator[Json]:
        item = {"id": new_id("msg"), "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        self._output.append(item)
        yield self._event("response.output_item.added", output_index=len(self._output) - 1, item=item)
        yield self._event("response.content_part.added", **self._place(), part=_part(""))

    def _end_text(self, status: str) -> Iterator[Json]:
        """Yield the end of the text that is being said, if any."""
        if not self._text:
            return
        place, part = self._place(), _part(self._text)
        yield self._event("response.output_text.done", **place, text=self._text, logprobs=[])
        yield self._event("response.content_part.done", **place, part=part)
        self._output[-1] = {**self._output[-1], "status": status, "content": [part]}
        yield self._event("response.output_item.done", output_index=place["output_index"], item=self._output[-1])
        self._text = ""

    def _call(self, call: ToolCall) -> Iterator[Json]:
        item = {
            "id": new_id("fc"),
            "type": "function_call",
            "status": "in_progress",
            "arguments": "",
            "call_id": call.id,
            "name": call.name,
        }
        arguments, place = json.dumps(call.arguments, ensure_ascii=False), {"item_id": item["id"], "output_index": len(self._output)}
        yield self._event("response.output_item.added", output_index=place["output_index"], item=item)
        yield self._event("response.function_call_arguments.delta", **place, delta=arguments)
        yield self._event("response.function_call_arguments.done", **place, arguments=arguments)
        self._output.append({**item, "status": "completed", "arguments": arguments})
        yield self._event("response.output_item.done", output_index=place["output_index"], item=self._output[-1])

    def _finish(self, turn: Turn) -> Iterator[Json]:
        is_cut = turn.finish_reason is FinishReason.LENGTH
        status = "incomplete" if is_cut else "completed"
        yield from self._end_text(status)
        self._model = turn.model
        details = {"reason": "max_output_tokens"} if is_cut else None
        response = self._response(status, usage=_usage(turn.usage), incomplete_details=details)
        yield self._event(f"response.{status}", response=response)

    def _place(self) -> Json:
        return {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1, "content_index": 0}

    def _event(self, type: str, **fields: Any) -> Json:  # noqa: ANN401 - JSON
        event = {"type": type, "sequence_number": self._number, **fields}
        self._number += 1
        return event

    def _response(self, status: str, **known: Any) -> Json:  # noqa: ANN401 - JSON
        ended = int(time.time()) if status == "completed" else None
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "completed_at": ended,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self._model,
            "output": list(self._output),
            "usage": None,
            **self._echo,
            **known,
        }


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def output_items(response: Body) -> Sequence[Body]:
    """Return the items that a later response continues from."""
    output: Sequence[Body] = response["output"]
    return output
