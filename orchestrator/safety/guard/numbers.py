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
_NEAR: Final = 12
"""Characters of a currency and what is around it."""


def numbers_in(text: str) -> Iterator[Decimal]:
    """Yield the numbers of a text in small letters.

    A point or a space before three figures groups them beside a currency, and a point also where it stands several times. `1.500` alone
    is one and a half.
    """
    for found in _NUMBER.finditer(text):
        before = text[max(found.start() - _NEAR, 0) : found.start()]
        is_money = _BEHIND.match(text, found.end()) is not None or _BEFORE.search(before) is not None
        number = found.group()
        if is_money:
            yield from _plain(re.sub(r"[ '’]", "", number), is_money=True)
        else:  # several numbers beside each other, or one: nobody can tell
            yield from (value for part in number.split(" ") for value in _plain(part, is_money=False))


def _plain(number: str, *, is_money: bool) -> Iterator[Decimal]:
    if _GROUPED.fullmatch(number) or (is_money and _GROUPED_MONEY.fullmatch(number)):
        number = number.replace(".", "")
    number = _DECIMAL_COMMA.sub(r".\1", number).replace(",", "")
    if _PLAIN.fullmatch(number):
        yield Decimal(number)
