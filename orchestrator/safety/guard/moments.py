"""Find dates and times of day in texts, in many notations."""

import re
from collections.abc import Iterator
from datetime import date
from typing import Final, NamedTuple

_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH: Final = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|"
    r"sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_YEAR: Final = r"(?:[\s,.]+(?P<year>\d{4}))?"
_NUMERIC: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?<![\w/.-])(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})(?![\d/.-]*\d)",
        r"(?<![\w/.-])(?P<day>\d{1,2})[-/.](?P<month>\d{1,2})[-/.](?P<year>\d{4})(?![\w/-])",
        r"(?<![\w/.-])(?P<month>\d{1,2})[-/](?P<day>\d{1,2})[-/](?P<year>\d{4})(?![\w/-])",
    )
)
_NAMED: Final = tuple(
    re.compile(pattern)
    for pattern in (
        rf"\b{_MONTH}\.?\s+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\b{_YEAR}",
        rf"\b(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\.?\s+(?:of\s+)?{_MONTH}\b{_YEAR}",
    )
)
_CLOCK: Final = re.compile(r"(?<![\d:.])(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::\d\d)?(?!\d)\s*(?P<half>[ap]\.?m\b)?")
_HALF_DAY: Final = re.compile(r"(?<![\w:.])(?P<hour>\d{1,2})\s*(?P<half>[ap])\.?m\b")
_NAMED_YEAR: Final = re.compile(r"(?<![\w.,:/-])(?:19|20)\d\d(?![\w/]|[-.,:]\d)")
_WHOLE: Final = re.compile(
    r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)(?:[t\s](?P<hour>\d\d):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:\.0+)?)?(?:z|\+00:00)?)?"
)


class Day(NamedTuple):
    """A date."""

    month: int
    day: int
    year: int | None
    """None: the text does not say the year."""


class Clock(NamedTuple):
    """A time of day."""

    hour: int
    minute: int


class Moments(NamedTuple):
    """The dates, times of day and years that a text names."""

    days: frozenset[Day]
    clocks: frozenset[Clock]
    years: frozenset[int]

    def has(self, value: str, *, today: date | None = None) -> bool:
        """Return whether the texts name all of a value: a date, with or without a time of day, or a time of day.

        A day named without a year matches the years that the text names elsewhere, and the next or the last such day as seen from
        `today`.
        """
        value = value.strip().casefold()
        if (clock := _CLOCK.fullmatch(value)) is not None:
            return _clock(clock) in self.clocks
        if (whole := _WHOLE.fullmatch(value)) is None:
            return False
        day = _day(whole)
        has_day = day is not None and (day in self.days or self._has_without_year(day, today or date.today()))
        return has_day and (whole["hour"] is None or (whole["second"] in (None, "00") and _clock(whole) in self.clocks))

    def _has_without_year(self, day: Day, today: date) -> bool:
        if day.year is None or day._replace(year=None) not in self.days:
            return False
        is_over = (day.month, day.day) <= (today.month, today.day)
        nearest = (today.year, today.year + 1) if is_over else (today.year - 1, today.year)
        return day.year in self.years or day.year in nearest


def moments(text: str) -> Moments:
    """Return the dates, times and years in a text. A date in figures counts in each order that makes sense."""
    text = text.casefold()
    # In `2022-02-28T14:00` the letter between the two would hide both.
    text = re.sub(r"(?<=\d)t(?=\d\d:)", " ", text)
    days = frozenset(_days(text))
    years = frozenset(int(year) for year in _NAMED_YEAR.findall(text)) | {day.year for day in days if day.year is not None}
    return Moments(days, frozenset(_clocks(text)), years)


def _days(text: str) -> Iterator[Day]:
    for pattern in (*_NUMERIC, *_NAMED):
        for found in pattern.finditer(text):
            if (day := _day(found)) is not None:
                yield day


def _clocks(text: str) -> Iterator[Clock]:
    for pattern in (_CLOCK, _HALF_DAY):
        for found in pattern.finditer(text):
            if (clock := _clock(found)) is not None:
                yield clock


def _day(found: "re.Match[str]") -> Day | None:
    month, day, year = found["month"], int(found["day"]), found["year"]
    number = int(month) if month.isdigit() else 1 + _MONTHS.index(month[:3])
    return Day(number, day, None if year is None else int(year)) if 1 <= number <= 12 and 1 <= day <= 31 else None


def _clock(found: "re.Match[str]") -> Clock | None:
    parts = found.groupdict()
    hour, minute, half = int(parts["hour"]), int(parts.get("minute") or 0), parts.get("half")
    if half is not None:
        hour = hour % 12 + (12 if half.startswith("p") else 0)
    return Clock(hour, minute) if hour < 24 and minute < 60 else None
