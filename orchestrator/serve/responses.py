"""`/v1/responses`: OpenAI's Responses API, with responses that are kept, continued, read again and deleted."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl

import orjson

from ...protocols import FinishReason, InvalidRequest, NearfarError, Sensitivity, ToolCall, Usage
from ..runs.sessions import Chain, KeptResponse, KeptResponses, item_id
from ..task.events import Speaker, Turn
from .dialect import AskedOfTurn, Encoder, Incoming, TurnDialect, event, turn_object
from .endpoint import Exchange, answer_count
from .requests import Fields, field, openai_error, opening_of, required_text, wrong
from .responses_input import input_items, read_responses

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
_LIMITS: Final = ("rate_limit_exceeded", "insufficient_quota")


class ResponseWriter:
    """Writes one response, event by event. Each method returns the events of what it is told."""

    def __init__(self, id: str, body: Fields) -> None:
        """Begin the response called `id` to a request's `body`."""
        self._number = 0
        self._output: list[Json] = []
        self._text = ""
        echo = {name: _echo(body.get(name), default) for name, default in _ECHOED.items()}
        tools = [{"strict": None, "description": None, **tool} for tool in echo["tools"] if tool.get("type") == "function"]
        self.response: Json = {
            "id": id,
            "object": "response",
            "created_at": int(time.time()),
            "model": body["model"],
            **echo,
            "tools": tools,
        }
        """The response, as far as it is known."""
        self._set("in_progress")

    def begin(self, model: str) -> Iterator[Json]:
        """Begin the answer of a `model`."""
        self.response["model"] = model
        yield self._event("response.created", response=self._set("in_progress"))
        yield self._event("response.in_progress", response=self._set("in_progress"))

    def text(self, piece: str) -> Iterator[Json]:
        """Add a piece of text."""
        if not self._text:
            item = {"id": self._new_id("msg"), "type": "message", "role": "assistant", "status": "in_progress", "content": []}
            self._output.append(item)
            yield self._event("response.output_item.added", output_index=len(self._output) - 1, item=item)
            yield self._event("response.content_part.added", **self._place(), part=_part(""))
        self._text += piece
        yield self._event("response.output_text.delta", **self._place(), delta=piece, logprobs=[])

    def finish(self, turn: Turn) -> Iterator[Json]:
        """Add the calls of a turn, and end the response."""
        is_cut = turn.finish_reason is FinishReason.LENGTH
        yield from self._end_text("incomplete" if is_cut and not turn.calls else "completed")
        for call in turn.calls:
            yield from self._call(call)
        details = {"reason": "max_output_tokens"} if is_cut else None
        status = "incomplete" if is_cut else "completed"
        response = self._set(status, usage=_usage(turn.usage), incomplete_details=details)
        yield self._event(f"response.{status}", response=response)

    def fail(self, error: NearfarError) -> Iterator[Json]:
        """End the response with an error. One that no agent has begun to answer names the model that was asked for."""
        told = openai_error(error)["error"]
        yield self._event("error", code=told["code"], message=told["message"], param=told["param"])
        code = "rate_limit_exceeded" if told["code"] in _LIMITS else "server_error"
        yield self._event("response.failed", response=self._set("failed", error={"code": code, "message": told["message"]}))

    def _end_text(self, status: str) -> Iterator[Json]:
        """End the text that is being said, if any is."""
        if not self._text:
            return
        place, part = self._place(), _part(self._text)
        yield self._event("response.output_text.done", **place, text=self._text, logprobs=[])
        yield self._event("response.content_part.done", **place, part=part)
        self._output[-1] = {**self._output[-1], "status": status, "content": [part]}
        yield self._event("response.output_item.done", output_index=place["output_index"], item=self._output[-1])
        self._text = ""

    def _call(self, call: ToolCall) -> Iterator[Json]:
        item = {"id": self._new_id("fc"), "type": "function_call", "status": "in_progress", "call_id": call.id, "name": call.name}
        arguments, place = json.dumps(call.arguments, ensure_ascii=False), {"item_id": item["id"], "output_index": len(self._output)}
        yield self._event("response.output_item.added", output_index=place["output_index"], item={**item, "arguments": ""})
        yield self._event("response.function_call_arguments.delta", **place, delta=arguments)
        yield self._event("response.function_call_arguments.done", **place, arguments=arguments)
        self._output.append({**item, "status": "completed", "arguments": arguments})
        yield self._event("response.output_item.done", output_index=place["output_index"], item=self._output[-1])

    def _new_id(self, kind: str) -> str:
        return item_id(kind, self.response["id"], len(self._output))

    def _place(self) -> Json:
        return {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1, "content_index": 0}

    def _event(self, type: str, **fields: Any) -> Json:  # noqa: ANN401 - JSON
        self._number += 1
        return {"type": type, "sequence_number": self._number - 1, **fields}

    def _set(self, status: str, **known: Any) -> Json:  # noqa: ANN401 - JSON
        """Return the response as it is with a new status."""
        ended = int(time.time()) if status == "completed" else None
        told = {"error": None, "incomplete_details": None, "usage": None, **known}
        self.response |= {"status": status, "completed_at": ended, "output": list(self._output), **told}
        return dict(self.response)


class ResponseEncoder(Encoder):
    """Writes a response as server-sent events."""

    def __init__(self, writer: ResponseWriter, asked: AskedOfTurn) -> None:
        """Write by `writer` what a turn that was `asked` for becomes."""
        self._writer = writer
        self._asked = asked

    @property
    def response(self) -> Json:
        """The response, as far as it is known."""
        return self._writer.response

    def begin(self, speaker: Speaker) -> bytes:
        return _encoded(self._writer.begin(speaker.model))

    def text(self, piece: str) -> bytes:
        return _encoded(self._writer.text(piece))

    def finish(self, turn: Turn) -> bytes:
        self._writer.response["nearfar"] = turn_object(turn, self._asked.warnings, debug=self._asked.debug)
        return _encoded(self._writer.finish(turn)) + _DONE

    def fail(self, error: NearfarError) -> bytes:
        return _encoded(self._writer.fail(error)) + _DONE


_DONE: Final = event(b"[DONE]")


def _encoded(events: Iterator[Json]) -> bytes:
    return b"".join(event(orjson.dumps(each), name=each["type"]) for each in events)


def whole_response(writer: ResponseWriter, asked: AskedOfTurn, turn: Turn) -> Json:
    """Return the response that a turn is."""
    told = {"nearfar": turn_object(turn, asked.warnings, debug=asked.debug)}
    for events in (writer.begin(turn.model), *([writer.text(turn.text)] if turn.text else []), writer.finish(turn)):
        for _ in events:
            pass
    return writer.response | told


def _echo(given: object, default: object) -> Any:  # noqa: ANN401 - JSON
    """Return what a response repeats of a field; an object has all that it has by default."""
    if isinstance(given, dict) and isinstance(default, dict):
        return {**default, **given}
    return default if given is None else given


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Usage) -> Mapping[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


_MOST_ITEMS = 100
"""Items of a response's input that one request lists at most."""
_PAGE = 20
"""Items that one lists unless it says."""


class Responses(TurnDialect):
    """Reads requests for responses, and writes the responses."""

    error_body = staticmethod(openai_error)

    def __init__(self, kept: KeptResponses) -> None:
        """Continue responses that are `kept`, and keep those that are made."""
        self._kept = kept

    async def read(self, incoming: Incoming) -> AskedOfTurn:
        chain = await self._chain(incoming)
        given, holders = await self._input(incoming)
        read = read_responses(incoming.body, given, earlier=chain.items)
        options, asked, warnings = incoming.options(chain=chain.session, opening=opening_of(read.messages))
        options |= dict(read.options)  # type: ignore[typeddict-item]  # they are checked when the turn begins
        if chain.is_private or any(holder.is_private for holder in holders):
            options["sensitivity"] = Sensitivity.PRIVATE
        return AskedOfTurn(
            prompt=read.messages,
            options=options,
            tools=read.tools,
            tool_choice=read.tool_choice,
            stream=read.stream,
            debug=asked.debug,
            warnings=[*dict.fromkeys([*read.warnings, *warnings])],
            extra={"input": given, "store": field(incoming.body, "store", bool, "true or false", True)},
        )

    async def _chain(self, incoming: Incoming) -> Chain:
        """Return the responses that a request continues."""
        return await self._kept.chain(field(incoming.body, "previous_response_id", str, "the id of a response", ""), _owner(incoming))

    async def _input(self, incoming: Incoming) -> tuple[Sequence[Fields], Sequence[KeptResponse]]:
        """Return the items of a request's input, references replaced by the items that they name, and the responses that hold these."""
        items, holders = list(input_items(incoming.body)), []
        for place, item in enumerate(items):
            if item.get("type") == "item_reference":
                name = required_text(item, "id", f"input[{place}]")
                items[place], holder = await self._kept.item(name, _owner(incoming))
                holders.append(holder)
        return items, holders

    def whole(self, incoming: Incoming, asked: AskedOfTurn, turn: Turn) -> Mapping[str, Any]:
        return whole_response(_writer(incoming), asked, turn)

    def encoder(self, incoming: Incoming, asked: AskedOfTurn) -> Encoder:
        return ResponseEncoder(_writer(incoming), asked)

    async def keep(self, incoming: Incoming, asked: AskedOfTurn, turn: Turn, written: Encoder | Mapping[str, Any]) -> None:
        """Keep a complete response, unless the request says `"store": false`."""
        if not asked.extra["store"]:
            return
        response = written.response if isinstance(written, ResponseEncoder) else dict(written)  # type: ignore[arg-type]  # whole returns one
        items = tuple({**item} for item in asked.extra["input"])
        declared = asked.options.get("sensitivity", incoming.hybrid.policy.sensitivity)
        is_private = Sensitivity.PRIVATE in (declared, turn.result.label.sensitivity)
        session = asked.options["session"]
        kept = KeptResponse(run=incoming.run, session=session, input=items, response=response, is_private=is_private)
        await self._kept.keep(kept, _owner(incoming))

    async def count(self, exchange: Exchange) -> None:
        """Answer with the number of tokens of a request's input."""
        await answer_count(exchange, await self.read(exchange.incoming), object="response.input_tokens")

    async def show(self, exchange: Exchange) -> None:
        """Answer with a kept response, or delete it."""
        name, user = exchange.scope["path_params"]["response"], _owner(exchange.incoming)
        if exchange.scope["method"] == "DELETE":
            await self._kept.delete(name, user)
            await exchange.reply({"id": name, "object": "response", "deleted": True})
        else:
            await exchange.reply((await self._kept.get(name, user)).response)

    async def cancel(self, exchange: Exchange) -> None:
        """Refuse to cancel: a response is kept when it is complete, and closing the connection cancels one that is not."""
        await self._kept.get(exchange.scope["path_params"]["response"], _owner(exchange.incoming))
        raise InvalidRequest("only a background response can be cancelled, and this one is complete", hint="close the connection instead")

    async def items(self, exchange: Exchange) -> None:
        """Answer with a page of the items of a kept response's input, the newest first unless `order=asc`."""
        kept = await self._kept.get(exchange.scope["path_params"]["response"], _owner(exchange.incoming))
        query = dict(parse_qsl(exchange.scope.get("query_string", b"").decode()))
        listed: list[dict[str, Any]] = [{**item, "id": item.get("id") or f"item_{place}"} for place, item in enumerate(kept.input)]
        if query.get("order") != "asc":
            listed.reverse()
        ids = [item["id"] for item in listed]
        rest = listed[ids.index(query["after"]) + 1 :] if query.get("after") in ids else listed
        page = rest[: _page_size(query.get("limit", ""))]
        ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
        await exchange.reply({"object": "list", "data": page, "has_more": len(rest) > len(page), **ends})


def _owner(incoming: Incoming) -> str:
    """Return the user whose responses a caller may see."""
    return incoming.allowed.user or incoming.caller


def _writer(incoming: Incoming) -> ResponseWriter:
    return ResponseWriter(f"resp_{incoming.run}", incoming.body)


def _page_size(limit: str) -> int:
    if not limit:
        return _PAGE
    if not limit.isdecimal() or len(limit) > len(str(_MOST_ITEMS)) or not 0 < int(limit) <= _MOST_ITEMS:
        raise wrong("limit", f"it must be a number from 1 to {_MOST_ITEMS}")
    return int(limit)
