"""Values of a kind that texts hold: of a whole text no plan can know which part it wants, but of which kind it is."""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Final

from .moments import Clock, Day, moments
from .numbers import numbers_in

_EMAIL: Final = re.compile(r"(?<![\w.%+'-])[\w%+'-]++(?:\.[\w%+'-]++)*+@[a-z0-9-]++(?:\.[a-z0-9-]++)++(?![\w-])", re.IGNORECASE)
_AT: Final = "@\uff20\ufe6b"
_URL: Final = re.compile(r"(?<![\w@.-])(?:https?://|www\.)[^\s<>\"'`{}|\\^\[\]]++", re.IGNORECASE)
_BEHIND: Final = ".,;:!?)*_~"
"""What stands behind an address in a sentence, and is no part of it."""


def _emails(text: str) -> Iterator[str]:
    """Yield the addresses of e-mail; none where there is more that could be one."""
    found = _EMAIL.findall(text)
    if len(found) == sum(map(text.count, _AT)):
        yield from found


def _urls(text: str) -> Iterator[str]:
    yield from (found.rstrip(_BEHIND) for found in _URL.findall(text))


def _numbers(text: str) -> Iterator[Decimal]:
    yield from numbers_in(text.casefold())


def _dates(text: str) -> Iterator[date]:
    yield from filter(None, map(_date, moments(text).days))


def _moments(text: str) -> Iterator[datetime]:
    """Each date with each time of day: only where there is one of both does it say when something is."""
    named = moments(text)
    for day in filter(None, map(_date, named.days)):
        for clock in named.clocks:
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
