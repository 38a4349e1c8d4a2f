"""JSON Schema checks: strict, offline, and worded for who has to act."""

import json
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from json_schemas import plain_schemas
from jsonschema import Draft202012Validator

from nearfar.protocols import (
    AgentCard,
    Capabilities,
    InvalidOutput,
    InvalidRequest,
    Message,
    PrivacyViolation,
    Sensitivity,
    Side,
    StepRequest,
    ToolCall,
    ToolSpec,
    Unsupported,
)
from nearfar.protocols.validation import check_arguments, check_request, check_schema, parse_output

NESTED = {"$defs": {"age": {"type": "integer", "minimum": 0}}, "type": "object", "properties": {"age": {"$ref": "#/$defs/age"}}}
BROKEN_SCHEMAS = {
    "unknown type": {"type": "objekt"},
    "missing definition": {"properties": {"a": {"$ref": "#/$defs/b"}}},
    "remote reference": {"$ref": "https://schemas.invalid/a.json"},
    "broken pattern": {"pattern": "("},
    "not JSON": {"enum": [{1, 2}]},
}


@pytest.mark.parametrize("schema", BROKEN_SCHEMAS.values(), ids=BROKEN_SCHEMAS.keys())
def test_broken_schema_is_an_invalid_request(schema: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="output_schema"):
        check_schema(schema, "output_schema")


def test_schema_with_inner_references_is_fine_and_enforced() -> None:
    check_schema(NESTED, "output_schema")
    assert parse_output('{"age": 3}', NESTED) == {"age": 3}
    with pytest.raises(InvalidOutput, match=r"\$\.age"):
        parse_output('{"age": -1}', NESTED)


SLOW = "^(a|a)*$"
NAMED = {"type": "object", "patternProperties": {SLOW: {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "value", "fits"),
    [
        ({"pattern": SLOW}, "aaa", True),
        ({"pattern": SLOW}, f"{'a' * 60}!", False),
        ({"pattern": "b"}, "abc", True),
        ({"pattern": "^(?=.*[A-Z])a"}, "a", True),
        ({"pattern": "a"}, 5, True),
        ({"propertyNames": {"pattern": SLOW}}, {f"{'a' * 60}!": 1}, False),
        (NAMED, {"aa": "x"}, False),
        (NAMED, {f"{'a' * 60}!": "x"}, True),
        ({**NAMED, "additionalProperties": False}, {f"{'a' * 60}!": 1}, False),
        ({**NAMED, "additionalProperties": False, "properties": {"b": {}}}, {"aa": 1, "b": 2}, True),
        ({**NAMED, "unevaluatedProperties": False}, {f"{'a' * 60}!": 1}, True),
        ({"unevaluatedProperties": False}, {"b": 1}, False),
    ],
)
def test_a_pattern_of_a_stranger_does_not_take_for_ever(schema: dict[str, object], value: object, fits: bool) -> None:
    text = json.dumps(value)
    if fits:
        assert parse_output(text, schema) == value
    else:
        with pytest.raises(InvalidOutput):
            parse_output(text, schema)


def test_schema_that_refers_to_itself_without_end_is_an_invalid_request() -> None:
    with pytest.raises(InvalidRequest):
        parse_output("1", {"$ref": "#"})


def test_remote_reference_is_refused_while_validating_too() -> None:
    with pytest.raises(InvalidRequest):
        parse_output("1", {"$ref": "https://schemas.invalid/a.json"})


@pytest.mark.parametrize("text", ["", "{", "[1,]", "NaN", "-Infinity", "1e999", "[" * 100_000, '"\\ud83d"', "{} {}"])
def test_text_that_is_not_strict_json_is_invalid_output(text: str) -> None:
    with pytest.raises(InvalidOutput):
        parse_output(text, {})


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_every_json_value_is_parsed_to_itself(value: object) -> None:
    assert parse_output(json.dumps(value), {}) == value


def values_for(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Draws values that fit a plain schema, or nearly."""
    if "anyOf" in schema:
        return st.one_of([values_for(option) for option in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from([*schema["enum"], "none of them"])
    if schema["type"] == "object":
        members = {name: values_for(part) for name, part in schema["properties"].items()}
        unknown = {"unknown": SCALARS}
        return st.fixed_dictionaries(members, optional=unknown) | st.fixed_dictionaries({}, optional={**members, **unknown})
    return st.lists(values_for(schema["items"]), max_size=2) if schema["type"] == "array" else SCALARS


SCALARS: st.SearchStrategy[object] = st.sampled_from([None, True, 0, -3, 1.0, 0.5, "", "a", [], {}])


@settings(max_examples=300)
@given(plain_schemas().flatmap(lambda schema: st.tuples(st.just(schema), values_for(schema) | SCALARS)))
def test_a_plain_schema_is_kept_as_jsonschema_keeps_it(drawn: tuple[dict[str, Any], Any]) -> None:
    schema, value = drawn
    check_schema(schema, "output_schema")
    if Draft202012Validator(schema).is_valid(value):
        assert parse_output(json.dumps(value), schema) == value
    else:
        with pytest.raises(InvalidOutput):
            parse_output(json.dumps(value), schema)


@pytest.mark.parametrize(("text", "fits"), [("4711", True), ("4711.0", True), ("1", True), ("true", False), ('"1"', False), ("2", False)])
def test_a_number_is_chosen_as_jsonschema_chooses(text: str, fits: bool) -> None:
    with nullcontext() if fits else pytest.raises(InvalidOutput):
        parse_output(text, {"enum": [4711, 1]})


def test_call_of_an_unknown_tool_names_the_known_ones() -> None:
    with pytest.raises(InvalidOutput, match="known tools: add, find"):
        check_arguments(ToolCall(id="1", name="delete"), [ToolSpec(name="find"), ToolSpec(name="add")])


def test_arguments_are_checked_against_the_schema_of_their_tool() -> None:
    tool = ToolSpec(name="find", parameters={**NESTED, "required": ["age"]})
    check_arguments(ToolCall(id="1", name="find", arguments={"age": 1}), [tool])
    with pytest.raises(InvalidOutput, match="required"):
        check_arguments(ToolCall(id="1", name="find"), [tool])


NEAR = AgentCard(name="near", side=Side.NEAR, model="m", capabilities=Capabilities(tools=True, json_schema=True))
FAR = AgentCard(name="far", side=Side.FAR, model="m")
HELLO = (Message.user("hello"),)
REFUSED = {
    "private at a far agent": (FAR, StepRequest(messages=HELLO), PrivacyViolation),
    "tools": (FAR, StepRequest(messages=HELLO, tools=(ToolSpec(name="f"),), sensitivity=Sensitivity.PUBLIC), Unsupported),
    "schema": (FAR, StepRequest(messages=HELLO, output_schema={}, sensitivity=Sensitivity.PUBLIC), Unsupported),
    "empty prompt": (NEAR, StepRequest(messages=(Message.user(" \n"),)), InvalidRequest),
    "broken schema": (NEAR, StepRequest(messages=HELLO, output_schema={"type": 1}), InvalidRequest),
    "broken tool": (
        NEAR,
        StepRequest(messages=HELLO, tools=(ToolSpec(name="f", parameters={"type": "object", "properties": 1}),)),
        InvalidRequest,
    ),
}


@pytest.mark.parametrize(("card", "request_", "error"), REFUSED.values(), ids=REFUSED.keys())
def test_request_that_the_agent_must_refuse(card: AgentCard, request_: StepRequest, error: type[Exception]) -> None:
    with pytest.raises(error):
        check_request(card, request_)


def test_request_within_the_agents_claims_passes() -> None:
    check_request(NEAR, StepRequest(messages=HELLO, tools=(ToolSpec(name="f"),), output_schema=NESTED, seed=1))
