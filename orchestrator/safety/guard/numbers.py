"""The numbers in a text, in the notations of several countries."""

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Final

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
"""What could be a number, with a currency around it."""
_NEAR: Final = 12
"""Characters of a currency and what is around it."""


def numbers_in(text: str) -> Iterator[Decimal]:
    """Yield the numbers of a text in small letters.

    A point or a space before three figures groups them beside a currency, and a point also where it stands several times. `1.500` alone
    is one and a half.
    """
    for _, parts in _read(text):
        yield from (number for number in parts if number is not None)


def has_unread(text: str) -> bool:
    """Say whether a text in small letters holds figures that could be a number in another notation."""
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
        else:  # several numbers beside each other, or one: nobody can tell
            yield found, [_plain(part, is_money=False) for part in number.split(" ")]


def _plain(number: str, *, is_money: bool) -> Decimal | None:
    if _GROUPED.fullmatch(number) or (is_money and _GROUPED_MONEY.fullmatch(number)):
        number = number.replace(".", "")
    number = _DECIMAL_COMMA.sub(r".\1", number).replace(",", "")
    return Decimal(number) if _PLAIN.fullmatch(number) else None
