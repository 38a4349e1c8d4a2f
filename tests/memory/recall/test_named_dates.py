"""Dates are read from questions as English and ISO 8601 write them."""

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.orchestrator.memory.ranking import NamedDate, named_dates


@pytest.mark.parametrize(
    ("text", "dates"),
    [
        ("When did Ann go camping in June?", [NamedDate(None, 6)]),
        ("What was lost on 3 June, 2023?", [NamedDate(2023, 6, 3)]),
        ("What was lost on June 3rd?", [NamedDate(None, 6, 3)]),
        ("What did Ann paint on May 25, 2023 and on 1st of July 2024?", [NamedDate(2023, 5, 25), NamedDate(2024, 7, 1)]),
        ("What changed between March and May of 2023?", [NamedDate(2023, 3), NamedDate(2023, 5)]),
        ("How often was it in 2023?", [NamedDate(2023)]),
        ("What happened on 2023-06-03, and in 2024-01?", [NamedDate(2023, 6, 3), NamedDate(2024, 1)]),
        ("May I ask who may march with 3 friends?", []),
        ("March on!", []),
        ("Room 2042b, order 120231", []),
        ("", []),
    ],
)
def test_dates_are_read_as_they_are_written(text: str, dates: list[NamedDate]) -> None:
    assert named_dates(text) == dates


@given(st.dates(date(1900, 1, 1), date(2099, 12, 31)))
def test_every_day_fits_itself_however_it_is_written(day: date) -> None:
    english = f"{day.day} {NAMES[day.month - 1]} {day.year}"
    for text in (day.isoformat(), english):
        (named,) = named_dates(f"What happened on {text}?")
        assert named.fits(day) == 1.0


@given(st.text(max_size=200))
def test_any_text_can_be_asked(text: str) -> None:
    assert all(one.fits(date(2024, 2, 29)) in (0.0, 0.5, 1.0) for one in named_dates(text))


NAMES = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December")
