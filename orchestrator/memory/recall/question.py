"""Find the words and dates of a question that help to find its answer."""

import re
from datetime import date
from typing import Final, NamedTuple

_WORD: Final = re.compile(r"\w+")
_COMMON_WORDS: Final = """
a about am an and any are as at be been being but by can could did do does for from had has have having he her here him his how i if in into
is it its just me may might my no not of on or our out over s she should so some t than that the their them then there these they this those
to up us was we were what when where which who whom whose why will with would you your
"""
_COMMON: Final = frozenset(_COMMON_WORDS.split())


def words(text: str) -> frozenset[str]:
    """Return the words of a text, each once, in lower case."""
    return frozenset(_WORD.findall(text.casefold()))


def keywords(question: str) -> str:
    """Return the words of a question that can find its answer; the whole question if all its words are common.

    bm25 gives common words little weight, but half of a question is made of them, and turns of a conversation are short.
    """
    rare = [word for word in _WORD.findall(question) if word.casefold() not in _COMMON]
    return " ".join(rare) or question


_ENGLISH: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_MONTHS: Final = {name: number for number, name in enumerate(_ENGLISH, start=1)}
_NAMES: Final = "|".join(_MONTHS)
_DAY: Final = r"\d{1,2}(?:st|nd|rd|th)?"
_NAMED: Final = re.compile(
    rf"\b(?:(?P<before>{_DAY})(?: of)? )?(?P<month>{_NAMES})\b(?: (?P<after>{_DAY})\b)?(?:,? (?P<year>(?:19|20)\d\d)\b)?"
)
_ISO: Final = re.compile(r"\b(?P<year>(?:19|20)\d\d)-(?P<month>0[1-9]|1[0-2])(?:-(?P<day>\d\d))?\b")
_YEAR: Final = re.compile(r"\b(?:19|20)\d\d\b")


class NamedDate(NamedTuple):
    """A date as far as a text names it; None: any."""

    year: int | None
    month: int | None = None
    day: int | None = None

    def fits(self, moment: date) -> float:
        """Return how well a moment fits: 0 not at all, 1 the right day, or 0.5 the right month or year."""
        if self.year not in (None, moment.year) or self.month not in (None, moment.month):
            return 0.0
        return 1.0 if self.day == moment.day else 0.5


def named_dates(text: str) -> list[NamedDate]:
    """Return the dates that a text names: English names of months with a capital letter, ISO 8601, and years alone.

    A month without a year takes the only year that the text names.
    """
    iso = [NamedDate(int(one["year"]), int(one["month"]), _number(one["day"])) for one in _ISO.finditer(text)]
    rest = _ISO.sub(" ", text)
    years = {int(year) for year in _YEAR.findall(rest)}
    only = next(iter(years)) if len(years) == 1 else None
    months = [
        NamedDate(_number(one["year"]) or only, _MONTHS[one["month"]], _number(one["before"] or one["after"]))
        for one in _NAMED.finditer(rest)
        if not _is_verb(one)
    ]
    return [*iso, *months] or [NamedDate(year) for year in sorted(years)]


def _number(text: str | None) -> int | None:
    digits = re.match(r"\d+", text or "")
    return int(digits[0]) if digits else None


def _is_verb(found: "re.Match[str]") -> bool:
    """Return whether a text begins with May or March as a verb, without any other part of a date: "May I ...?"."""
    alone = not (found["before"] or found["after"] or found["year"])
    return alone and found.start() == 0 and found["month"] in ("May", "March")
