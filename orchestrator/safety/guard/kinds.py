"""Values of a kind that texts hold: of a whole text no plan can know which part it wants, but of which kind it is."""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Final
from unicodedata import category

from .moments import Clock, Day, moments
from .numbers import has_unread, numbers_in

_EMAIL: Final = re.compile(r"(?<![\w.%+'-])[\w%+'-]++(?:\.[\w%+'-]++)*+@[a-z0-9-]++(?:\.[a-z0-9-]++)++(?![\w-])", re.IGNORECASE)
_MARK: Final = "\0"
_JOINED: Final = re.compile(rf"[\w.%+'-][!#$&*/=?^`{{|}}~{_MARK}]+\Z")
"""A word before an address, and what mailboxes' names may hold between them (RFC 5322)."""
_FURTHER: Final = re.compile(rf"{_MARK}*[.\uff0e]?{_MARK}*[\w-]")
"""A host that goes on in other letters."""
_FAR: Final = 64
"""Characters before an address that are looked at."""
_AT: Final = re.compile(r"[@\uff20\ufe6b]|&(?:\#0*64|\#x0*40|commat);|%40|[(\[{]\s*at\s*[)\]}]", re.IGNORECASE)
"""What stands for the sign in an address, also where a page hides it from those who collect addresses."""
_URL: Final = re.compile(r"(?<![\w@.-])(?:https?://|www\.)[^\s<>\"'`{}|\\^\[\]]++", re.IGNORECASE)
_ADDRESSED: Final = re.compile(r"//\w|www\.", re.IGNORECASE)
"""Begins an address of the web."""
_BEHIND: Final = ".,;:!?)*_~"
"""What stands behind an address in a sentence, and is no part of it."""
_SHORT_DATE: Final = re.compile(r"(?<![\w./-])\d{1,2}([-/.])\d{1,2}\1\d{2}(?![\w./-]*\d)")
"""A date whose century is not said."""


def _emails(text: str) -> Iterator[str]:
    """Yield the addresses of e-mail; none where there is more that could be one."""
    found = list(_EMAIL.finditer(text))
    if len(found) == len(_AT.findall(text)) and not any(_is_part(text, *each.span()) for each in found):
        yield from (each.group() for each in found)


def _is_part(text: str, start: int, end: int) -> bool:
    """Say whether an address is a part of a longer one, by letters that few addresses hold or that are not seen."""
    before, behind = text[max(start - _FAR, 0) : start], text[end : end + _FAR]
    return _JOINED.search(_marked(before)) is not None or _FURTHER.match(_marked(behind)) is not None


def _marked(text: str) -> str:
    """Return the text with one sign for all accents that stand by themselves, and for what is not seen."""
    return "".join(_MARK if category(letter) in ("Mn", "Mc", "Me", "Cf") else letter for letter in text)


def _urls(text: str) -> Iterator[str]:
    """Yield the addresses of the web; none where there is more that could be one."""
    if _ADDRESSED.search(_URL.sub(" ", text)) is None:
        yield from (found.rstrip(_BEHIND) for found in _URL.findall(text))


def _numbers(text: str) -> Iterator[Decimal]:
    """Yield the numbers; none where there is one in a notation that is not known."""
    text = text.casefold().replace("\u2212", "-")
    if not has_unread(text):
        yield from numbers_in(text)


def _dates(text: str) -> Iterator[date]:
    """Yield the dates; none where there is one whose year is not said, or that no calendar has."""
    days = moments(text).days
    found = [_date(day) for day in days]
    said = {(day.month, day.day) for day in filter(None, found)}
    if _SHORT_DATE.search(text) is None and all((day.month, day.day) in said for day in days):
        yield from filter(None, found)


def _moments(text: str) -> Iterator[datetime]:
    """Each date with each time of day: only where there is one of both does it say when something is."""
    clocks = moments(text).clocks
    for day in _dates(text):
        for clock in clocks:
            yield _at(day, clock)


def _date(day: Day) -> date | None:
    """Return the date; None where the text does not say the year, or there is no such day."""
    try:
        return None if day.year is None else date(day.year, day.month, day.day)
    except ValueError:
        return None


def _at(day: date, clock: Clock) -> datetime:
    return datetime(day.year, day.month, day.day, clock.hour, clock.minute)


KINDS: Final[Mapping[str, Callable[[str], Iterator[object]]]] = {
    "email": _emails,
    "url": _urls,
    "number": _numbers,
    "date": _dates,
    "moment": _moments,
}
"""By the name that a plan has for them."""
