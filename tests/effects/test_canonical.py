"""Values that say the same are the same text, as RFC 8785 writes them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr

from nearfar.orchestrator.util.text import canonical, digest

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(), values, max_size=4),
    max_leaves=12,
)


def test_the_example_of_the_rfc_comes_out_as_it_says() -> None:
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/",
        "literals": [None, True, False],
    }
    expected = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    assert canonical(value) == expected


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1.0, "1"),
        (-0.0, "0"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (-1.5e-9, "-1.5e-9"),
        (5e-324, "5e-324"),
        (2**80, "1208925819614629174706176"),
    ],
)
def test_each_number_is_written_in_one_way(number: float, text: str) -> None:
    assert canonical(number) == text


@pytest.mark.parametrize(
    ("decimals", "text"),
    [
        (("5", "5.0", "5.00", "5E0", "0.5E1", "05"), "5"),
        (("10", "1E1", "10.0"), "10"),
        (("-0.50", "-.5", "-5E-1"), "-0.5"),
        (("0", "-0", "0.00", "0E9"), "0"),
        (("1E999999999", "10E999999998"), "1E+999999999"),
        (("1.0000000000000000000000000000000000001",), "1.0000000000000000000000000000000000001"),
        (("NaN",), '"NaN"'),
    ],
)
def test_each_decimal_number_is_written_in_one_way(decimals: Sequence[str], text: str) -> None:
    assert {canonical(Decimal(decimal)) for decimal in decimals} == {text}


def test_keys_are_sorted_by_their_code_units() -> None:
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]  # the example of section 3.2.3
    expected = ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    assert list(json.loads(canonical(dict.fromkeys(keys, 0)))) == expected


def test_sets_and_values_that_are_no_json_have_one_text_too() -> None:
    assert canonical({"b", "a", "c"}) == '["a","b","c"]'
    assert canonical((date(2026, 1, 31), b"x")) == '["2026-01-31","x"]'


@given(JSON_VALUES)
def test_what_is_written_is_read_as_the_same_value(value: object) -> None:
    read = json.loads(canonical(value), parse_int=float)  # as a reader that has no whole numbers does
    assert read == value
    assert canonical(read) == canonical(value)


@given(st.dictionaries(st.text(), st.integers(), min_size=2))
def test_the_order_of_keys_makes_no_difference(value: dict[str, int]) -> None:
    assert digest(dict(reversed(value.items()))) == digest(value)


class Card(BaseModel):
    number: SecretStr
    place: str = Field(exclude=True)


@dataclass
class Wallet:
    card: Card


def test_nothing_is_left_out_that_is_hidden_where_it_is_shown() -> None:
    def wallet(number: str, place: str) -> Wallet:
        return Wallet(Card(number=SecretStr(number), place=place))

    assert canonical(wallet("1", "left")) == '{"card":{"number":"1","place":"left"}}'
    assert len({digest(wallet(number, place)) for number in "12" for place in ("left", "right")}) == 4


def test_different_values_have_different_hashes() -> None:
    values = [1, "1", True, None, [1], {"1": 1}, 2**53, 2**53 + 1, "\ud800", ""]
    assert len({digest(value) for value in values}) == len(values)
