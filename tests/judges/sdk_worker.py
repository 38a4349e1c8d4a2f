"""Holds values against the types of one provider's SDK, and rewrites schemas by it, in an environment that has nothing but this SDK.

It reads a JSON object per line, `{"type": NAME, "value": ...}`, and answers each with a JSON list of what is wrong with the value, or for
the type `schema` with the rewritten one; run as `python -I sdk_worker.py openai|anthropic|google-genai`. The types are stricter here than
where the SDKs use them: an object may have no keys but those it is documented to have, and what the SDKs would only look at when it is sent
is looked at now.
"""

import json
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

Check = Callable[[object], list[Any]]
_MOST = 5


def main() -> None:
    """Answer every line."""
    checks = {"openai": openai_checks, "anthropic": anthropic_checks, "google-genai": gemini_checks}[sys.argv[1]]()
    for line in sys.stdin:
        asked = json.loads(line)
        sys.stdout.write(json.dumps(checks[asked["type"]](asked["value"])) + "\n")
        sys.stdout.flush()


def openai_checks() -> dict[str, Check]:
    """Of both OpenAI APIs."""
    return {
        "chat": _strict_check("openai.types.chat.completion_create_params", "CompletionCreateParamsStreaming"),
        "responses": _strict_check("openai.types.responses.response_create_params", "ResponseCreateParamsStreaming"),
        "chat event": _open_check("openai.types.chat", "ChatCompletionChunk"),
        "responses event": _open_check("openai.types.responses", "ResponseStreamEvent"),
        "schema": _strict_schema,
    }


def anthropic_checks() -> dict[str, Check]:
    """Of the Messages API."""
    return {
        "messages": _strict_check("anthropic.types.message_create_params", "MessageCreateParamsStreaming"),
        "messages event": _open_check("anthropic.types", "RawMessageStreamEvent"),
        "schema": lambda value: [import_module("anthropic").transform_schema(value)],
    }


def _strict_schema(value: object) -> list[Any]:
    """The schema as the SDK makes it of a model's."""
    return [import_module("openai.lib._pydantic")._ensure_strict_json_schema(value, path=(), root=value)]


def gemini_checks() -> dict[str, Check]:
    """Of `streamGenerateContent`. The SDK has types for the parts of its body; the body itself it puts together."""
    types: Any = import_module("google.genai.types")
    pydantic = import_module("pydantic")
    fields = {
        "contents": (list[types.Content], ...),
        "systemInstruction": (types.Content, None),
        "tools": (list[types.Tool], None),
        "toolConfig": (types.ToolConfig, None),
        "generationConfig": (types.GenerationConfig, None),
        "cachedContent": (str, None),
    }
    body = pydantic.create_model("Body", __config__=pydantic.ConfigDict(extra="forbid"), **fields)
    return {
        "contents": _check(pydantic.TypeAdapter(body).validator),
        "contents event": _open_check("google.genai.types", "GenerateContentResponse"),
    }


def _open_check(module: str, name: str) -> Check:
    """A check of what a provider sends, which may have more to it than the SDK knows."""
    return _check(import_module("pydantic").TypeAdapter(getattr(import_module(module), name)).validator)


def _strict_check(module: str, name: str) -> Check:
    adapter = import_module("pydantic").TypeAdapter(getattr(import_module(module), name))
    return _check(import_module("pydantic_core").SchemaValidator(_stricter(adapter.core_schema)))


def _check(validator: Any) -> Check:  # noqa: ANN401  # pydantic is another one here than where this is type-checked
    wrong = import_module("pydantic").ValidationError

    def check(value: object) -> list[str]:
        with warnings.catch_warnings(record=True) as warned:  # of words that an enumeration does not know
            warnings.simplefilter("always")
            try:
                validator.validate_json(json.dumps(value), strict=True, by_alias=True, by_name=False)
            except wrong as error:
                return [f"{_place(line['loc'])}: {line['msg']}" for line in error.errors(include_url=False)[:_MOST]]
        return [str(warning.message) for warning in warned]

    return check


def _place(location: tuple[str | int, ...]) -> str:
    """Where in a value something is wrong, without the unions that were tried on the way."""
    return ".".join(str(step) for step in location if "[" not in str(step))


def _stricter(schema: object) -> Any:  # noqa: ANN401  # a core schema
    """The core schema with closed objects, and with lists where pydantic would read an iterable only when it is used."""
    if isinstance(schema, list | tuple):
        return type(schema)(map(_stricter, schema))
    if not isinstance(schema, dict):
        return schema
    stricter = {key: _stricter(value) for key, value in cast(dict[str, object], schema).items()}
    if stricter.get("type") in ("typed-dict", "model-fields"):
        stricter["extra_behavior"] = "forbid"
    if stricter.get("type") == "generator":
        stricter["type"] = "list"
    return stricter


if __name__ == "__main__":
    main()
