"""Find numbers, dates, times of day and addresses in texts, in the notations of several countries."""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Final, NamedTuple
from unicodedata import category

_NUMBER: Final = re.compile(
    r"""(?<![\w.,])(?<!\w[-/:@])(?<!\d['’])-?
    (?:\d{1,3}(?:\.\d{3})+(?:,\d{1,2})?   # 1.500.000,50
      |\d{1,3}(?:[ '’]\d{3})+(?:[.,]\d{1,2})?   # 1 500 and 1'500, before or behind a currency
      |\d{1,3}(?:,\d{3})+(?:\.\d+)?   # 1,500.50
      |\d+,\d{1,2}   # 12,50
      |\d+(?:\.\d+)?)
    (?!\w|[-/:.,@'’]\d)""",
    re.ASCII | re.VERBOSE,
)
_PLAIN: Final = re.compile(r"-?\d+(?:\.\d+)?", re.ASCII)
_CURRENCY: Final = (
    r"(?:[$€£¥₹₽₺₩]|zł|kč|ft|kr\.?|usd|eur|gbp|chf|jpy|cny|inr|sek|nok|dkk|pln|czk|huf|try|brl|mxn|cad|aud|nzd|"
    r"(?:euro|dollar|pound|franc|yen|peso|real|reai|rupee|krona|krone|kroner|zloty|forint|rouble|ruble|lira)s?)"
)
_GROUPED: Final = re.compile(r"-?[1-9]\d{0,2}(?:(?:\.\d{3}){2,}|(?:\.\d{3})+,\d{1,2})", re.ASCII)
_GROUPED_MONEY: Final = re.compile(r"-?[1-9]\d{0,2}\.\d{3}", re.ASCII)
_DECIMAL_COMMA: Final = re.compile(r",(\d{1,2})\Z", re.ASCII)
_BEHIND: Final = re.compile(rf"\s?{_CURRENCY}(?!\w)")
_BEFORE: Final = re.compile(rf"(?<![^\W\d_]){_CURRENCY}\s?\Z")
_FIGURES: Final = re.compile(rf"(?<![\w.,/:@’'-])(?:{_CURRENCY})?\d(?:[\d.,'’_]*\d)?(?:{_CURRENCY})?(?![\w/:@-])")
"""Digits that could be a number, with a currency around it."""
_NEAR: Final = 12
"""Characters of a currency and what is around it."""


def numbers_in(text: str) -> Iterator[Decimal]:
    """Yield the numbers of a text in lower case.

    A point or a space before three digits groups them if a currency is next to the number; a point also groups if it occurs several times.
    `1.500` alone is one and a half.
    """
    for _, parts in _read(text):
        yield from (number for number in parts if number is not None)


def has_unread(text: str) -> bool:
    """Return whether a text in small letters holds figures that could be a number in another notation."""
    read = {place for found, parts in _read(text) if None not in parts for place in range(*found.span())}
    return any(read.isdisjoint(range(*found.span())) for found in _FIGURES.finditer(text))


def _read(text: str) -> "Iterator[tuple[re.Match[str], list[Decimal | None]]]":
    """Yield what stands in a text like numbers, with those that it is; None for one in another notation."""
    for found in _NUMBER.finditer(text):
        before = text[max(found.start() - _NEAR, 0) : found.start()]
        is_money = _BEHIND.match(text, found.end()) is not None or _BEFORE.search(before) is not None
        number = found.group()
        if is_money:
            yield found, [_plain(re.sub(r"[ '’]", "", number), is_money=True)]
        else:  # several neighbouring numbers, or one: the text does not tell
            yield found, [_plain(part, is_money=False) for part in number.split(" ")]


def _plain(number: str, *, is_money: bool) -> Decimal | None:
    if _GROUPED.fullmatch(number) or (is_money and _GROUPED_MONEY.fullmatch(number)):
        number = number.replace(".", "")
    number = _DECIMAL_COMMA.sub(r".\1", number).replace(",", "")
    return Decimal(number) if _PLAIN.fullmatch(number) else None


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


class TimeOfDay(NamedTuple):
    """A time of day."""

    hour: int
    minute: int


class Times(NamedTuple):
    """The dates, times of day and years that a text names."""

    days: frozenset[Day]
    clocks: frozenset[TimeOfDay]
    years: frozenset[int]

    def has(self, value: str, *, today: date | None = None) -> bool:
        """Return whether the texts name all of a value: a date, with or without a time of day, or a time of day.

        A day named without a year matches the years that the text names elsewhere, and the next or the last such day as seen from `today`.
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


def find_times(text: str) -> Times:
    """Return the dates, times and years in a text. A date in figures counts in each order that makes sense."""
    text = text.casefold()
    # In `2022-02-28T14:00` the letter between the two would hide both.
    text = re.sub(r"(?<=\d)t(?=\d\d:)", " ", text)
    days = frozenset(_days(text))
    years = frozenset(int(year) for year in _NAMED_YEAR.findall(text)) | {day.year for day in days if day.year is not None}
    return Times(days, frozenset(_clocks(text)), years)


def _days(text: str) -> Iterator[Day]:
    for pattern in (*_NUMERIC, *_NAMED):
        for found in pattern.finditer(text):
            if (day := _day(found)) is not None:
                yield day


def _clocks(text: str) -> Iterator[TimeOfDay]:
    for pattern in (_CLOCK, _HALF_DAY):
        for found in pattern.finditer(text):
            if (clock := _clock(found)) is not None:
                yield clock


def _day(found: "re.Match[str]") -> Day | None:
    month, day, year = found["month"], int(found["day"]), found["year"]
    number = int(month) if month.isdigit() else 1 + _MONTHS.index(month[:3])
    return Day(number, day, None if year is None else int(year)) if 1 <= number <= 12 and 1 <= day <= 31 else None


def _clock(found: "re.Match[str]") -> TimeOfDay | None:
    parts = found.groupdict()
    hour, minute, half = int(parts["hour"]), int(parts.get("minute") or 0), parts.get("half")
    if half is not None:
        hour = hour % 12 + (12 if half.startswith("p") else 0)
    return TimeOfDay(hour, minute) if hour < 24 and minute < 60 else None


_EMAIL: Final = re.compile(r"(?<![\w.%+'-])[\w%+'-]++(?:\.[\w%+'-]++)*+@[a-z0-9-]++(?:\.[a-z0-9-]++)++(?![\w-])", re.IGNORECASE)
_MARK: Final = "\0"
_JOINED: Final = re.compile(rf"[\w.%+'-][!#$&*/=?^`{{|}}~{_MARK}]+\Z")
"""A word before an address, and what mailboxes' names may hold between them (RFC 5322)."""
_FURTHER: Final = re.compile(rf"{_MARK}*[.\uff0e]?{_MARK}*[\w-]")
"""A host that goes on in other letters."""
_REACH: Final = 64
"""Characters before an address that are looked at."""
_AT: Final = re.compile(r"[@\uff20\ufe6b]|&(?:\#0*64|\#x0*40|commat);|%40|[(\[{]\s*at\s*[)\]}]", re.IGNORECASE)
"""Ways to write `@` in an address, including those that hide it from harvesters."""
_URL: Final = re.compile(r"(?<![\w@.-])(?:https?://|www\.)[^\s<>\"'`{}|\\^\[\]]++", re.IGNORECASE)
_ADDRESSED: Final = re.compile(r"//\w|www\.", re.IGNORECASE)
"""Begins an address of the web."""
_TRAILING: Final = ".,;:!?)*_~"
"""Characters behind an address in a sentence that are no part of it."""
_SHORT_DATE: Final = re.compile(r"(?<![\w./-])\d{1,2}([-/.])\d{1,2}\1\d{2}(?![\w./-]*\d)")
"""A date whose century is not said."""


def _emails(text: str) -> Iterator[str]:
    """Yield the addresses of e-mail; none where there is more that could be one."""
    found = list(_EMAIL.finditer(text))
    if len(found) == len(_AT.findall(text)) and not any(_is_part(text, *each.span()) for each in found):
        yield from (each.group() for each in found)


def _is_part(text: str, start: int, end: int) -> bool:
    """Return whether an address is a part of a longer one, by letters that few addresses hold or that are not seen."""
    before, behind = text[max(start - _REACH, 0) : start], text[end : end + _REACH]
    return _JOINED.search(_mark_invisible(before)) is not None or _FURTHER.match(_mark_invisible(behind)) is not None


def _mark_invisible(text: str) -> str:
    """Return the text with one sign for all accents that stand by themselves, and for what is not seen."""
    return "".join(_MARK if category(letter) in ("Mn", "Mc", "Me", "Cf") else letter for letter in text)


def _urls(text: str) -> Iterator[str]:
    """Yield the addresses of the web; none where there is more that could be one."""
    if _ADDRESSED.search(_URL.sub(" ", text)) is None:
        yield from (found.rstrip(_TRAILING) for found in _URL.findall(text))


def _numbers(text: str) -> Iterator[Decimal]:
    """Yield the numbers; none where there is one in a notation that is not known."""
    text = text.casefold().replace("\u2212", "-")
    if not has_unread(text):
        yield from numbers_in(text)


def _dates(text: str) -> Iterator[date]:
    """Yield the dates; none where there is one whose year is not said, or that no calendar has."""
    days = find_times(text).days
    found = [_date(day) for day in days]
    said = {(day.month, day.day) for day in filter(None, found)}
    if _SHORT_DATE.search(text) is None and all((day.month, day.day) in said for day in days):
        yield from filter(None, found)


def _moments(text: str) -> Iterator[datetime]:
    """Yield each date with each time of day: only where there is one of both does it say when something is."""
    clocks = find_times(text).clocks
    yield from (datetime(day.year, day.month, day.day, clock.hour, clock.minute) for day in _dates(text) for clock in clocks)


def _date(day: Day) -> date | None:
    """Return the date; None where the text does not say the year, or there is no such day."""
    try:
        return None if day.year is None else date(day.year, day.month, day.day)
    except ValueError:
        return None


KINDS: Final[Mapping[str, Callable[[str], Iterator[object]]]] = {
    "email": _emails,
    "url": _urls,
    "number": _numbers,
    "date": _dates,
    "moment": _moments,
}
"""By the name that a plan has for them."""
