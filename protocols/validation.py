"""Checks of JSON and JSON Schema that all agents share.

Schemas are draft 2020-12. References are resolved inside the document only; nothing is ever downloaded.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from pydantic import JsonValue

from .agent import AgentCard, Side
from .errors import InvalidOutput, InvalidRequest, PrivacyViolation, Unsupported
from .limits import ATTACHED_BYTES, ATTACHMENTS, JSON_DEPTH
from .steps import JsonSchema, Message, Sensitivity, StepRequest, ToolCall, ToolSpec

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from pydantic_core import SchemaValidator
    from referencing import Resource
    from referencing._core import Resolver

_SCHEMA_HINT = "give a JSON Schema of draft 2020-12 whose references stay inside the document"
_SHOWN = 200


def parse_json(text: str) -> JsonValue:
    """Parse a JSON text strictly: no NaN or infinity, no number too large for a float, no nesting beyond `JSON_DEPTH`.

    Raise `ValueError`, whose message says where the text goes wrong.
    """
    try:
        value = cast(JsonValue, json.loads(text, parse_constant=_refuse_constant, parse_float=_finite_float))
        if "\\u" in text:  # an escape can write half of a character, which no other part could send on
            json.dumps(value, ensure_ascii=False).encode()
        if text.count("[") + text.count("{") > JSON_DEPTH and _is_deeper(value, JSON_DEPTH):
            raise ValueError(f"it is nested more than {JSON_DEPTH} levels deep")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("it holds half of a surrogate pair") from None
    return value


def check_request(card: AgentCard, request: StepRequest) -> None:
    """Refuse the requests that every agent refuses before it computes or sends anything: does the agent of this `card` take the `request`?

    Raise `PrivacyViolation` for private text at a far agent, `Unsupported` for tools, a schema, an adapter, attachments or
    log-probabilities that the agent does not handle, `InvalidRequest` for an empty prompt, a broken schema or too many attachments. A seed
    and samplers are hints: agents without them ignore them.
    """
    check_privacy(card, request)
    last = request.messages[-1]
    if last.role in ("system", "user") and not (last.text.strip() or last.attachments):
        raise InvalidRequest("the prompt is empty", hint="the last message must have text")
    check_attachments(request.messages)
    for capability, lack in _needs(request):
        if not getattr(card.capabilities, capability):
            raise Unsupported(f"agent {card.name!r} cannot {lack}", hint="leave it out or ask another agent")
    for adapter in (request.adapter, request.call_adapter):
        if adapter is not None and adapter not in card.adapters:
            known = ", ".join(card.adapters) or "none"
            raise Unsupported(f"agent {card.name!r} has no adapter {adapter!r}", hint=f"it has: {known}")
    if request.output_schema is not None:
        check_schema(request.output_schema, "output_schema")
    for tool in request.tools:
        check_schema(tool.parameters, f"parameters of tool {tool.name!r}")


def _needs(request: StepRequest) -> Iterator[tuple[str, str]]:
    """Yield the optional capabilities that a request needs, each with the words for an agent that lacks it."""
    if request.tools:
        yield "tools", "call tools"
    if request.output_schema is not None:
        yield "json_schema", "enforce output_schema"
    if request.top_logprobs is not None:
        yield "logprobs", "report log-probabilities"
    for message in request.messages:
        for attachment in message.attachments:
            yield ("images", "read images") if attachment.is_image else ("files", "read documents")


def check_attachments(messages: Sequence[Message]) -> None:
    """Raise `InvalidRequest` if a conversation carries more attachments, or more bytes in them, than a request may."""
    sizes = [len(attachment.data) for message in messages if message.attachments for attachment in message.attachments]
    if len(sizes) > ATTACHMENTS or sum(sizes) > ATTACHED_BYTES:
        carried = f"{len(sizes)} attachments of {sum(sizes)} bytes"
        raise InvalidRequest(
            f"the conversation carries {carried}; {ATTACHMENTS} of {ATTACHED_BYTES} bytes are the most", hint="send fewer or smaller ones"
        )


def check_privacy(card: AgentCard, request: StepRequest) -> None:
    """Raise `PrivacyViolation` if `request` may not leave the device and the agent is not on it."""
    if card.side is Side.FAR and request.sensitivity is Sensitivity.PRIVATE:
        raise PrivacyViolation(
            f"agent {card.name!r} is far and the request is private",
            hint="set sensitivity to public if its text may leave the device, or ask a near agent",
        )


def check_schema(schema: JsonSchema, what: str) -> None:
    """Raise `InvalidRequest` if `schema` is not a usable schema; `what` names it in the message."""
    try:
        problem = _schema_problem(json.dumps(schema))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{what} is not JSON: {error}", hint=_SCHEMA_HINT) from error
    except RecursionError:
        raise InvalidRequest(f"{what} is nested too deeply", hint=_SCHEMA_HINT) from None
    if problem:
        raise InvalidRequest(f"{what} {problem}", hint=_SCHEMA_HINT)


@lru_cache(maxsize=256)  # an agent sends the same tools with every step, and the check takes about a millisecond each
def _schema_problem(schema_json: str) -> str | None:
    if _plain(schema_json) is not None:
        return None
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    schema = json.loads(schema_json)
    resource = DRAFT202012.create_resource(schema)
    try:
        Draft202012Validator.check_schema(schema)
        _check_references(resource, Registry().resolver_with_root(resource))
    except SchemaError as error:
        return f"is not a valid JSON Schema: {_short(error.message)}"
    except Unresolvable as error:
        return f"refers to {error.ref!r}, which it does not contain"
    return None


def parse_output(text: str, schema: JsonSchema) -> JsonValue:
    """Parse an agent's final text as JSON that is valid against `schema`.

    Raise `InvalidOutput` if it is not JSON or not valid, `InvalidRequest` if the schema itself is at fault.
    """
    try:
        value = parse_json(text)
    except ValueError as error:
        raise InvalidOutput(f"the output is not JSON: {error}; it starts with {_short(text)!r}", text=text) from error
    if problem := _first_problem(value, schema, "output_schema"):
        raise InvalidOutput(f"the output does not fit its schema: {problem}", text=text)
    return value


def check_arguments(call: ToolCall, tools: Sequence[ToolSpec]) -> None:
    """Raise `InvalidOutput` if `call` names a tool that is not among `tools`, or its arguments do not fit that tool's schema."""
    for tool in tools:
        if tool.name == call.name:
            break
    else:
        known = ", ".join(sorted(tool.name for tool in tools)) or "none"
        raise InvalidOutput(f"the agent called an unknown tool {call.name!r}", hint=f"known tools: {known}")
    if problem := _first_problem(call.arguments, tool.parameters, f"parameters of tool {tool.name!r}"):
        raise InvalidOutput(f"the agent called {call.name!r} with invalid arguments: {problem}")


def _first_problem(value: JsonValue, schema: JsonSchema, what: str) -> str | None:
    """Return the worst problem of `value`, or None if it is valid."""
    if _surely_fits(value, schema):
        return None
    from jsonschema.exceptions import best_match
    from referencing.exceptions import Unresolvable

    try:
        error = best_match(_validator(json.dumps(schema)).iter_errors(value))
    except Unresolvable as unresolvable:
        message = f"{what} refers to {unresolvable.ref!r}, which it does not contain"
        raise InvalidRequest(message, hint=_SCHEMA_HINT) from unresolvable
    except RecursionError:
        raise InvalidRequest(f"{what} refers to itself without end", hint=_SCHEMA_HINT) from None
    return None if error is None else f"at {error.json_path}: {_short(error.message)}"


def _surely_fits(value: JsonValue, schema: JsonSchema) -> bool:
    try:
        plain = _plain(json.dumps(schema))
        return plain is not None and _fits(plain, value)
    except RecursionError:
        return False


@lru_cache(maxsize=256)
def _plain(schema_json: str) -> JsonSchema | None:
    """Return a schema that has only keywords that `_fits` knows, as most tools have; None: jsonschema has to be asked, which loads in 50 ms
    and takes 0.1 ms for a call."""
    schema = json.loads(schema_json)
    return schema if _is_plain(schema) else None


def _is_plain(schema: object) -> bool:
    return isinstance(schema, dict) and all(name in _PLAIN and _PLAIN[name](part) for name, part in schema.items())


def _are_texts(part: object) -> bool:
    return isinstance(part, list) and all(isinstance(one, str) for one in part) and len(set(part)) == len(part)


def _is_text(part: object) -> bool:
    return isinstance(part, str)


_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_PLAIN: Final[Mapping[str, Callable[[Any], bool]]] = {
    "type": lambda part: isinstance(part, str) and part in _KINDS,
    "properties": lambda part: isinstance(part, dict) and all(map(_is_plain, part.values())),
    "required": _are_texts,
    "additionalProperties": lambda part: isinstance(part, bool) or _is_plain(part),
    "items": lambda part: _is_plain(part),
    "anyOf": lambda part: isinstance(part, list) and bool(part) and all(map(_is_plain, part)),
    "enum": _are_texts,
    "title": _is_text,
    "description": _is_text,
    "format": _is_text,
    "default": lambda _part: True,
}
"""By keyword of a plain schema: whether the part behind it is as it has to be."""


def _fits(schema: JsonSchema, value: JsonValue) -> bool:
    """Return True for a value that surely fits a plain schema. One that does not may fit all the same, such as 1.0 for an integer."""
    if "type" in schema and type(value) not in _KINDS[schema["type"]]:
        return False
    if "enum" in schema and not (isinstance(value, str) and value in schema["enum"]):
        return False
    if "anyOf" in schema and not any(_fits(option, value) for option in schema["anyOf"]):
        return False
    if isinstance(value, list):
        return "items" not in schema or all(_fits(schema["items"], part) for part in value)
    return not isinstance(value, dict) or _members_fit(schema, value)


def _members_fit(schema: JsonSchema, value: Mapping[str, JsonValue]) -> bool:
    declared, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
    parts = [(declared.get(name, rest), part) for name, part in value.items()]
    return all(name in value for name in schema.get("required", ())) and all(
        inner if isinstance(inner, bool) else _fits(inner, part) for inner, part in parts
    )


@lru_cache(maxsize=256)  # a tool is called many times, and making its validator takes longer than a check
def _validator(schema_json: str) -> "Draft202012Validator":
    from referencing import Registry

    # An explicit registry, because the default one downloads references that it does not know.
    return _validator_class('"patternProperties"' in schema_json)(json.loads(schema_json), registry=Registry())


@lru_cache(maxsize=2)
def _validator_class(names_by_pattern: bool) -> "type[Draft202012Validator]":
    """Return a validator that matches patterns in linear time: callers and servers write them, and Python's `re` may take for ever.

    Where properties are named by patterns, `unevaluatedProperties`, which would use `re`, is not checked.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    usual = dict(Draft202012Validator.VALIDATORS)
    own: dict[str, Any] = {"pattern": _check_pattern}
    if names_by_pattern:
        own |= {"patternProperties": _check_named_by_pattern, "unevaluatedProperties": _check_nothing}
        own["additionalProperties"] = partial(_check_additional, usual["additionalProperties"])
    extended = extend(Draft202012Validator, own)  # type: ignore[no-untyped-call]  # jsonschema does not type it
    return cast("type[Draft202012Validator]", extended)


def _check_pattern(validator: Any, pattern: str, value: object, schema: Any) -> Iterator[Any]:  # noqa: ANN401 - as jsonschema calls it
    from jsonschema.exceptions import ValidationError

    if isinstance(value, str) and not _matches(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _check_named_by_pattern(validator: Any, patterns: Any, value: object, schema: Any) -> Iterator[Any]:  # noqa: ANN401 - as above
    if isinstance(value, dict):
        for pattern, part in patterns.items():
            for name in filter(partial(_matches, pattern), value):
                yield from validator.descend(value[name], part, path=name, schema_path=pattern)


def _check_additional(usual: Any, validator: Any, rest: Any, value: object, schema: Any) -> Iterator[Any]:  # noqa: ANN401 - as above
    if isinstance(value, dict):
        patterns = schema.get("patternProperties", {})
        known = {name for name in value if any(_matches(pattern, name) for pattern in patterns)}
        yield from usual(validator, rest, value, {"properties": {*known, *schema.get("properties", {})}}) or ()


def _check_nothing(validator: Any, given: Any, value: object, schema: Any) -> Iterator[Any]:  # noqa: ANN401 - as above
    return iter(())


def _matches(pattern: str, text: str) -> bool:
    """Return whether a pattern is found in a text. One that cannot be matched in linear time, such as with a look-ahead, always is."""
    matcher = _matcher(pattern)
    return matcher is None or matcher.isinstance_python(text)


@lru_cache(maxsize=1024)
def _matcher(pattern: str) -> "SchemaValidator | None":
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        return None


def _check_references(resource: "Resource[Any]", resolver: "Resolver[Any]") -> None:
    contents = resource.contents
    if isinstance(contents, dict) and isinstance(reference := contents.get("$ref"), str):
        resolver.lookup(reference)
    for part in resource.subresources():
        _check_references(part, resolver.in_subresource(part))


def _is_deeper(value: JsonValue, levels: int) -> bool:
    """Return whether containers are nested more than `levels` deep."""
    level: list[JsonValue] = [value]
    for _ in range(levels):
        level = [part for one in level if isinstance(one, dict | list) for part in (one.values() if isinstance(one, dict) else one)]
    return any(isinstance(one, dict | list) for one in level)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite_float(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {_short(digits)} is out of range")
    return value


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
