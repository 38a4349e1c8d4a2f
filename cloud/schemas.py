"""JSON Schemas in the form that providers take.

A grammar that enforces a schema knows only a part of JSON Schema, and an API refuses a schema with other keywords. So each schema is
rewritten as the providers' own SDKs do it: keywords unknown to the grammar go into descriptions, and every answer is checked against the
whole schema afterwards. Apart from descriptions, a rewritten schema allows nothing that the original forbids. If that is impossible, as
for objects with keys of any name, no grammar is used: the API's looser mode or the schema in words replaces it.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from ..protocols import InvalidRequest, JsonSchema, Message, StepRequest, ToolSpec
from .dialect import JsonObject, as_object, as_objects

_UNIONS: Final = ("anyOf", "oneOf", "allOf")
_NOISE: Final = frozenset(("$schema", "$id", "$comment", "$defs", "definitions", "discriminator", "title"))
"""Keywords without information for a model."""
_REFERENCE: Final = re.compile(r"#/(?:\$defs|definitions)/([^/]+)")
_KEYWORDS: Final = {
    **dict.fromkeys(("properties", "required", "additionalProperties", "patternProperties", "minProperties"), ("object",)),
    **dict.fromkeys(("items", "prefixItems", "minItems", "maxItems", "uniqueItems"), ("array",)),
    **dict.fromkeys(("format", "pattern", "minLength", "maxLength"), ("string",)),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), ("integer", "number")),
}
"""Keywords that apply to certain types only."""
_TYPES: Final = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


@dataclass(frozen=True, slots=True)
class Grammar:
    """The part of JSON Schema that a provider's structured outputs know."""

    limits: Mapping[str, frozenset[str]]
    """Keywords of a type that are kept, in addition to those of its structure."""
    formats: frozenset[str]
    wants_all: bool = False
    """Every property has to be required. This is stricter than a schema with optional properties, and still valid against it."""
    recurs: bool = False
    """A schema may refer to itself."""
    types_literals: bool = False
    """A list of values needs a `type`."""


_FORMATS: Final = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"))
_NUMBERS: Final = frozenset(("multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"))
ANTHROPIC: Final = Grammar(limits={}, formats=_FORMATS | {"uri"})
OPENAI: Final = Grammar(
    limits={
        "string": frozenset(("pattern",)),
        "integer": _NUMBERS,
        "number": _NUMBERS,
        "array": frozenset(("minItems", "maxItems")),
    },
    formats=_FORMATS,
    wants_all=True,
    recurs=True,
    types_literals=True,
)


class _InexpressibleError(Exception):
    """The grammar cannot express a schema that allows only valid values."""


def grammatical(schema: JsonSchema, grammar: Grammar) -> JsonObject | None:
    """Return `schema` in the form of the provider's grammar, or None if it cannot be expressed."""
    try:
        return _Rewriting(schema, grammar).whole()
    except (_InexpressibleError, RecursionError):
        return None


def openai_output(schema: JsonSchema) -> tuple[JsonObject, bool] | None:
    """Return a schema in OpenAI's form and True for its strict mode; None if the root is not an object, which OpenAI refuses."""
    made = grammatical(schema, OPENAI) or {}
    if isinstance(root := made.pop("$ref", None), str):
        definitions = as_object(made["$defs"])
        made |= next(as_object(part) for name, part in definitions.items() if _reference_to(name) == root)
    if made.get("type") == "object":
        return made, True
    is_plain = schema.get("type") == "object" and not any(name in schema for name in _UNIONS)
    return (schema, False) if is_plain else None


def in_words(request: StepRequest) -> StepRequest:
    """Return the request with its output schema as an instruction to the model, for a schema without a grammar."""
    told = _told(request.output_schema)
    order = f"Your final answer is one JSON value and nothing else: no code fence, no words around it. It fits this JSON Schema: {told}"
    return request.model_copy(update={"messages": (Message.system(order), *request.messages), "output_schema": None})


def parameters(tool: ToolSpec) -> tuple[JsonObject, str]:
    """Return a tool's parameters and description in the form of the APIs: they refuse unions at the top, which go into the description."""
    kept = {name: value for name, value in tool.parameters.items() if name not in (*_UNIONS, "not", "enum")}
    if len(kept) == len(tool.parameters):
        return kept, tool.description
    rest = {name: value for name, value in tool.parameters.items() if name not in kept}
    told = f"The arguments also fit this JSON Schema: {_told(rest)}"
    return kept, f"{tool.description}\n\n{told}".strip()


def _told(schema: object) -> str:
    try:
        return json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise InvalidRequest(
            f"a schema holds a value that JSON cannot represent: {error}", hint="remove NaN and infinity from schemas"
        ) from None


class _Rewriting:
    """One schema while it is rewritten."""

    def __init__(self, schema: JsonSchema, grammar: Grammar) -> None:
        self._schema = schema
        self._grammar = grammar
        self._definitions = as_object(schema.get("definitions")) | as_object(schema.get("$defs"))

    def whole(self) -> JsonObject:
        definitions: JsonObject = {name: self._part(part) for name, part in self._definitions.items()}
        if not self._grammar.recurs:
            self._refuse_cycles(definitions)
        made = self._part(self._schema)
        return made | {"$defs": definitions} if definitions else made

    def _part(self, schema: JsonValue) -> JsonObject:
        if not isinstance(schema, dict):
            raise _InexpressibleError
        if "$ref" in schema:
            return self._described({"$ref": self._reference(schema["$ref"])}, {"description": schema.get("description")})
        left = {name: value for name, value in schema.items() if name not in _NOISE and (name, value) != ("default", None)}
        made = self._literals(left) or self._union(left) or self._typed(left)
        if isinstance(title := schema.get("title"), str) and "$ref" not in made:
            made["title"] = title
        return self._described(made, left)

    def _reference(self, given: JsonValue) -> str:
        found = _REFERENCE.fullmatch(given) if isinstance(given, str) else None
        if found is None or found[1].replace("~1", "/").replace("~0", "~") not in self._definitions:
            raise _InexpressibleError
        return f"#/$defs/{found[1]}"

    def _literals(self, left: JsonObject) -> JsonObject:
        """Return a list of values, or a single one; {} if the schema has none, or only values that no grammar compares."""
        made: JsonObject = {}
        values = left.get("enum")
        if isinstance(values, list) and values and all(type(value) in _TYPES for value in values):
            made["enum"] = left.pop("enum")
        if "const" in left and type(left["const"]) in _TYPES:
            made["const"] = left.pop("const")
        if made:
            known = [made["const"]] if "const" in made else values if isinstance(values, list) else []
            types = list(dict.fromkeys(_TYPES[type(value)] for value in known))
            given = left.pop("type", None) or (types[0] if len(types) == 1 else list[JsonValue](types))
            made |= {"type": given} if self._grammar.types_literals else {}
        return made

    def _union(self, left: JsonObject) -> JsonObject:
        """Return a choice of several schemas; {} if the schema has another structure, which a union only refines."""
        if isinstance(types := left.pop("type", None), list):
            others = {name: left.pop(name) for name in list(left) if name != "description"}
            return {"anyOf": [self._part(_of_type(kind, others)) for kind in types]}
        if types is not None:
            left["type"] = types
        if "properties" in left or "items" in left:
            return {}
        for name in _UNIONS:
            variants = as_objects(told := left.get(name))
            is_usable = isinstance(told, list) and len(variants) == len(told) > 0
            if not is_usable or (name == "allOf" and len(variants) > 1):
                continue
            del left[name]
            left.pop("type", None)
            return self._part(variants[0]) if name == "allOf" else {"anyOf": [self._part(variant) for variant in variants]}
        return {}

    def _typed(self, left: JsonObject) -> JsonObject:
        kind = left.pop("type", None) or ("object" if "properties" in left else "array" if "items" in left else None)
        if not isinstance(kind, str):
            raise _InexpressibleError
        made: JsonObject = {"type": kind}
        if kind == "object":
            made |= self._object(left)
        if kind == "array":
            made |= self._array(left)
        if kind == "string" and left.get("format") in self._grammar.formats:
            made["format"] = left.pop("format")
        kept = [name for name in left if name in self._grammar.limits.get(kind, ())]
        return made | {name: left.pop(name) for name in kept}

    def _object(self, left: JsonObject) -> JsonObject:
        properties = as_object(left.pop("properties", None))
        others, named = left.pop("additionalProperties", None), left.pop("patternProperties", None)
        if isinstance(others, dict) or named or (others is not False and not properties):
            raise _InexpressibleError  # keys of any name: a closed object would have none of them
        required = left.pop("required", None)
        wanted = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        if not set(wanted) <= set(properties):
            raise _InexpressibleError
        if self._grammar.wants_all:
            wanted = list(properties)
        parts: JsonObject = {name: self._part(part) for name, part in properties.items()}
        made: JsonObject = {"properties": parts, "additionalProperties": False}
        return made | {"required": list[JsonValue](wanted)} if wanted or self._grammar.wants_all else made

    def _array(self, left: JsonObject) -> JsonObject:
        items = left.pop("items", None)
        if items is None and self._grammar.wants_all:
            raise _InexpressibleError
        made: JsonObject = {} if items is None else {"items": self._part(items)}
        if left.get("minItems") in (0, 1) and "minItems" not in self._grammar.limits.get("array", ()):
            made["minItems"] = left.pop("minItems")
        return made

    def _described(self, made: JsonObject, left: JsonObject) -> JsonObject:
        """Return `made` with the description, followed by the keywords that the grammar does not know. A reference is wrapped, since it
        may have no neighbours."""
        said = left.pop("description", None)
        words = [said] if isinstance(said, str) else []
        words += [_told(left)] if left else []
        if not words:
            return made
        described: JsonObject = {"description": "\n\n".join(words)}
        wrapped: JsonObject = {"anyOf": [made]} if "$ref" in made else made
        return wrapped | described

    def _refuse_cycles(self, definitions: JsonObject) -> None:
        reached = {_reference_to(name): set(_references(part)) for name, part in definitions.items()}
        for _ in definitions:
            reached = {name: others.union(*(reached[other] for other in others)) for name, others in reached.items()}
        if any(name in others for name, others in reached.items()):
            raise _InexpressibleError


def _of_type(kind: JsonValue, others: JsonObject) -> JsonObject:
    """Return the keywords that apply to values of a type."""
    return {"type": kind} | {name: value for name, value in others.items() if kind in _KEYWORDS.get(name, (kind,))}


def _reference_to(name: str) -> str:
    return f"#/$defs/{name.replace('~', '~0').replace('/', '~1')}"


def _references(value: JsonValue) -> Iterator[str]:
    """Yield the references in a rewritten schema; a property may be called `$ref`, too."""
    if isinstance(value, dict):
        if isinstance(found := value.get("$ref"), str):
            yield found
        for part in value.values():
            yield from _references(part)
    elif isinstance(value, list):
        for part in value:
            yield from _references(part)
