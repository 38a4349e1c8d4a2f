"""The OpenAI chat-completions dialect, as OpenAI, vLLM, llama-server, Ollama, OpenRouter and many others speak it.

Servers leave out different fields, so the decoder accepts many forms: usage in the last chunk, in every chunk or nowhere; tool calls
whole or in pieces, with or without index and id; reasoning in separate fields, which are skipped.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Literal

from pydantic import JsonValue

from ..protocols import (
    Attachment,
    Capabilities,
    ContentFiltered,
    Effort,
    FinishReason,
    InvalidOutput,
    JsonSchema,
    Message,
    StepRequest,
    ToolSpec,
    Unsupported,
    Usage,
)
from ..protocols.confidence import LowestWindow
from .dialect import (
    PLAIN,
    SHOWN_BELOW,
    CallIds,
    EndedEarly,
    Ending,
    JsonObject,
    RawCall,
    Traits,
    arguments_of,
    as_count,
    as_object,
    as_objects,
    as_text,
    check_number_of_calls,
    chosen,
    counted,
    has_output,
    openai_traits,
    own_parts,
    refuses_effort_with_tools,
    said_in,
)
from .schemas import in_words, openai_output, parameters

JsonSchemaForm = Literal["native", "llama"]
"""Form of an output schema: "native" as `json_schema`, "llama" inside `json_object` (llama-cpp-python's server)."""

_REASONS = {
    "stop": FinishReason.STOP,
    "eos": FinishReason.STOP,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "length": FinishReason.LENGTH,
}

MOST_STOPS = 4
UNNAMED_FILE = "document.pdf"
"""OpenAI's APIs want a name for each document."""
_SAMPLERS = {name: name for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty")}
_SERVER_SAMPLERS = {"top_k": "top_k", "min_p": "min_p"}
"""Further samplers of compatible servers; OpenAI's own refuses them."""
_CALL_FIELDS = {"index", "id", "type", "function"}
_CALL_ID = re.compile(r".{1,40}", re.DOTALL)
_ANY_ID = re.compile(r".+", re.DOTALL)
"""Pattern of ids at compatible servers: a proxy may need data that it hid in a long id, as LiteLLM does with Gemini's signatures."""


class OpenAIDialect:
    """Chat completions. The defaults are for OpenAI itself; `hosted=False` selects those of compatible servers."""

    name = "openai"
    default_base_url = "https://api.openai.com/v1"
    default_key_variable = "OPENAI_API_KEY"

    def __init__(
        self,
        *,
        hosted: bool = True,
        tools: bool = True,
        json_schema: JsonSchemaForm | None = "native",
        logprobs: bool = False,
        logprobs_with_tools: bool = True,
        images: bool = False,
        files: bool = False,
        seed: bool = False,
        temperature: bool | None = None,
        reasoning: bool | None = None,
        effort: Effort | None = None,
    ) -> None:
        """Describe how the server and its model differ from OpenAI's own.

        Args:
            hosted: True for OpenAI's own server, or one that takes the same fields.
            tools: True if the server enforces tool calls.
            json_schema: form of an output schema; None: not supported.
            logprobs: ask for token log-probabilities.
            logprobs_with_tools: False if the server refuses to stream them in a step with tools.
            images: True if the model reads images.
            files: True if the server takes PDF documents for the model.
            seed: True if the server repeats itself for the same seed.
            temperature: True if the model takes one; None: decided by its name.
            reasoning: True for a reasoning model of OpenAI's; None: decided by its name.
            effort: default for requests that state none; if given, a server with an unknown model takes any level.
        """
        self._hosted = hosted
        self._reasoning = reasoning
        self._effort = effort
        self._json_schema = json_schema
        self._logprobs = logprobs
        self._logprobs_with_tools = logprobs_with_tools
        self._temperature = temperature
        self.capabilities = Capabilities(
            tools=tools,
            json_schema=json_schema is not None,
            confidence=logprobs,
            seed=seed,
            logprobs=logprobs,
            images=images,
            files=files,
        )

    def path(self, model: str) -> str:
        return "/chat/completions"

    def headers(self, key: str | None, idempotency_key: str) -> dict[str, str]:
        return bearer_headers(key, idempotency_key)

    def unsent_stops(self, stops: Sequence[str], model: str) -> Sequence[str]:
        return stops[MOST_STOPS:] if self._traits(model).stops else stops

    def body(self, request: StepRequest, model: str, *, max_output_tokens: int | None) -> JsonObject:
        form = None if request.output_schema is None else self._response_format(request.output_schema)
        if form is None and request.output_schema is not None:
            request = in_words(request)
        ids = CallIds(_CALL_ID if self._hosted else _ANY_ID)
        body: JsonObject = {
            "model": model,
            "messages": list(_messages(request.messages, ids)),
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._sampling(request, model, max_output_tokens),
        }
        if self._logprobs and (self._logprobs_with_tools or not request.tools):
            # llama-cpp-python's server ignores the first without the second.
            body |= {"logprobs": True, "top_logprobs": max(request.top_logprobs or 0, 1)}
        elif request.top_logprobs is not None:
            raise Unsupported("this server reports no log-probabilities in a step with tools", hint="leave out top_logprobs or tools")
        if request.tools:
            body |= {"tools": [_tool(tool) for tool in request.tools], "tool_choice": request.tool_choice.value}
        if form is not None:
            body["response_format"] = form
        return body

    def decoder(self) -> "OpenAIDecoder":
        return OpenAIDecoder()

    def _traits(self, model: str) -> Traits:
        return openai_traits(model, hosted=self._hosted, reasoning=self._reasoning)

    def _sampling(self, request: StepRequest, model: str, max_output_tokens: int | None) -> JsonObject:
        """Return the fields that depend on the server and the model."""
        traits = self._traits(model)
        fields: JsonObject = {}
        if max_output_tokens is not None:
            fields["max_completion_tokens" if self._hosted or not traits.stops else "max_tokens"] = max_output_tokens
        if traits.temperature if self._temperature is None else self._temperature:
            fields |= chosen(request, _SAMPLERS if self._hosted else _SAMPLERS | _SERVER_SAMPLERS)
        if request.seed is not None:
            fields["seed"] = request.seed
        if request.stop and traits.stops:
            fields["stop"] = list(request.stop[:MOST_STOPS])
        if self._effort is not None and traits == PLAIN and self._reasoning is None and not self._hosted:
            traits = Traits(tuple(Effort))
        # With tools, chat completions accept these models only without thinking; the responses API has no such rule.
        is_still = bool(request.tools) and refuses_effort_with_tools(model)
        level = traits.nearest(Effort.NONE if is_still else request.effort or self._effort)
        if level is not None:
            fields["reasoning_effort"] = level.value
        return fields

    def _response_format(self, schema: JsonSchema) -> JsonObject | None:
        if self._json_schema == "llama":
            return {"type": "json_object", "schema": schema}
        if (taken := openai_output(schema)) is None:
            return None
        return {"type": "json_schema", "json_schema": {"name": "output", "schema": taken[0], "strict": taken[1]}}


def bearer_headers(key: str | None, idempotency_key: str) -> dict[str, str]:
    """Return the headers of OpenAI's APIs. The idempotency key is hashed, because a header cannot carry every text."""
    headers = {"Idempotency-Key": sha256(idempotency_key.encode()).hexdigest()}
    return headers if key is None else headers | {"Authorization": f"Bearer {key}"}


class OpenAIDecoder:
    """Reads `chat.completion.chunk` objects."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._reason: str | None = None
        self._stop: str | None = None
        self._refused = False
        self._usage: Usage | None = None
        self._model: str | None = None
        self._confidence = LowestWindow()
        self._logprobs: list[JsonObject] = []
        self.has_written = False

    def feed(self, chunk: JsonObject) -> str:
        self._model = as_text(chunk.get("model")) or self._model
        if usage := as_object(chunk.get("usage")):
            self._usage = _usage(usage) or self._usage
            self.has_written = self.has_written or has_output(self._usage)
        return "".join([self._choice(choice) for choice in as_objects(chunk.get("choices")) if not choice.get("index")])

    def end(self) -> Ending:
        if self._reason is None:
            raise EndedEarly
        if self._refused or self._reason == "content_filter":
            raise ContentFiltered("the provider withheld the answer", hint="rephrase the request, or use another model")
        if self._reason not in _REASONS:
            raise InvalidOutput(f"the provider stopped for an unknown reason {self._reason[:40]!r}")
        return Ending(
            reason=_REASONS[self._reason],
            calls=tuple(call.finished() for call in self._calls),
            usage=self._usage,
            model=self._model,
            confidence=self._confidence.value,
            logprobs=tuple(self._logprobs),
            stop=self._stop,
            parts=tuple(call.whole_again() for call in self._calls) if any(call.extra for call in self._calls) else (),
        )

    def _choice(self, choice: JsonObject) -> str:
        # Whole messages in place of deltas come from servers that only pretend to stream.
        delta = as_object(choice.get("delta")) or as_object(choice.get("message"))
        self.has_written = self.has_written or any(value for name, value in delta.items() if name != "role")
        if calls := delta.get("tool_calls"):
            for piece in as_objects(calls):
                self._piece(piece)
        if logprobs := choice.get("logprobs"):
            self._note(as_objects(as_object(logprobs).get("content")))
        if refusal := delta.get("refusal"):
            self._refused = self._refused or bool(as_text(refusal))
        self._reason = as_text(choice.get("finish_reason")) or self._reason
        self._stop = as_text(choice.get("stop_reason")) or self._stop  # vLLM's, where a sequence ended the text
        return _said(delta.get("content"))

    def _note(self, tokens: list[JsonObject]) -> None:
        """Take in the log-probabilities of tokens."""
        for token in tokens:
            if isinstance(logprob := token.get("logprob"), int | float):
                self._confidence.add(logprob)
                self._logprobs.append(token)

    def _piece(self, piece: JsonObject) -> None:
        function = as_object(piece.get("function"))
        name, identity = as_text(function.get("name")), as_text(piece.get("id"))
        call = self._call_of(piece.get("index"), identity, name)
        call.id = call.id or identity
        call.name = call.name or name
        call.extra |= {field: value for field, value in piece.items() if field not in _CALL_FIELDS and value is not None}
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            call.whole = arguments
        else:
            call.pieces.append(as_text(arguments))

    def _call_of(self, index: JsonValue, identity: str, name: str) -> "_Call":
        """Return the call that a piece continues. Without an index, a new id or name begins a new call; with an index, both together do,
        because some servers give all calls the same index."""
        if index is not None:
            known = [call for call in self._calls if call.index == index][-1:]
            known = [] if identity and name and known and known[0].id not in ("", identity) else known
        else:
            known = self._calls[-1:]
            begins = identity not in ("", *(call.id for call in known)) or (name and not identity)
            known = [] if begins else known
        if not known:
            check_number_of_calls(len(self._calls) + 1)  # here, since each piece looks through all of them
            known = [_Call(index)]
            self._calls += known
        return known[-1]


class _Call:
    """A tool call that is still arriving."""

    def __init__(self, index: JsonValue) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.pieces: list[str] = []
        self.whole: JsonObject | None = None
        self.extra: JsonObject = {}
        """Fields of the server's own, such as Gemini's signatures, which it expects back."""

    def finished(self) -> RawCall:
        return RawCall(self.name, "".join(self.pieces) if self.whole is None else self.whole, self.id or None)

    def whole_again(self) -> JsonObject:
        """Return the call in the form in which it is sent back to the server."""
        arguments = "".join(self.pieces) if self.whole is None else json.dumps(self.whole)
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}, **self.extra}


def _messages(messages: Iterable[Message], ids: CallIds) -> Iterator[JsonObject]:
    """Yield the messages. This API reads texts alone in results of tools, so their images follow in a message of the user."""
    shown: list[JsonValue] = []
    for message in messages:
        if shown and message.tool_result is None:
            yield {"role": "user", "content": shown}
            shown = []
        yield _message(message, ids)
        if message.tool_result is not None:
            shown += map(_part, message.attachments)
    if shown:
        yield {"role": "user", "content": shown}


def _message(message: Message, ids: CallIds) -> JsonObject:
    if (result := message.with_attachments_as(lambda _: SHOWN_BELOW).tool_result) is not None:
        return {"role": "tool", "tool_call_id": ids.of_result(result.call_id), "content": result.content}
    if not message.tool_calls:
        content: JsonValue = [_part(part) for part in message.parts] if message.attachments else message.text
        return {"role": message.role, "content": content}
    # Some proxies put words of their own in the place of an empty text.
    return {"role": message.role, "content": message.text or None, "tool_calls": _calls(message, ids)}


def _part(part: str | Attachment) -> JsonObject:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if part.is_image:
        return {"type": "image_url", "image_url": {"url": part.data_url}}
    return {"type": "file", "file": {"filename": part.name or UNNAMED_FILE, "file_data": part.data_url}}


def _calls(message: Message, ids: CallIds) -> list[JsonValue]:
    parts = own_parts(message)
    if [_named(part) for part in parts] == said_in(message)[1]:
        ids.keep(message)
        return list(parts)
    return [
        {"id": ids.of_call(call.id), "type": "function", "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
        for call in message.tool_calls
    ]


def _said(content: JsonValue) -> str:
    """Return the text of a delta. Mistral's reasoning models send a list of parts, thoughts among them."""
    if isinstance(content, list):
        return "".join(as_text(part.get("text")) for part in as_objects(content) if part.get("type") == "text")
    return as_text(content)


def _named(part: JsonObject) -> tuple[str, str, JsonObject]:
    function = as_object(part.get("function"))
    call = RawCall(as_text(function.get("name")), as_text(function.get("arguments")))
    return as_text(part.get("id")), call.name, arguments_of(call)


def _tool(tool: ToolSpec) -> JsonObject:
    schema, description = parameters(tool)
    return {"type": "function", "function": {"name": tool.name, "description": description, "parameters": schema}}


def _usage(usage: JsonObject) -> Usage | None:
    details = as_object(usage.get("prompt_tokens_details"))
    return counted(
        read=as_count(usage.get("prompt_tokens")),
        written=as_count(usage.get("completion_tokens")),
        cached=as_count(details.get("cached_tokens")),
        stored=as_count(details.get("cache_write_tokens")),
        thought=as_count(as_object(usage.get("completion_tokens_details")).get("reasoning_tokens")),
    )
