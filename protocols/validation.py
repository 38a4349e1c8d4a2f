"""JSON and JSON Schema checks that every agent shares, so that all of them enforce the same thing.

Schemas are draft 2020-12. References are resolved inside the document only: nothing is ever fetched.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

from pydantic import JsonValue

from .errors import InvalidOutput, InvalidRequest
from .messages import JsonSchema, ToolCall, ToolSpec

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from referencing import Resource
    from referencing._core import Resolver

_SCHEMA_HINT = "give a JSON Schema of draft 2020-12 whose references stay inside the document"
_SHOWN = 200


def parse_json(text: str) -> JsonValue:
    """The value of a JSON text, strictly: no NaN or infinity, no number too large for a float.

    Raises `ValueError`, whose message says where the text goes wrong.
    """
    try:
        return cast(JsonValue, json.loads(text, parse_constant=_refuse_constant, parse_float=_finite_float))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check_schema(schema: JsonSchema, what: str) -> None:
    """Raise `InvalidRequest` if `schema` is not a usable schema; `what` names it in the message."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from referencing import Registry
    from referencing.exceptions import NoSuchResource, Unresolvable
    from referencing.jsonschema import DRAFT202012

    try:
        Draft202012Validator.check_schema(schema)
        resource = DRAFT202012.create_resource(schema)
        _check_references(resource, Registry().resolver_with_root(resource))
    except SchemaError as error:
        raise InvalidRequest(f"{what} is not a valid JSON Schema: {_short(error.message)}", hint=_SCHEMA_HINT) from error
    except (Unresolvable, NoSuchResource) as error:
        raise InvalidRequest(f"{what} refers to {error.ref!r}, which it does not contain", hint=_SCHEMA_HINT) from error
    except RecursionError:
        raise InvalidRequest(f"{what} is nested too deeply", hint=_SCHEMA_HINT) from None


def parse_output(text: str, schema: JsonSchema) -> JsonValue:
    """The JSON value of an agent's final text, valid against `schema`.

    Raises `InvalidOutput` if it is not JSON or not valid, `InvalidRequest` if the schema itself is at fault.
    """
    try:
        value = parse_json(text)
    except ValueError as error:
        raise InvalidOutput(f"the output is not JSON: {error}; it starts with {_short(text)!r}") from error
    if problem := _first_problem(value, schema, "output_schema"):
        raise InvalidOutput(f"the output does not match output_schema: {problem}")
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
    """What is most wrong with `value`, or None if it is valid."""
    from jsonschema.exceptions import best_match
    from referencing.exceptions import Unresolvable

    try:
        error = best_match(_validator(schema).iter_errors(value))
    except Unresolvable as unresolvable:
        message = f"{what} refers to {unresolvable.ref!r}, which it does not contain"
        raise InvalidRequest(message, hint=_SCHEMA_HINT) from unresolvable
    except RecursionError:
        raise InvalidRequest(f"{what} refers to itself without end", hint=_SCHEMA_HINT) from None
    return None if error is None else f"at {error.json_path}: {_short(error.message)}"


def _validator(schema: JsonSchema) -> "Draft202012Validator":
    from jsonschema import Draft202012Validator
    from referencing import Registry

    # An explicit registry, because the default one downloads references that it does not know.
    return Draft202012Validator(schema, registry=Registry())


def _check_references(resource: "Resource[Any]", resolver: "Resolver[Any]") -> None:
    contents = resource.contents
    if isinstance(contents, dict) and isinstance(reference := contents.get("$ref"), str):
        resolver.lookup(reference)
    for part in resource.subresources():
        _check_references(part, resolver.in_subresource(part))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite_float(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {_short(digits)} is out of range")
    return value


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
