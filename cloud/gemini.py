"""The Gemini dialect (`streamGenerateContent`).

Gemini 3 and later sign parts of their answers, and refuse calls that come back without their signatures. Steps are stateless, so a
signed turn is returned as `Ending.parts`. For a call without a known signature, because another agent made it, the API documents a
placeholder that switches the check off.
"""

import re
from collections.abc import Sequence
from urllib.parse import quote

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
    Usage,
)
from .dialect import (
    SHOWN_BELOW,
    EndedEarly,
    Ending,
    JsonObject,
    RawCall,
    as_count,
    as_object,
    as_objects,
    as_text,
    bare_name,
    chosen,
    counted,
    gemini_thinking,
    has_output,
    own_parts,
)

MOST_STOPS = 5
_UNSIGNED = "skip_thought_signature_validator"
_NEVER_SIGNS = re.compile(r"(?:models/)?gemini-[12]\b")
_SAMPLERS = {"temperature": "temperature", "top_p": "topP", "top_k": "topK"}
_PENALTIES = {"presence_penalty": "presencePenalty", "frequency_penalty": "frequencyPenalty"}
_TAKES_PENALTIES = re.compile(r"gemini-(?:1|2\.0)")
"""Later models refuse a request with penalties."""
_FIELDS = {"text", "thought", "thoughtSignature", "functionCall"}
_MODES = {ToolChoice.AUTO: "AUTO", ToolChoice.NONE: "NONE", ToolChoice.REQUIRED: "ANY"}
_FILTERED = frozenset(("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY", "MODEL_ARMOR"))


class GeminiDialect:
    """Gemini API, v1beta."""

    name = "gemini"
    default_base_url = "https://generativelanguage.googleapis.com/v1beta"
    default_key_variable = "GEMINI_API_KEY"

    def __init__(
        self,
        *,
        tools: bool = True,
        json_schema: bool = True,
        images: bool = True,
        files: bool = True,
        temperature: bool | None = None,
        effort: Effort | None = None,
        reasoning_limit: bool = False,
    ) -> None:
        """Set `temperature`: False if the model takes none. `effort` applies to requests that state none. `images` and `files`: True if the
        model reads them; `reasoning_limit`: if it takes a budget of thoughts."""
        self._temperature = temperature is not False
        self._effort = effort
        self.capabilities = Capabilities(tools=tools, json_schema=json_schema, images=images, files=files, reasoning_limit=reasoning_limit)

    def path(self, model: str) -> str:
        name = quote(model if "/" in model else f"models/{model}", safe="/:@")
        return f"/{name}:streamGenerateContent?alt=sse"

    def headers(self, key: str | None, idempotency_key: str) -> dict[str, str]:
        # In a header, because addresses are logged.
        return {} if key is None else {"x-goog-api-key": key}

    def unsent_stops(self, stops: Sequence[str], model: str) -> Sequence[str]:
        return stops[MOST_STOPS:]

    def body(self, request: StepRequest, model: str, *, max_output_tokens: int | None) -> JsonObject:
        body: JsonObject = {
            "contents": _contents(request.messages, signs=_NEVER_SIGNS.match(model) is None),
            "generationConfig": self._generation(request, model, max_output_tokens),
        }
        if system := "\n\n".join(message.text for message in request.messages if message.role == "system"):
            body["systemInstruction"] = {"parts": [{"text": system}]}
        if request.tools:
            declarations: list[JsonValue] = [
                {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters} for tool in request.tools
            ]
            body["tools"] = [{"functionDeclarations": declarations}]
            body["toolConfig"] = {"functionCallingConfig": {"mode": _MODES[request.tool_choice]}}
        return body

    def decoder(self) -> "GeminiDecoder":
        return GeminiDecoder()

    def _generation(self, request: StepRequest, model: str, max_output_tokens: int | None) -> JsonObject:
        config: JsonObject = {}
        if self._temperature:
            config |= chosen(request, _SAMPLERS | (_PENALTIES if _TAKES_PENALTIES.match(bare_name(model)) else {}))
        if thinking := gemini_thinking(model, request.effort or self._effort, request.max_reasoning_tokens):
            config["thinkingConfig"] = thinking
        if max_output_tokens is not None:
            config["maxOutputTokens"] = max_output_tokens
        if request.seed is not None:
            config["seed"] = request.seed
        if request.stop:
            config["stopSequences"] = list(request.stop[:MOST_STOPS])
        if request.output_schema is not None:
            config |= {"responseMimeType": "application/json", "responseJsonSchema": request.output_schema}
        return config


class GeminiDecoder:
    """Reads `GenerateContentResponse` objects."""

    def __init__(self) -> None:
        self._parts: list[JsonObject] = []
        self._reason: str | None = None
        self._usage: Usage | None = None
        self._model: str | None = None

    @property
    def has_written(self) -> bool:
        return bool(self._parts) or has_output(self._usage)

    def feed(self, chunk: JsonObject) -> str:
        self._model = as_text(chunk.get("modelVersion")) or self._model
        if usage := as_object(chunk.get("usageMetadata")):
            self._usage = _usage(usage) or self._usage
        if blocked := as_text(as_object(chunk.get("promptFeedback")).get("blockReason")):
            raise ContentFiltered(f"the provider blocked the prompt: {blocked[:40]}", hint="rephrase the request, or use another model")
        return "".join(self._candidate(candidate) for candidate in as_objects(chunk.get("candidates"))[:1])

    def end(self) -> Ending:
        if self._reason is None:
            raise EndedEarly
        if self._reason in _FILTERED:
            raise ContentFiltered(f"the provider withheld the answer: {self._reason}", hint="rephrase the request, or use another model")
        if self._reason not in ("STOP", "MAX_TOKENS"):
            raise InvalidOutput(f"the provider stopped without a usable answer: {self._reason[:40]}", hint="try again")
        calls = tuple(_call(part) for part in _called(self._parts))
        reason = FinishReason.LENGTH if self._reason == "MAX_TOKENS" else FinishReason.TOOL_CALLS if calls else FinishReason.STOP
        is_signed = any("thoughtSignature" in part for part in self._parts) or any(call.id for call in calls)
        return Ending(reason, calls, self._usage, self._model, parts=tuple(self._parts) if is_signed else ())

    def _candidate(self, candidate: JsonObject) -> str:
        self._reason = as_text(candidate.get("finishReason")) or self._reason
        parts = as_objects(as_object(candidate.get("content")).get("parts"))
        for part in parts:
            self._add(part)
        return _text(parts)

    def _add(self, part: JsonObject) -> None:
        """Add a part, joined with the text before it. A signed part is not joined, since its signature would be refused."""
        last = self._parts[-1] if self._parts else {}
        if last and _is_plain_text(last) and _is_plain_text(part) and last.get("thought") == part.get("thought"):
            self._parts[-1] = last | {"text": as_text(last.get("text")) + as_text(part.get("text"))}
        elif part not in ({"text": ""}, {}):
            self._parts.append(part)


def _is_plain_text(part: JsonObject) -> bool:
    return part.keys() <= {"text", "thought"} and "text" in part


def _called(parts: list[JsonObject]) -> list[JsonObject]:
    return [part for part in parts if isinstance(part.get("functionCall"), dict)]


def _text(parts: list[JsonObject]) -> str:
    return "".join(as_text(part.get("text")) for part in parts if not part.get("thought"))


def _call(part: JsonObject) -> RawCall:
    call = as_object(part.get("functionCall"))
    return RawCall(as_text(call.get("name")), as_object(call.get("args")), as_text(call.get("id")) or None)


def _named(part: JsonObject) -> tuple[str, JsonObject]:
    """Return name and arguments of a call. Its id may be another conversation's, at a server that numbers calls."""
    call = as_object(part.get("functionCall"))
    return as_text(call.get("name")), as_object(call.get("args"))


def _contents(messages: tuple[Message, ...], *, signs: bool) -> list[JsonValue]:
    """Return turns of alternating roles: neighbours of one role, such as the results of parallel calls, are joined."""
    turns: list[tuple[str, list[JsonValue]]] = []
    provider_ids: dict[str, str] = {}
    for message in messages:
        if message.role == "system":
            continue
        role = "model" if message.role == "assistant" else "user"
        parts = _parts(message, provider_ids, signs=signs)
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(parts)
        elif parts:
            turns.append((role, parts))
    if not turns:
        raise InvalidRequest("the conversation holds only system messages", hint="add a user message")
    return [{"role": role, "parts": sorted(parts, key=_is_said)} for role, parts in turns]


def _is_said(part: JsonValue) -> bool:
    """Return False for a tool's result: all results of parallel calls come before what they show."""
    return "functionResponse" not in as_object(part)


def _parts(message: Message, provider_ids: dict[str, str], *, signs: bool) -> list[JsonValue]:
    if (result := message.with_attachments_as(lambda _: SHOWN_BELOW).tool_result) is not None:
        response: JsonObject = {"error": result.content} if result.is_error else {"result": result.content}
        identity: JsonObject = {"id": provider_ids[result.call_id]} if result.call_id in provider_ids else {}
        return [{"functionResponse": {"name": result.name, "response": response, **identity}}, *map(_part, message.attachments)]
    known = [part for part in own_parts(message) if part.keys() <= _FIELDS]
    called = _called(known)
    if known and _text(known) == message.text and list(map(_named, called)) == [(call.name, call.arguments) for call in message.tool_calls]:
        for call, part in zip(message.tool_calls, called, strict=True):
            if identity_given := as_text(as_object(part.get("functionCall")).get("id")):
                provider_ids[call.id] = identity_given
        return list(known)
    parts: list[JsonValue] = [_part(part) for part in message.parts]
    if not message.tool_calls:
        return parts
    calls: list[JsonObject] = [{"functionCall": {"name": call.name, "args": call.arguments}} for call in message.tool_calls]
    if signs:
        calls[0]["thoughtSignature"] = _UNSIGNED
    return [*parts, *calls]


def _part(part: str | Attachment) -> JsonObject:
    if isinstance(part, str):
        return {"text": part}
    return {"inlineData": {"mimeType": part.media_type, "data": part.base64}}


def _usage(usage: JsonObject) -> Usage | None:
    thought = as_count(usage.get("thoughtsTokenCount"))
    return counted(
        read=as_count(usage.get("promptTokenCount")) + as_count(usage.get("toolUsePromptTokenCount")),
        written=as_count(usage.get("candidatesTokenCount")) + thought,
        cached=as_count(usage.get("cachedContentTokenCount")),
        thought=thought,
    )
