"""Schemas are rewritten as the official SDKs do it, where these know how to."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from json_schemas import plain_schemas
from sdk import Sdk

from nearfar.cloud.schemas import ANTHROPIC, OPENAI, grammatical

GRAMMARS = {"anthropic": ANTHROPIC, "openai": OPENAI}
MODELS: dict[str, dict[str, Any]] = {
    "optional": {
        "type": "object",
        "properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None, "title": "A"}},
        "title": "M",
    },
    "nested": {
        "type": "object",
        "$defs": {"In": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
        "properties": {"in": {"$ref": "#/$defs/In"}, "all": {"type": "array", "items": {"$ref": "#/$defs/In"}}},
        "required": ["in", "all"],
    },
    "empty": {"type": "object", "properties": {}, "additionalProperties": False},
}
LOOSER: dict[str, dict[str, Any]] = {
    "union": {"oneOf": [{"type": "integer"}, {"type": "null"}]},
    "limits": {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1, "maximum": 3}}, "required": ["a"]},
    "formats": {"type": "array", "items": {"type": "string", "format": "color", "maxLength": 3}, "minItems": 2},
}
"""What Anthropic's SDK tells in words; that of OpenAI sends it as it is, to be refused."""


def bare(value: object) -> object:
    """Without descriptions, in which the rest is told in other words."""
    if isinstance(value, list):
        return [bare(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {name: bare(part) for name, part in value.items() if not (name == "description" and isinstance(part, str))}


def rewritten_alike(sdk: Callable[[str], Sdk], name: str, schema: dict[str, Any]) -> None:
    (wanted,) = sdk(name).ask("schema", schema)
    assert bare(grammatical(schema, GRAMMARS[name])) == bare(wanted)


@pytest.mark.parametrize("schema", MODELS.values(), ids=list(MODELS))
@pytest.mark.parametrize("name", GRAMMARS)
def test_models_are_rewritten_as_the_sdk_does(sdk: Callable[[str], Sdk], name: str, schema: dict[str, Any]) -> None:
    rewritten_alike(sdk, name, schema)


@pytest.mark.parametrize("schema", LOOSER.values(), ids=list(LOOSER))
def test_what_no_grammar_knows_is_left_to_words_as_anthropics_sdk_does(sdk: Callable[[str], Sdk], schema: dict[str, Any]) -> None:
    rewritten_alike(sdk, "anthropic", schema)


@settings(max_examples=150)
@given(name=st.sampled_from(sorted(GRAMMARS)), schema=plain_schemas())
def test_schemas_of_any_shape_are_rewritten_as_the_sdk_does(sdk: Callable[[str], Sdk], name: str, schema: dict[str, Any]) -> None:
    rewritten_alike(sdk, name, schema)
