"""The Anthropic Messages dialect.

System messages become the top-level `system` text, tool results become blocks of a user turn. The API expects a turn with thinking back
with all its blocks unchanged and in order, so they are returned as `Ending.parts`.

With cache marks, the next step of a tool loop reads its prefix at a tenth of the price of input. A mark stores the prompt up to and
including its block for 5 minutes; storing costs 1.25 times as much as plain input. The API orders a prompt as tools, system, messages,
takes 4 marks, looks at most 20 blocks back from a mark for an earlier one, and ignores a mark whose prefix is too short (1,024 to 4,096
tokens, by the model).
"""

import json
import re
from collections.abc import Sequence
from typing import Final

from pydantic import JsonValue

from ..protocols import (
    Attachment,
    Capabilities,
    ContentFiltered,
    Effort,
    FinishReason,
    InvalidOutput,
    InvalidRequest,
    Message,
    StepRequest,
    ToolChoice,
    ToolSpec,
    Usage,
)
from ..protocols.validation import parse_json
from .dialect import (
    CallIds,
    EndedEarly,
    Ending,
    JsonObject,
    RawCall,
    Said,
    as_count,
    as_object,
    as_text,
    bare_name,
    chosen,
    claude_thinking,
    claude_traits,
    counted,
    own_parts,
    said_in,
)
from .schemas import ANTHROPIC, grammatical, in_words, parameters

VERSION = "2023-06-01"
DEFAULT_MAX_TOKENS = 8192
"""The API requires a limit; this is the default if neither the request nor the agent has one."""

LEAST_BYTES: Final = 3 * 1024
"""A shorter prefix is not marked: it has hardly 1,024 tokens, the least that any model stores."""

_MARK: Final[JsonObject] = {"cache_control": {"type": "ephemeral"}}

_REASONS = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "tool_use": FinishReason.TOOL_CALLS,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
}
_CHOICES = {ToolChoice.AUTO: "auto", ToolChoice.NONE: "none", ToolChoice.REQUIRED: "any"}
# Models before Opus 5.5 and its contemporaries can be forced to call a tool; later ones refuse that, so they are asked and then checked.
_TAKES_FORCE = re.compile(r"claude-(?:[123]|instant|(?:opus|sonnet|haiku)-4|(?:opus|sonnet|fable|mythos)-5(?:-\d{8})?$)")
_KINDS = {"thinking", "redacted_thinking", "text", "tool_use"}
_CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")
_CALL_FIELDS = {"type", "id", "name", "input"}


class AnthropicDialect:
    """Messages API, version 2023-06-01."""

    name = "anthropic"
    default_base_url = "https://api.anthropic.com/v1"
    default_key_variable = "ANTHROPIC_API_KEY"

    def __init__(
        self,
        *,
        tools: bool = True,
        json_schema: bool = True,
        images: bool = True,
        files: bool = True,
        temperature: bool | None = None,
        effort: Effort | None = None,
    ) -> None:
        """Set `temperature`: True if the model takes one, None to decide by its name. `effort` applies to requests that state none.
        `images` and `files`: True if the model reads them."""
        self._temperature = temperature
        self._effort = effort
        self.capabilities = Capabilities(tools=tools, json_schema=json_schema, images=images, files=files)

    def path(self, model: str) -> str:
        return "/messages"

    def headers(self, key: str | None, idempotency_key: str) -> dict[str, str]:
        headers = {"anthropic-version": VERSION}
        return headers if key is None else headers | {"x-api-key": key}

    def unsent_stops(self, stops: Sequence[str], model: str) -> Sequence[str]:
        return [stop for stop in stops if not stop.strip()]  # the API refuses blank ones

    def body(self, request: StepRequest, model: str, *, max_output_tokens: int | None) -> JsonObject:
        schema = None if request.output_schema is None else grammatical(request.output_schema, ANTHROPIC)
        if schema is None and request.output_schema is not None:
            request = in_words(request)
        body: JsonObject = {
            "model": model,
            "max_tokens": max_output_tokens or DEFAULT_MAX_TOKENS,
            "messages": _turns(request.messages),
            "stream": True,
        }
        if system := "\n\n".join(message.text for message in request.messages if message.role == "system"):
            body["system"] = system
        is_forced = request.tool_choice is ToolChoice.REQUIRED and _TAKES_FORCE.match(bare_name(model)) is not None
        thinking = claude_thinking(model, request.effort or self._effort, is_forced=is_forced)
        body |= thinking
        takes_temperature = claude_traits(model).temperature and not thinking if self._temperature is None else self._temperature
        if takes_temperature:
            body |= _samplers(request)
        if stops := [stop for stop in request.stop if stop.strip()]:
            body["stop_sequences"] = list(stops)
        if request.tools:
            body["tools"] = [_tool(tool) for tool in request.tools]
            asks = request.tool_choice is ToolChoice.REQUIRED and not is_forced
            body["tool_choice"] = {"type": _CHOICES[ToolChoice.AUTO if asks else request.tool_choice]}
        if schema is not None:
            form: JsonObject = {"format": {"type": "json_schema", "schema": schema}}
            body["output_config"] = as_object(body.get("output_config")) | form
        if request.tools:
            mark_prefixes(body)
        return body

    def decoder(self) -> "AnthropicDecoder":
        return AnthropicDecoder()


class AnthropicDecoder:
    """Reads the stream's events; each names its type inside its data."""

    def __init__(self) -> None:
        self._blocks: dict[int, JsonObject] = {}
        self._json: dict[int, list[str]] = {}
        self._usage: JsonObject = {}
        self._has_counted = False
        """Output was counted. `message_start` reports 1 token before there is any."""
        self._model: str | None = None
        self._reason: str | None = None
        self._stop: str | None = None
        self._stopped = False

    @property
    def has_written(self) -> bool:
        return bool(self._blocks) or self._has_counted

    def feed(self, chunk: JsonObject) -> str:
        match chunk.get("type"):
            case "message_start":
                message = as_object(chunk.get("message"))
                self._model = as_text(message.get("model")) or None
                self._usage |= as_object(message.get("usage"))
            case "content_block_start":
                block = as_object(chunk.get("content_block"))
                self._blocks[as_count(chunk.get("index"))] = dict(block)
                return as_text(block.get("text"))
            case "content_block_delta":
                return self._delta(as_count(chunk.get("index")), as_object(chunk.get("delta")))
            case "message_delta":
                delta = as_object(chunk.get("delta"))
                self._reason = as_text(delta.get("stop_reason")) or self._reason
                self._stop = as_text(delta.get("stop_sequence")) or self._stop
                self._has_counted = self._has_counted or as_count(as_object(chunk.get("usage")).get("output_tokens")) > 0
                # Counts grow up to the end. Servers that count the prompt at the start alone send 0 or nothing here.
                self._usage |= {name: value for name, value in as_object(chunk.get("usage")).items() if value}
            case "message_stop":
                self._stopped = True
        return ""

    def end(self) -> Ending:
        if not self._stopped or self._reason is None:
            raise EndedEarly
        if self._reason == "refusal":
            raise ContentFiltered("the model refused to answer", hint="rephrase the request, or use another model")
        if self._reason not in _REASONS:
            raise InvalidOutput(f"the provider stopped for a reason that a step cannot have: {self._reason[:40]!r}")
        calls = tuple(self._call(index) for index, block in sorted(self._blocks.items()) if block.get("type") == "tool_use")
        return Ending(_REASONS[self._reason], calls, _usage(self._usage), self._model, parts=self._parts(), stop=self._stop)

    def _delta(self, index: int, delta: JsonObject) -> str:
        block = self._blocks.setdefault(index, {})
        match delta.get("type"):
            case "text_delta":
                block["text"] = as_text(block.get("text")) + (text := as_text(delta.get("text")))
                return text
            case "input_json_delta":
                self._json.setdefault(index, []).append(as_text(delta.get("partial_json")))
            case "thinking_delta":
                block["thinking"] = as_text(block.get("thinking")) + as_text(delta.get("thinking"))
            case "signature_delta":
                block["signature"] = as_text(delta.get("signature"))
        return ""

    def _parts(self) -> tuple[JsonObject, ...]:
        """Return all blocks in order if they hold more than text and calls."""
        blocks = [block for _, block in sorted(self._blocks.items())]
        kinds = [block.get("type") for block in blocks]
        if set(kinds) <= {"text", "tool_use"} and "text" not in kinds[1:] and all(map(_is_plain, blocks)):
            return ()
        return tuple(self._whole(index, block) for index, block in sorted(self._blocks.items()))

    def _whole(self, index: int, block: JsonObject) -> JsonObject:
        block = {name: value for name, value in block.items() if value is not None}
        if index not in self._json:
            return block
        try:
            return block | {"input": parse_json("".join(self._json[index]).strip() or "{}")}
        except ValueError:  # the step fails by it, where the calls are checked
            return block

    def _call(self, index: int) -> RawCall:
        block = self._blocks[index]
        written = "".join(self._json.get(index, ()))
        return RawCall(as_text(block.get("name")), written or as_object(block.get("input")), as_text(block.get("id")) or None)


def _turns(messages: tuple[Message, ...]) -> list[JsonValue]:
    """Return turns of alternating roles: neighbours of one role are joined."""
    turns: list[tuple[str, list[JsonValue]]] = []
    ids = CallIds(_CALL_ID)
    for message in messages:
        if message.role == "system":
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message, ids)
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        elif blocks:
            turns.append((role, blocks))
    if not turns:
        raise InvalidRequest("the conversation holds only system messages", hint="add a user message")
    return [{"role": role, "content": content} for role, content in turns]


def _blocks(message: Message, ids: CallIds) -> list[JsonValue]:
    if (result := message.tool_result) is not None:
        content: JsonValue = _said_parts(message) if message.attachments else result.content
        return [{"type": "tool_result", "tool_use_id": ids.of_result(result.call_id), "content": content, "is_error": result.is_error}]
    parts = own_parts(message)
    if parts and {part.get("type") for part in parts} <= _KINDS and _said(parts) == said_in(message):
        ids.keep(message)
        return [part for part in parts if part.get("type") != "text" or as_text(part.get("text")).strip()]  # the API takes no blank ones
    blocks = _said_parts(message)
    for call in message.tool_calls:
        blocks.append({"type": "tool_use", "id": ids.of_call(call.id), "name": call.name, "input": call.arguments})
    return blocks


def _said_parts(message: Message) -> list[JsonValue]:
    """Return the texts and attachments; the API takes no blank texts."""
    return [_part(part) for part in message.parts if not isinstance(part, str) or part.strip()]


def _part(part: str | Attachment) -> JsonObject:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    source: JsonObject = {"type": "base64", "media_type": part.media_type, "data": part.base64}
    return {"type": "image" if part.is_image else "document", "source": source}


def _is_plain(block: JsonObject) -> bool:
    """Return whether a `Message` holds everything in the block."""
    if block.get("type") == "text":
        return True
    return block.keys() <= _CALL_FIELDS and _CALL_ID.fullmatch(as_text(block.get("id"))) is not None


def _said(blocks: list[JsonObject]) -> Said:
    text = "".join(as_text(block.get("text")) for block in blocks if block.get("type") == "text")
    called = [block for block in blocks if block.get("type") == "tool_use"]
    return text, [(as_text(block.get("id")), as_text(block.get("name")), as_object(block.get("input"))) for block in called]


def _samplers(request: StepRequest) -> JsonObject:
    """Return temperature and samplers. Newer models refuse a temperature together with `top_p`, so the latter is left out then."""
    samplers = chosen(request, {"top_k": "top_k", **({} if request.temperature is not None else {"top_p": "top_p"})})
    return samplers if request.temperature is None else samplers | {"temperature": min(request.temperature, 1.0)}


def _tool(tool: ToolSpec) -> JsonObject:
    schema, description = parameters(tool)
    return {"name": tool.name, "description": description, "input_schema": schema}


def _usage(usage: JsonObject) -> Usage | None:
    cached, stored = as_count(usage.get("cache_read_input_tokens")), as_count(usage.get("cache_creation_input_tokens"))
    return counted(
        read=as_count(usage.get("input_tokens")) + stored + cached,
        written=as_count(usage.get("output_tokens")),
        cached=cached,
        stored=stored,
        thought=as_count(as_object(usage.get("output_tokens_details")).get("thinking_tokens")),
    )


def mark_prefixes(body: JsonObject) -> None:
    """Mark the parts that the next step sends again: tools with the system text, and the whole conversation.

    The end of the conversation before the last assistant turn is marked too. The previous step stored it, and a turn with many parallel
    calls may put it beyond the 20 blocks that the API looks back.
    """
    head = _size(body.get("tools")) + _size(body.get("system"))
    if head >= LEAST_BYTES:
        _mark_head(body)
    messages = body["messages"]
    assert isinstance(messages, list), "the dialect built it"
    if head + _size(messages) < LEAST_BYTES:
        return
    for turn in [turn for turn in messages if isinstance(turn, dict) and turn.get("role") == "user"][-2:]:
        _mark_last(turn.get("content"))


def _mark_head(body: JsonObject) -> None:
    """Mark the last block before the conversation."""
    if system := body.get("system"):
        body["system"] = [{"type": "text", "text": system, **_MARK}]
    else:
        _mark_last(body.get("tools"))


def _mark_last(blocks: JsonValue) -> None:
    if isinstance(blocks, list) and blocks and isinstance(last := blocks[-1], dict):
        blocks[-1] = last | _MARK


def _size(part: JsonValue) -> int:
    return 0 if part is None else len(json.dumps(part, ensure_ascii=False).encode(errors="surrogatepass"))
