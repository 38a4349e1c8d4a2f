"""Numbers, quantities and dates in canonical forms."""

from datetime import date
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nearfar.orchestrator.routing.answers import agree
from nearfar.orchestrator.routing.quantities import UNITS, date_of, quantity_of

NUMBERS = st.integers(-(10**9), 10**9)
WRITTEN = st.sampled_from(["{}", "{:,}", "{}.0", "{} ", "**{}**", "about {}", "${}$", "\\text{{{}}}", "x = {}"])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("1,234,567", "1.234.567"),
        ("1,234.5", "1.234,5"),
        ("1 234", "1234"),
        ("17{,}700", "17,700"),
        (r"\frac{1}{2}", "0.5"),
        (r"1\frac{1}{2}", "1.5"),
        ("1½", "3/2"),
        ("50%", "0.5"),
        (r"50\%", "1/2"),
        ("1.5 km", "1500 meters"),
        ("1,5 km", "1.5 km"),
        ("90 minutes", "1 h 30 min"),
        ("in 1999", "1999"),
        ("at 3 pm", "15:00"),
        ("2 kg", "2,000 g"),
        ("$2.5 million", "2500000 dollars"),
        ("€3,50", "3.50 EUR"),
        ("20 °C", "20 degrees Celsius"),
        (r"90^\circ", "90 degrees"),
        ("3e5", r"3 \times 10^5"),
        ("17 different ways", "17 ways"),
        ("twelve", "12"),
        ("12 km", "12"),
        ("x = 5", "5"),
        ("March 5, 2024", "2024-03-05"),
        ("5 March 2024", "5. März 2024"),
        ("05.03.2024", "the 5th of March 2024"),
        ("3 pm", "15:00"),
        ("Yes.", "true"),
        ("the Eiffel Tower", "Eiffel tower"),
        (r"\frac{\sqrt{3}}{2}", "√3/2"),
        (r"[0.5, \infty)", "[1/2, ∞)"),
        (r"\{1, 2\}", "{2, 1}"),
        ("'abc'", "abc"),
    ],
)
def test_what_is_written_in_another_way_agrees(first: str, second: str) -> None:
    assert agree(first, second)
    assert agree(second, first)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("1.234", "1234"),
        ("12 km", "12 m"),
        ("12 km", "12 kg"),
        ("20 °C", "20 °F"),
        ("45°", "45 rad"),
        ("$5", "€5"),
        ("3 red balls", "3 blue balls"),
        ("03/04/2024", "2024-03-04"),
        ("03/04/2024", "2024-04-03"),
        ("5", "-5"),
        ("x = 5", "y = 5"),
        ("yes", "no"),
        ("not Paris", "Paris"),
        ("(1, 2)", "[1, 2)"),
        ("1/3", "0.333"),
        ("9 am", "9 pm"),
        ("50%", "5"),
        ("1990s", "1990"),
        ("01234", "1234"),
    ],
)
def test_what_differs_is_never_equated(first: str, second: str) -> None:
    assert not agree(first, second)
    assert not agree(second, first)


@given(NUMBERS, NUMBERS, WRITTEN, WRITTEN)
def test_numbers_agree_exactly_where_they_are_equal_however_they_are_written(first: int, second: int, one: str, other: str) -> None:
    assert agree(one.format(first), other.format(first))
    assume(first != second)
    assert not agree(one.format(first), other.format(second))


@given(NUMBERS, st.sampled_from(sorted(UNITS)), st.sampled_from(sorted(UNITS)))
def test_units_of_other_dimensions_never_agree(number: int, first: str, second: str) -> None:
    (one, factor), (other, other_factor) = UNITS[first], UNITS[second]
    assume((one, factor) != (other, other_factor) and number and one and other)
    assert not agree(f"{number} {first}", f"{number} {second}")


@given(st.integers(1, 10**6), st.sampled_from(sorted(UNITS)))
def test_a_quantity_is_its_number_times_its_unit(number: int, unit: str) -> None:
    found = quantity_of(f"{number} {unit}")
    assert found is not None
    assert (found.value, found.unit, found.stated) == (number * UNITS[unit][1], UNITS[unit][0], Fraction(number))


@given(st.dates(min_value=date(1000, 1, 1)))
def test_a_date_is_the_same_day_in_every_unambiguous_form(day: date) -> None:
    forms = (f"{day:%Y-%m-%d}", f"{day:%B} {day.day}, {day:%Y}", f"{day.day} {day:%B} {day:%Y}", f"{day:%d.%m.%Y}")
    assert {date_of(form) for form in forms} == {day.isoformat()}


@given(st.text(max_size=60) | st.text(alphabet="0123456789.,/ -+%$€kmh°'eE×*^{}\\frac", max_size=60))
def test_any_text_can_be_read_and_agrees_with_itself(text: str) -> None:
    date_of(text)
    assert agree(text, text) == bool(text.strip())
