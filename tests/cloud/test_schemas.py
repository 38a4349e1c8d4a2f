"""Schemas go to each provider in the part of JSON Schema that it takes, and to the model in words where there is none."""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final, Literal

import jsonschema
import pytest
from http_server import Exchange, http_server
from hypothesis import given
from hypothesis import strategies as st
from json_schemas import schemas
from pydantic import BaseModel, Field, RootModel
from streams import DIALECTS, TEXTS, WEATHER, agent_at, asking

from nearfar.cloud.schemas import ANTHROPIC, OPENAI, Grammar, grammatical, openai_output
from nearfar.protocols import InvalidOutput, ToolSpec, complete

CLOSED: Final = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
MAP: Final = {"type": "object", "additionalProperties": {"type": "integer"}}


class Point(BaseModel):
    x: int = Field(ge=0, description="from the left")
    label: str | None = None
    kind: Literal["corner", "edge"] = "edge"


class Shape(BaseModel):
    first: Point = Field(description="where it begins")
    points: list[Point] = Field(min_length=2)
    drawn: datetime
    size: int | float


class Tree(BaseModel):
    value: int
    children: list["Tree"] = []


class Named(BaseModel):
    by_name: dict[str, int]


class Pair(BaseModel):
    both: tuple[int, str]


@pytest.mark.parametrize("model", [Point, Shape])
@pytest.mark.parametrize("grammar", [ANTHROPIC, OPENAI], ids=["anthropic", "openai"])
def test_usual_models_of_pydantic_have_a_grammar_that_takes_their_values(grammar: Grammar, model: type[BaseModel]) -> None:
    made = grammatical(model.model_json_schema(), grammar)
    assert made is not None
    point = {"x": 1, "label": None, "kind": "corner"}
    value = point if model is Point else {"first": point, "points": [point, point], "drawn": "2026-11-23T10:00:00Z", "size": 1.5}
    jsonschema.validate(value, made)
    model.model_validate(value)


def test_openai_wants_every_property_and_keeps_the_limits_that_it_knows() -> None:
    made = openai_output(Point.model_json_schema())
    assert made is not None
    schema, is_strict = made
    assert is_strict
    assert schema["required"] == ["x", "label", "kind"]
    assert schema["properties"]["x"] == {"type": "integer", "minimum": 0, "title": "X", "description": "from the left"}  # type: ignore[index,call-overload]  # a JSON Schema of an object


def test_a_schema_that_refers_to_itself_is_for_openai_alone() -> None:
    assert grammatical(Tree.model_json_schema(), ANTHROPIC) is None
    made = openai_output(Tree.model_json_schema())
    assert made is not None
    assert (made[0]["type"], made[1]) == ("object", True)


@pytest.mark.parametrize("schema", [Named.model_json_schema(), MAP, {"type": "object"}, {}, {"$ref": "#/properties/a", "properties": {}}])
@pytest.mark.parametrize("grammar", [ANTHROPIC, OPENAI], ids=["anthropic", "openai"])
def test_what_a_closed_object_could_not_hold_has_no_grammar(grammar: Grammar, schema: dict[str, Any]) -> None:
    assert grammatical(schema, grammar) is None


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        (
            {"type": ["string", "null"], "maxLength": 3},
            {"anyOf": [{"type": "string", "description": '{"maxLength": 3}'}, {"type": "null"}]},
        ),
        ({"allOf": [{"type": "string"}], "description": "a name"}, {"type": "string", "description": "a name"}),
        ({"enum": ["a", 1]}, {"enum": ["a", 1]}),
        ({"const": "a", "type": "string"}, {"const": "a"}),
        ({"type": "string", "format": "email"}, {"type": "string", "format": "email"}),
        ({"type": "string", "format": "color"}, {"type": "string", "description": '{"format": "color"}'}),
        ({"type": "array", "items": {"type": "null"}, "minItems": 1}, {"type": "array", "items": {"type": "null"}, "minItems": 1}),
        (CLOSED | {"oneOf": [{"required": ["a"]}]}, CLOSED | {"description": '{"oneOf": [{"required": ["a"]}]}'}),
        (
            {"definitions": {"A": {"type": "null"}}, "anyOf": [{"$ref": "#/definitions/A"}]},
            {"anyOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": {"type": "null"}}},
        ),
    ],
)
def test_anthropic_takes_it_so(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    assert grammatical(schema, ANTHROPIC) == expected


@pytest.mark.parametrize("schema", [{"type": "array", "items": CLOSED}, {"anyOf": [CLOSED]}, RootModel[list[int]].model_json_schema()])
def test_openai_takes_only_objects_at_the_root(schema: dict[str, Any]) -> None:
    assert openai_output(schema) is None


@pytest.mark.parametrize("schema", [Named.model_json_schema(), Pair.model_json_schema(), MAP])
def test_other_objects_go_to_openai_as_they_are_without_its_strict_mode(schema: dict[str, Any]) -> None:
    assert openai_output(schema) == (schema, False)


@given(schemas())
def test_a_rewritten_schema_has_no_keyword_that_its_grammar_does_not_know(schema: dict[str, Any]) -> None:
    for grammar in (ANTHROPIC, OPENAI):
        made = grammatical(schema, grammar)
        for part in () if made is None else parts_of(made):
            known = {"type", "title", "description", "anyOf", "$ref", "$defs", "enum", "const", "properties", "required", "items"}
            known |= {"additionalProperties", "format", "minItems", *grammar.limits.get(str(part.get("type")), ())}
            assert part.keys() <= known
            assert part.get("type") != "object" or part["additionalProperties"] is False


@given(schemas(), st.data())
def test_what_the_grammar_lets_through_was_asked_for(schema: dict[str, Any], data: st.DataObject) -> None:
    """As far as the words in descriptions are heeded, and but for `oneOf`, of which several may hold."""
    value = data.draw(st.recursive(st.none() | st.booleans() | st.integers(0, 3) | st.text("ab", max_size=2), containers, max_leaves=6))
    for grammar in (ANTHROPIC, OPENAI):
        made = grammatical(schema, grammar)
        is_told = "oneOf" in json.dumps(schema) or (made is not None and any("description" in part for part in parts_of(made)))
        if made is not None and not is_told and is_valid(value, made):
            assert is_valid(value, schema)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)


def is_valid(value: object, schema: dict[str, Any]) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def parts_of(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for name in ("properties", "$defs"):
        for part in schema.get(name, {}).values():
            yield from parts_of(part)
    for part in [*schema.get("anyOf", []), *([schema["items"]] if "items" in schema else [])]:
        yield from parts_of(part)


@pytest.mark.anyio
@pytest.mark.parametrize(("dialect", "told"), [("openai", False), ("responses", False), ("anthropic", True), ("gemini", False)])
async def test_a_schema_without_a_grammar_is_told_in_words_and_checked_all_the_same(dialect: str, told: bool) -> None:
    answers = iter(['{"a": 1}', '{"a": "one"}'])

    async def answer(exchange: Exchange) -> None:
        await exchange.stream([TEXTS[dialect](next(answers))])

    async with http_server(answer) as server:
        agent = agent_at(server.base_url, dialect)
        assert (await complete(agent, asking(output_schema=MAP))).text == '{"a": 1}'
        with pytest.raises(InvalidOutput):
            await complete(agent, asking(output_schema=MAP))
        await agent.aclose()
    assert ("It fits this JSON Schema" in json.dumps(server.exchanges[0].body)) is told


@pytest.mark.anyio
@pytest.mark.parametrize("dialect", ["openai", "responses", "anthropic"])
async def test_unions_at_the_top_of_a_tools_parameters_are_told_in_words(dialect: str) -> None:
    either = {"anyOf": [{"required": ["city"]}, {"required": ["place"]}]}
    tool = ToolSpec(name="weather", description="Today's weather", parameters=WEATHER.parameters | either)

    async def answer(exchange: Exchange) -> None:
        await exchange.stream([TEXTS[dialect]("fine")])

    async with http_server(answer) as server:
        agent = agent_at(server.base_url, dialect)
        await complete(agent, asking(tools=(tool,)))
        await agent.aclose()
    body = server.exchanges[0].body
    assert isinstance(body, dict)
    sent = body["tools"][0].get("function") or body["tools"][0]
    assert "anyOf" not in (sent.get("parameters") or sent.get("input_schema"))
    assert sent["description"].startswith("Today's weather")
    assert json.dumps(either) in sent["description"]
    assert DIALECTS[dialect].capabilities.tools
