"""Taint check of a tool call: find the arguments whose values come from no trusted text."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import JsonValue

from ....protocols import JsonSchema, ToolCall
from ...task.tools import Tool
from .grounds import Grounds, Strength

_DEPTH: Final = 32
"""Schemas may refer to themselves."""

Free = str | int | float


def free_values(value: JsonValue, schema: JsonSchema, root: JsonSchema) -> list[Free]:
    """Return the texts and numbers in an argument, names in objects included, that are neither constants of the schema nor defaults.

    `root`: the schema of all arguments, to which references in that of one refer.
    """
    return list(_free(value, schema, root, _DEPTH))


def doubtful(call: ToolCall, tool: Tool, names: Sequence[str], grounds: Grounds) -> list[str]:
    """Return the arguments among `names` that come from no trusted text.

    A value that is short or common counts as trusted only if another value of the call has a strong match.
    """
    schema = tool.spec.parameters
    free = {name: free_values({name: call.arguments[name]}, schema, schema) for name in names}
    found = {name: [grounds.strength(value) for value in values] for name, values in free.items()}
    if any(Strength.STRONG in strengths for strengths in found.values()):
        return [name for name, strengths in found.items() if Strength.NONE in strengths]
    return [name for name, strengths in found.items() if strengths]


def _free(value: JsonValue, schema: Mapping[str, Any], root: JsonSchema, depth: int) -> Iterator[Free]:
    schema = _resolved(schema, root)
    if value is None or _is_constant(value, schema):
        return
    if isinstance(value, bool):
        # A tool that asks for a number takes these for 0 and 1.
        yield from [int(value)] if schema.get("type") in ("integer", "number") else []
        return
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices and depth:
        yield from min((list(_free(value, choice, root, depth - 1)) for choice in choices), key=len)
    elif isinstance(value, list):
        items = schema.get("items")
        for member in value:
            yield from _free(member, items if isinstance(items, dict) else {}, root, max(depth - 1, 0))
    elif isinstance(value, dict):
        yield from _members(value, schema, root, depth)
    else:
        yield value


def _members(value: Mapping[str, JsonValue], schema: Mapping[str, Any], root: JsonSchema, depth: int) -> Iterator[Free]:
    known = schema.get("properties", {})
    others = schema.get("additionalProperties")
    for name, member in value.items():
        if name not in known:
            yield name
        yield from _free(member, known.get(name, others if isinstance(others, dict) else {}), root, max(depth - 1, 0))


def _is_constant(value: JsonValue, schema: Mapping[str, Any]) -> bool:
    constants = [*schema.get("enum", ()), *(schema[key] for key in ("const", "default") if key in schema)]
    return any(value == constant and isinstance(value, bool) == isinstance(constant, bool) for constant in constants)


def _resolved(schema: Mapping[str, Any], root: JsonSchema) -> Mapping[str, Any]:
    """Return the schema that a `$ref` leads to, merged with the keys next to it. Only references into the schema's own `$defs` are
    followed."""
    for _ in range(_DEPTH):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        target = root.get("$defs", {}).get(reference.removeprefix("#/$defs/"), {})
        schema = {**target, **{key: member for key, member in schema.items() if key != "$ref"}}
    return {}
