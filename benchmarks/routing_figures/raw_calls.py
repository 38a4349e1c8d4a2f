"""The tool calls in what models of different makers wrote: JSON, tagged JSON, Python, or Python inside prose."""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue, ValidationError

from nearfar.protocols import ToolCall, ToolSpec

_TAGGED = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|$)", re.DOTALL)
_SPECIAL = re.compile(r"<\|.*?\|>")
_TYPES = {
    "dict": "object",
    "HashMap": "object",
    "float": "number",
    "tuple": "array",
    "Array": "array",
    "ArrayList": "array",
    "String": "string",
    "char": "string",
    "long": "integer",
    "Boolean": "boolean",
}
_KNOWN = frozenset({"object", "number", "array", "string", "integer", "boolean", "null"})
_FOREIGN = frozenset({"HashMap", "Array", "ArrayList"})
"""Values of these types of Java and JavaScript are written as strings of code."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a model wrote, read as calls."""

    calls: tuple[ToolCall, ...]
    is_clean: bool
    """Nothing but calls, in a form that is meant for them."""


def tool_specs(functions: Sequence[Mapping[str, Any]]) -> list[ToolSpec]:
    """The offered functions; their types are those of Python, Java or JavaScript, and their names may have dots."""
    return [
        ToolSpec(
            name=_name(function["name"]),
            description=function.get("description", ""),
            parameters={**_schema(function["parameters"]), "type": "object"},
        )
        for function in functions
    ]


def written_calls(result: str | Sequence[Mapping[str, str]], functions: Sequence[Mapping[str, Any]]) -> Written:
    """The calls in a raw result."""
    if not isinstance(result, str):
        return Written(_calls((name, _json(arguments)) for call in result for name, arguments in call.items()), is_clean=True)
    if "<tool_call>" in result:
        return Written(_calls(_named(_json(part)) for part in _TAGGED.findall(result)), is_clean=True)
    stated = _json(result.strip())
    if isinstance(stated, dict | list):
        entries = stated.get("tool_calls", []) if isinstance(stated, dict) else stated
        return Written(_calls(map(_named, entries)), is_clean=True)
    text = _SPECIAL.sub("", result).strip()
    found = _python_calls(text)
    if found:
        return Written(_calls(found), is_clean=True)
    names = [function["name"] for function in functions]
    return Written(_calls(call for part in _called(text, names) for call in _python_calls(part)), is_clean=False)


def _calls(found: Iterator[tuple[str, Any]] | Sequence[tuple[str, Any]]) -> tuple[ToolCall, ...]:
    calls: list[ToolCall] = []
    for name, arguments in found:
        try:
            calls.append(ToolCall(id=f"call-{len(calls)}", name=_name(name), arguments=arguments))
        except ValidationError:  # no name, or arguments that are no object
            calls.append(ToolCall(id=f"call-{len(calls)}", name=_name(name) or "?", arguments={"?": repr(arguments)}))
    return tuple(calls)


def _name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64]


def _schema(schema: Any) -> Any:  # noqa: ANN401 - JSON
    """A schema with the types of JSON Schema; a type that has no counterpart is left out."""
    if not isinstance(schema, dict):
        return schema
    kept = {key: schema[key] for key in ("enum", "required") if key in schema}
    kind = schema.get("type")
    if kind not in _FOREIGN and _TYPES.get(str(kind), kind) in _KNOWN:
        kept["type"] = _TYPES.get(str(kind), kind)
    if "properties" in schema:
        kept["properties"] = {name: _schema(inner) for name, inner in schema["properties"].items()}
    if isinstance(schema.get("items"), dict):
        kept["items"] = _schema(schema["items"])
    return kept


def _json(text: str) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(text)
    except ValueError:
        return None


def _named(entry: Any) -> tuple[str, Any]:  # noqa: ANN401 - JSON
    return (str(entry.get("name", "")), entry.get("arguments") or {}) if isinstance(entry, dict) else ("", entry)


def _called(text: str, names: Sequence[str]) -> Iterator[str]:
    """The pieces of a text that look like a call of one of the functions, to the closing bracket."""
    forms = sorted({re.escape(form) for name in names for form in (name, name.replace(".", "_"))}, key=len, reverse=True)
    opening = re.compile(rf"(?<![\w.])(?:{'|'.join(forms)})\s*\(")
    position = 0
    while found := opening.search(text, position):
        position = _closing(text, found.end() - 1) + 1
        yield text[found.start() : position]


def _closing(text: str, start: int) -> int:
    """Where the bracket at `start` is closed, or the end of the text."""
    depth, quote, position = 0, "", start
    while position < len(text):
        character = text[position]
        if quote:
            position += character == "\\"
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        else:
            depth += (character in "([{") - (character in ")]}")
        if not depth and not quote:
            return position
        position += 1
    return len(text)


def _python_calls(text: str) -> list[tuple[str, dict[str, JsonValue]]]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    statements = [node.value for node in tree.body if isinstance(node, ast.Expr | ast.Assign)]
    return [_python_call(call) for value in statements for call in _outer_calls(value)]


def _outer_calls(node: ast.expr) -> Iterator[ast.Call]:
    if isinstance(node, ast.Call):
        yield node
    elif isinstance(node, ast.List | ast.Tuple):
        for inner in node.elts:
            yield from _outer_calls(inner)


def _python_call(call: ast.Call) -> tuple[str, dict[str, JsonValue]]:
    """Name and arguments; those without a name are named by their place, but for a dictionary that holds them all."""
    arguments: dict[str, JsonValue] = {}
    for place, argument in enumerate(call.args):
        value = _value(argument)
        arguments.update(value if isinstance(value, dict) else {f"#{place}": value})
    arguments.update({keyword.arg or "**": _value(keyword.value) for keyword in call.keywords})
    return ast.unparse(call.func), arguments


def _value(node: ast.expr) -> Any:  # noqa: ANN401 - JSON
    """The value of a literal as JSON has it, and the code of anything else."""
    try:
        return json.loads(json.dumps(ast.literal_eval(node)))
    except (ValueError, TypeError):
        return ast.unparse(node)
