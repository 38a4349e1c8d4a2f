"""When two answers say the same."""

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from nearfar.orchestrator.routing.answers import Answer, agree
from nearfar.orchestrator.routing.forms import is_literal
from nearfar.orchestrator.routing.quantities import number_of
from nearfar.protocols import ToolCall

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3), max_leaves=6
)
GARBAGE = st.text(max_size=40) | st.text(alphabet="[](){}'\"\\,:.0123456789abx ", max_size=40)


def call(name: str, **arguments: JsonValue) -> ToolCall:
    return ToolCall(id=name, name=name, arguments=arguments)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("1,000", "1000.0"),
        ("$1,000", "1000"),
        ("-15", " -15.00 "),
        ("Paris.", "**paris**"),
        ("New  York", "new york"),
        ("[1, 2]", "[1.0,2]"),
        ("{'a': 1, 'b': [True]}", '{"b": [true], "a": 1.0}'),
        ('"a"', "'a'"),
        ("(1, 'x')", '(1,"x")'),
        ("{1, 2}", "{2, 1}"),
        (r"$\dfrac{1}{2}$", r"\frac12"),
        (r"\left( 3, \, 4 \right)", "(3,4)"),
        ('[{"name": "f", "arguments": {"a": "X"}}, {"name": "g", "arguments": {}}]', [call("g"), call("f", a="x")]),
    ],
)
def test_answers_agree_where_only_their_form_differs(first: str, second: str | list[ToolCall]) -> None:
    assert agree(first, second)
    assert agree(second, first)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("1000", "1001"),
        ("1,5", "15"),
        ("x-1", "x+1"),
        ("'Ab'", "'ab'"),
        ("[1, 2]", "[2, 1]"),
        ("[1, 2]", "(1, 2)"),
        ("[True]", "[1]"),
        (r"\frac{1}{23}", r"\frac{12}{3}"),
        (r"\frac{1}{2}x", r"\frac{1}{2x}"),
        ("10²", "102"),
        ("12 34", "1234"),
        ("1990s", "1990"),
        ("!a", "a"),
        (".net", "net"),
        ("```\nx = 'A'\n```", "```\nx = 'a'\n```"),
        ("```\nif a:\n    b\n    c\n```", "```\nif a:\n    b\nc\n```"),
        ("", ""),
        (None, None),
        (None, "no call"),
    ],
)
def test_answers_that_mean_something_else_or_nothing_do_not_agree(first: str | None, second: str | None) -> None:
    assert not agree(first, second)


def test_calls_agree_in_any_order_whatever_the_case_and_the_kind_of_number() -> None:
    first = [call("pay", to="Mira Falk", amount=20), call("note", tags=["A", {"deep": 1.0}])]
    second = [call("note", tags=["a", {"deep": 1}]), call("pay", amount=20.0, to="mira falk")]
    assert agree(first, second)


@pytest.mark.parametrize(
    "other",
    [[], [call("pay", to="Mira")], [call("pay", to="Mira"), call("pay", to="Mira")], [call("pay", to="Mira"), call("note", to="Ann")]],
    ids=["none", "one", "the same one twice", "another argument"],
)
def test_calls_disagree_where_one_is_missing_or_another(other: list[ToolCall]) -> None:
    assert not agree([call("pay", to="Mira"), call("note", to="Mira")], other)


@pytest.mark.parametrize(
    ("first", "second"), [("*", "."), ("*.log", ".log"), (".5", "5"), ("10²", "102"), ("a b", "ab"), ("$HOME", "HOME")]
)
def test_signs_in_arguments_make_a_difference(first: str, second: str) -> None:
    assert not agree([call("delete", pattern=first)], [call("delete", pattern=second)])


def test_two_drafts_that_call_no_tool_agree() -> None:
    assert agree([], [])


def test_overlap_is_the_share_of_calls_in_common() -> None:
    first, second = ([call("a"), call("b")], [call("b"), call("c")])
    assert Answer.of_calls(first).overlap(Answer.of_calls(second)) == pytest.approx(1 / 3)


@given(GARBAGE, GARBAGE)
def test_any_two_texts_can_be_compared_and_it_does_not_matter_which_is_first(first: str, second: str) -> None:
    assert agree(first, second) == agree(second, first)


@given(GARBAGE)
def test_a_text_agrees_with_itself_unless_it_says_nothing(text: str) -> None:
    assert agree(text, text) == bool(text.strip())


@given(VALUES)
def test_a_json_text_agrees_with_itself_written_in_another_way(value: object) -> None:
    assert agree(json.dumps([value]), json.dumps([value], indent=2))


@given(st.lists(st.dictionaries(st.text(max_size=4), VALUES, max_size=3), max_size=4), st.randoms(use_true_random=False))
def test_calls_in_another_order_are_the_same_calls(arguments: list[dict[str, JsonValue]], random: Random) -> None:
    calls = [ToolCall(id="call", name="tool", arguments=each) for each in arguments]
    assert agree(calls, random.sample(calls, len(calls)))


@pytest.mark.parametrize(
    "text", ["[" * 5000, "(" * 300 + ")" * 300, "1" * 6000, "[0x" + "f" * 5000 + "]", "{[]: 1}", "'\\N{no}'", "[1e999]"]
)
def test_texts_that_break_a_parser_are_compared_as_they_stand(text: str) -> None:
    assert agree(text, text)
    assert not agree(text, "4")


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_a_number_is_found_whatever_its_separators(number: float) -> None:
    assert number_of(f"{number:,.3f}") == pytest.approx(number, abs=1e-3, rel=1e-6)


@pytest.mark.parametrize(
    ("text", "is_one"), [("[1]", True), ("'a'", True), ("{1: 2}", True), ("12", False), ("[1", False), ("f(x)", False)]
)
def test_a_literal_is_told_from_other_text(text: str, is_one: bool) -> None:
    assert is_literal(text) == is_one
