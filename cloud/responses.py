"""The OpenAI Responses dialect (`/responses`), used for OpenAI's models after GPT-4.

Nothing is stored at the provider (`store: false`). The model's reasoning arrives encrypted and is sent back with the turn's other items,
in order and unchanged, as `Ending.parts`: without it a model thinks from the start after every tool call.
"""

import json
import re
from collections.abc import Sequence

from pydantic import JsonValue

from ..protocols import (
    Attachment,
    Capabilities,
    ContentFiltered,
    Effort,
    FinishReason,
    InvalidOutput,
    Message,
    StepRequest,
    ToolSpec,
    Usage,
)
from .dialect import (
    CallIds,
    EndedEarly,
    Ending,
    JsonObject,
    RawCall,
    Said,
    Traits,
    arguments_of,
    as_count,
    as_object,
    as_objects,
    as_text,
    check_number_of_calls,
    chosen,
    counted,
    openai_traits,
    own_parts,
    said_in,
)
from .openai import UNNAMED_FILE, bearer_headers
from .schemas import in_words, openai_output, parameters

_CALL_ID = re.compile(r".{1,64}", re.DOTALL)
_LEAST_OUTPUT = 16
"""Tokens; the API refuses a lower limit."""
_CALL_FIELDS = {"type", "id", "call_id", "name", "arguments", "status"}
_KINDS = {"reasoning", "message", "function_call"}
_TAKEN = ("response.created", "response.queued", "response.in_progress")
"""Events that only confirm that the request was accepted."""
_LAST = ("response.completed", "response.incomplete", "response.failed")


class ResponsesDialect:
    """Responses at OpenAI, and at servers that take the same fields."""

    name = "responses"
    default_base_url = "https://api.openai.com/v1"
    default_key_variable = "OPENAI_API_KEY"

    def __init__(
        self,
        *,
        tools: bool = True,
        json_schema: bool = True,
        images: bool = True,
        files: bool = True,
        temperature: bool | None = None,
        reasoning: bool | None = None,
        effort: Effort | None = None,
    ) -> None:
        """Set `temperature` and `reasoning`: True if the model has it, None to decide by its name. `effort` applies to requests that
        state none. `images` and `files`: True if the model reads them."""
        self._temperature = temperature
        self._reasoning = reasoning
        self._effort = effort
        self.capabilities = Capabilities(tools=tools, json_schema=json_schema, images=images, files=files)

    def path(self, model: str) -> str:
        return "/responses"

    def headers(self, key: str | None, idempotency_key: str) -> dict[str, str]:
        return bearer_headers(key, idempotency_key)

    def unsent_stops(self, stops: Sequence[str], model: str) -> Sequence[str]:
        return stops

    def body(self, request: StepRequest, model: str, *, max_output_tokens: int | None) -> JsonObject:
        output = None if request.output_schema is None else openai_output(request.output_schema)
        if output is None and request.output_schema is not None:
            request = in_words(request)
        traits = openai_traits(model, hosted=True, reasoning=self._reasoning)
        ids = CallIds(_CALL_ID)
        body: JsonObject = {
            "model": model,
            "input": [item for message in request.messages for item in _items(message, ids)],
            "stream": True,
            "store": False,
            **self._thinking(request, traits),
        }
        if max_output_tokens is not None:
            body["max_output_tokens"] = max(max_output_tokens, _LEAST_OUTPUT)
        if traits.temperature if self._temperature is None else self._temperature:
            body |= chosen(request, {"temperature": "temperature", "top_p": "top_p"})
        if request.tools:
            # Left out, `strict` means that the API rewrites the schema, and refuses what it cannot rewrite.
            body["tools"] = [_tool(tool) for tool in request.tools]
            body["tool_choice"] = request.tool_choice.value
        if output is not None:
            body["text"] = {"format": {"type": "json_schema", "name": "output", "schema": output[0], "strict": output[1]}}
        return body

    def decoder(self) -> "ResponsesDecoder":
        return ResponsesDecoder()

    def _thinking(self, request: StepRequest, traits: Traits) -> JsonObject:
        if not traits.efforts:
            return {}  # a model that does not reason, or a chat model, refuses both
        level = traits.nearest(request.effort or self._effort)
        thinking: JsonObject = {"include": ["reasoning.encrypted_content"]}
        return thinking if level is None else thinking | {"reasoning": {"effort": level.value}}


class ResponsesDecoder:
    """Reads the stream's events; each names its type inside its data."""

    def __init__(self) -> None:
        self._items: dict[int, JsonObject] = {}
        self._shown: list[str] = []
        self._response: JsonObject = {}
        self._model: str | None = None
        self._refused = False
        self._has_ended = False
        self.has_written = False

    def feed(self, chunk: JsonObject) -> str:
        kind = as_text(chunk.get("type"))
        self.has_written = self.has_written or kind not in _TAKEN
        if response := as_object(chunk.get("response")):
            self._model = as_text(response.get("model")) or self._model
        if kind == "response.output_text.delta":
            self._shown.append(as_text(chunk.get("delta")))
            return self._shown[-1]
        if kind == "response.output_item.done":
            self._keep(as_count(chunk.get("output_index")), as_object(chunk.get("item")))
        if kind.startswith("response.refusal."):
            self._refused = True
        if kind in _LAST:
            self._response, self._has_ended = response, True
            return self._conclude(as_objects(response.get("output")))
        return ""

    def end(self) -> Ending:
        if not self._has_ended:
            raise EndedEarly
        items = self._ordered()
        reason = self._reason()
        if self._refused:
            raise ContentFiltered("the model refused to answer", hint="rephrase the request, or use another model")
        calls = tuple(_call(item) for item in items if item.get("type") == "function_call")
        if reason is FinishReason.STOP and calls:
            reason = FinishReason.TOOL_CALLS
        parts = () if all(map(_is_plain, items)) else tuple(items)
        return Ending(reason, calls, _usage(as_object(self._response.get("usage"))), self._model, parts=parts)

    def _reason(self) -> FinishReason:
        status = as_text(self._response.get("status"))
        if status == "completed":
            return FinishReason.STOP
        why = as_text(as_object(self._response.get("incomplete_details")).get("reason"))
        if status == "incomplete" and why == "max_output_tokens":
            return FinishReason.LENGTH
        if status == "incomplete" and why == "content_filter":
            raise ContentFiltered("the provider withheld the answer", hint="rephrase the request, or use another model")
        raise InvalidOutput(f"the provider stopped without a usable answer: {(why or status or 'unknown')[:40]}", hint="try again")

    def _conclude(self, output: list[JsonObject]) -> str:
        """Add the items of the last event; return the text that did not come in pieces before, as from servers that only pretend to
        stream.

        Indexes are ignored here: a proxy may number the streamed items in another way.
        """
        if len(output) >= len(self._items):
            self._items.clear()
            for place, item in enumerate(output):
                self._keep(place, item)
        text, shown = "".join(map(_text, self._ordered())), "".join(self._shown)
        if not text.startswith(shown):
            return ""
        self._shown = [text]
        return text[len(shown) :]

    def _keep(self, index: int, item: JsonObject) -> None:
        if index not in self._items:
            check_number_of_calls(len(self._items) + 1)
        self._items[index] = {name: value for name, value in item.items() if value is not None}
        self._refused = self._refused or any(part.get("type") == "refusal" for part in as_objects(item.get("content")))

    def _ordered(self) -> list[JsonObject]:
        return [item for _, item in sorted(self._items.items())]


def _tool(tool: ToolSpec) -> JsonObject:
    schema, description = parameters(tool)
    return {"type": "function", "name": tool.name, "description": description, "parameters": schema, "strict": False}


def _items(message: Message, ids: CallIds) -> list[JsonValue]:
    if (result := message.tool_result) is not None:
        output: JsonValue = [_part(part) for part in message.parts] if message.attachments else result.content
        return [{"type": "function_call_output", "call_id": ids.of_result(result.call_id), "output": output}]
    parts = own_parts(message)
    if parts and {part.get("type") for part in parts} <= _KINDS and _said(parts) == said_in(message):
        ids.keep(message)
        return list(parts)
    items: list[JsonValue] = []
    if message.text or not message.tool_calls:
        content: JsonValue = [_part(part) for part in message.parts] if message.attachments else message.text
        items.append({"type": "message", "role": message.role, "content": content})
    for call in message.tool_calls:
        arguments = json.dumps(call.arguments)
        items.append({"type": "function_call", "call_id": ids.of_call(call.id), "name": call.name, "arguments": arguments})
    return items


def _part(part: str | Attachment) -> JsonObject:
    if isinstance(part, str):
        return {"type": "input_text", "text": part}
    if part.is_image:
        return {"type": "input_image", "image_url": part.data_url}
    return {"type": "input_file", "filename": part.name or UNNAMED_FILE, "file_data": part.data_url}


def _is_plain(item: JsonObject) -> bool:
    """Return whether a `Message` holds everything in the item."""
    if item.get("type") == "message":
        return not item.get("phase")
    fits = _CALL_ID.fullmatch(as_text(item.get("call_id"))) is not None
    return item.get("type") == "function_call" and item.keys() <= _CALL_FIELDS and fits


def _said(items: list[JsonObject]) -> Said:
    calls = [_call(item) for item in items if item.get("type") == "function_call"]
    return "".join(map(_text, items)), [(call.id or "", call.name, arguments_of(call)) for call in calls]


def _text(item: JsonObject) -> str:
    if item.get("type") != "message":
        return ""
    return "".join(as_text(part.get("text")) for part in as_objects(item.get("content")) if part.get("type") == "output_text")


def _call(item: JsonObject) -> RawCall:
    return RawCall(as_text(item.get("name")), as_text(item.get("arguments")), as_text(item.get("call_id")) or None)


def _usage(usage: JsonObject) -> Usage | None:
    details = as_object(usage.get("input_tokens_details"))
    return counted(
        read=as_count(usage.get("input_tokens")),
        written=as_count(usage.get("output_tokens")),
        cached=as_count(details.get("cached_tokens")),
        stored=as_count(details.get("cache_write_tokens")),
        thought=as_count(as_object(usage.get("output_tokens_details")).get("reasoning_tokens")),
    )
