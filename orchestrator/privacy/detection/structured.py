"""Private data that can be told by their form: e-mail addresses, and numbers that carry a checksum."""

import re
from collections.abc import Callable
from typing import Final

from .finding import Finding

_EMAIL: Final = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,8}[^\W\d_]{2,24}(?![\w-])")
_CARD: Final = re.compile(r"(?<![\d.-])\d(?:[ -]?\d){12,18}(?![\d-])")
_IBAN: Final = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}(?![A-Za-z0-9])")


class PatternDetector:
    """Finds what matches a pattern and passes a check."""

    def __init__(self, type: str, pattern: re.Pattern[str], check: Callable[[str], bool] = bool) -> None:
        self._type = type
        self._pattern = pattern
        self._check = check

    def find(self, text: str) -> list[Finding]:
        found = ((match.span(), match[0]) for match in self._pattern.finditer(text))
        return [Finding(*span, self._type, matched) for span, matched in found if self._check(matched)]


def passes_luhn(number: str) -> bool:
    """Whether the last digit of a card's number is the check digit of the others (ISO/IEC 7812-1, annex B)."""
    digits = [int(character) for character in reversed(number) if character.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0 and any(digits)


def passes_iban(number: str) -> bool:
    """Whether the check digits are right: the number, its first four characters moved to its end, is 1 modulo 97 (ISO 13616)."""
    compact = number.replace(" ", "")
    moved = compact[4:] + compact[:4]
    return int("".join(str(int(character, 36)) for character in moved)) % 97 == 1


EMAIL: Final = PatternDetector("email", _EMAIL)
CARD: Final = PatternDetector("card", _CARD, passes_luhn)
IBAN: Final = PatternDetector("iban", _IBAN, passes_iban)
