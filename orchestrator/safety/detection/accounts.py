"""d"""

import re
from typing import Final, NamedTuple

from .detector import PatternDetector, PrivateFinding, digits_of, follows

_CARD: Final = re.compile(r"(?<![\d.-])(?<!\d )(?:\d(?:[ -]?+\d){11,18}+|\d{4}(?:\.\d{4}){3})(?![\d-])")
_BETWEEN: Final = r"(?:[ \t]{0,3}+[-_/.,:·|\\()]{0,2}+[ \t]{0,3}+(?:\r?\n[ \t]{0,4}+)?)"
_CARD_GROUPS: Final = re.compile(
    rf"(?<![\d.-])\d{{4}}{_BETWEEN}(?:\d{{4}}{_BETWEEN}\d{{4}}{_BETWEEN}\d{{3,4}}(?:{_BETWEEN}\d{{3}})?|\d{{6}}{_BETWEEN}\d{{4,5}})(?![\d-])"
)
"""Numbers of cards in their usual groups."""
_CARD_WORDS: Final = re.compile(r"(?i)card|\bcc\b|credit|debit|visa|maestro|amex|karte|carte|tarjeta|carta|cart[ãa]o|kort|kaart|karta")
_IBAN_HEAD: Final = re.compile(rf"(?ia)(?:(?<![A-Z0-9])|(?<=IBAN))([A-Z]{{2}}){_BETWEEN}\d{_BETWEEN}\d(?={_BETWEEN}[A-Z0-9])")
_SEPARATORS: Final = re.compile(r"[\W_]")


class _Issuer(NamedTuple):
    """A range of first six digits, and how long numbers are that begin with them (ISO/IEC 7812, as the schemes publish them)."""

    first: int
    last: int
    lengths: range


_MAESTRO: Final = range(12, 20)
_LONG: Final = range(16, 20)
_ISSUERS: Final = (
    _Issuer(180000, 180099, range(15, 16)),  # JCB until 2007, as the next one
    _Issuer(213100, 213199, range(15, 16)),
    _Issuer(220000, 220499, _LONG),  # Mir
    _Issuer(222100, 272099, range(16, 17)),  # Mastercard
    _Issuer(300000, 305999, range(14, 20)),  # Diners Club, as three others
    _Issuer(309500, 309599, range(14, 20)),
    _Issuer(340000, 349999, range(15, 16)),  # American Express
    _Issuer(352800, 358999, _LONG),  # JCB
    _Issuer(360000, 369999, range(14, 20)),
    _Issuer(370000, 379999, range(15, 16)),
    _Issuer(380000, 399999, range(14, 20)),
    _Issuer(400000, 499999, range(13, 20)),  # Visa: 13, 16, 19
    _Issuer(500000, 509999, _MAESTRO),  # and RuPay, Elo, Verve
    _Issuer(510000, 559999, range(16, 17)),  # Mastercard
    _Issuer(560000, 599999, _MAESTRO),
    _Issuer(600000, 699999, _MAESTRO),  # Maestro, Discover, UnionPay, RuPay, Elo, Hipercard
    _Issuer(810000, 829999, _LONG),  # UnionPay, RuPay
    _Issuer(979200, 979289, range(16, 17)),  # Troy
)
_SHORT: Final = 14
"""Digits of a card below which a number may as well be an article's: it takes a word that speaks of cards."""

# How long the IBANs of each country are, from the registry of ISO 13616 that SWIFT keeps.
_IBAN_LENGTHS: Final = {
    country: length
    for length, countries in {
        15: "NO",
        16: "BE",
        18: "DK FI FK FO GL NL SD",
        19: "MK SI",
        20: "AT BA EE KZ LT LU MN XK",
        21: "CH HR LI LV",
        22: "BG BH CR DE GB GE IE ME RS VA",
        23: "AE GI IL IQ OM SO TL",
        24: "AD CZ DZ ES MD PK RO SA SE SK TN VG",
        25: "LY PT ST",
        26: "IS TR",
        27: "BI DJ FR GR IT MC MR SM",
        28: "AL AZ BY CY DO GT HN HU LB NI PL SV",
        29: "BR EG PS QA UA",
        30: "JO KW MU YE",
        31: "MT SC",
        32: "LC",
        33: "RU",
    }.items()
    for country in countries.split()
}
_IBAN_BODIES: Final = {length: re.compile(rf"(?ia)(?:{_BETWEEN}[A-Z0-9]){{{length - 4}}}") for length in set(_IBAN_LENGTHS.values())}
_IBAN_DIGITS: Final = 8
"""Fewer digits are in no IBAN, but in words of a text that follow each other."""


def passes_luhn(number: str) -> bool:
    """Return whether the last digit of a card number is the check digit of the others (ISO/IEC 7812-1, annex B)."""
    digits = [int(digit) for digit in reversed(digits_of(number))]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0 and any(digits)


def passes_iban(number: str) -> bool:
    """Return whether the check digits are right: the number, its first four characters moved to its end, is 1 modulo 97 (ISO 13616)."""
    compact = _SEPARATORS.sub("", number)
    moved = compact[4:] + compact[:4]
    return int("".join(str(int(character, 36)) for character in moved)) % 97 == 1


def _is_card(match: re.Match[str]) -> bool:
    digits = digits_of(match[0])
    return passes_luhn(digits) and (_has_issuer(digits) or follows(_CARD_WORDS, match))


def _is_issued(match: re.Match[str]) -> bool:
    digits = digits_of(match[0])
    return passes_luhn(digits) and _has_issuer(digits)


def _has_issuer(digits: str) -> bool:
    first = int(digits[:6])
    return len(digits) >= _SHORT and any(issuer.first <= first <= issuer.last and len(digits) in issuer.lengths for issuer in _ISSUERS)


class IbanDetector:
    """Finds international bank account numbers, each as long as those of its country are."""

    def find(self, text: str) -> list[PrivateFinding]:
        heads = (match for match in _IBAN_HEAD.finditer(text) if match[1].upper() in _IBAN_LENGTHS)
        return [finding for head in heads if (finding := self._finding(text, head)) is not None]

    def _finding(self, text: str, head: re.Match[str]) -> PrivateFinding | None:
        body = _IBAN_BODIES[_IBAN_LENGTHS[head[1].upper()]].match(text, head.end())
        if body is None:
            return None
        number = head[0] + body[0]
        is_iban = len(digits_of(number)) >= _IBAN_DIGITS and passes_iban(number)
        return PrivateFinding(head.start(), body.end(), "iban", number) if is_iban else None


CARD: Final = PatternDetector("card", _CARD, _is_card)
GROUPED_CARD: Final = PatternDetector("card", _CARD_GROUPS, _is_issued)
IBAN: Final = IbanDetector()
