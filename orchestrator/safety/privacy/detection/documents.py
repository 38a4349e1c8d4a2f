"""Numbers of documents next to a word that names them, and national numbers with a form of their own."""

import re
from collections.abc import Iterator
from datetime import date
from typing import Final

from .finding import Finding
from .patterns import Check, any_of, follows, has_digits, lowered

_NAMES: Final = (
    *("passport", "reisepass", "passeport", "pasaporte", "passaporto", "passaporte", "paspoort", "paszport", "pass-nr", "passnummer"),
    *("паспорт", "护照", "旅券", "여권", "personalausweis", "ausweisnummer", "ausweisnr", "ausweis", "ausweis-nr", "carte d'identité"),
    *("carta d'identità", "identity card", "id card", "identiteitskaart", "dowód osobisty", "dowodu osobistego", "driving licence"),
    *("driving license", "driver's licence", "driver's license", "drivers license", "driver license", "führerschein", "permis de conduire"),
    *(
        "carnet de conducir",
        "permiso de conducir",
        "patente",
        "rijbewijs",
        "körkort",
        "ajokortti",
        "prawo jazdy",
        "medicare",
        "health card",
    ),
    *("снилс", "snils", "taj", "versichertennummer", "krankenversicherungsnummer", "kvnr", "nss", "imss", "philhealth", "umid"),
    *("licence plate", "license plate", "number plate", "kennzeichen", "imei", "versicherungsnummer", "rentenversicherungsnummer"),
    *("account number", "account no", "acct no", "kontonummer", "konto-nr", "numéro de compte", "número de cuenta", "rekeningnummer"),
    *("routing number", "sort code", "policy number", "policy no", "patient number", "medical record", "mrn", "krankenkasse"),
)
_NAME: Final = re.compile(rf"(?<![^\W\d_])(?:{any_of(_NAMES)})(?![^\W\d_])")
_NUMBER: Final = re.compile(
    r"(?i)(?:[ \t]{1,3}(?:no|nr|number|nummer|num|n[úu]mero|num[ée]ro|n°|nº|numer|#)\.?)?"
    r"(?:[\s:=#()-]|\b(?:is|ist|lautet|war|was|es|est|è|jest|on)\b){0,6}"
    r"((?:[A-Z]{0,5}\d\w{0,16}|[A-Z0-9]{1,6}(?=[ \t_/.-]{1,3}\w*\d))(?:[ \t_/.-]{1,3}(?=\w*\d|[A-Z]{1,2}\b)[A-Z0-9]{1,9}){0,6})"
)
_LEAST_FIGURES: Final = 5
_NINO: Final = re.compile(
    r"(?i)(?<![a-z0-9])((?!BG|GB|NK|KN|TN|NT|ZZ)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z](?:[\W_]{0,3}\d){6}[\W_]{0,3}[A-D])(?![a-z0-9])"
)
_INSURANCE: Final = re.compile(r"(?i)national insurance|\bnino?\b|\bn\.i\.|insurance n")
_SINGAPORE: Final = re.compile(r"(?i)(?<![a-z0-9])([STFGM]\d{7}[A-Z])(?![a-z0-9])")
_HONG_KONG: Final = re.compile(r"(?i)(?<![a-z0-9])([A-Z]{1,2}\d{6}\s?\(?[\dA]\)?)(?![a-z0-9])")
_PENSION: Final = re.compile(
    r"(?i)(?<![a-z0-9])(\d{2}[\W_]{0,2}\d{2}[\W_]?\d{2}[\W_]?\d{2}[\W_]{0,2}[A-Z][\W_]{0,2}\d{2}[\W_]?\d)(?![a-z0-9])"
)


class DocumentDetector:
    """Finds numbers of passports, licences, insurances and accounts behind their names, and those whose check digits say enough."""

    def find(self, text: str) -> list[Finding]:
        if not has_digits(text, _LEAST_FIGURES):
            return []
        return [*_named(text), *_of_own_form(text)]


def _named(text: str) -> Iterator[Finding]:
    for name in _NAME.finditer(lowered(text)):
        number = _NUMBER.match(text, name.end())
        if number is not None and has_digits(number[1], _LEAST_FIGURES):
            yield Finding(*number.span(1), "national_id", number[1])


def _of_own_form(text: str) -> Iterator[Finding]:
    for pattern, check in _FORMS:
        for match in pattern.finditer(text):
            if check(match):
                yield Finding(*match.span(1), "national_id", match[1])


def _is_insured(match: re.Match[str]) -> bool:
    """Return whether a UK National Insurance number is written or named as one: it has no check digit."""
    return not match[1].isalnum() or follows(_INSURANCE, match)


def _is_singapores(match: re.Match[str]) -> bool:
    """Return whether the last letter is the check letter of a Singapore NRIC or FIN."""
    number = match[1].upper()
    total = sum(int(digit) * weight for digit, weight in zip(number[1:8], (2, 7, 6, 5, 4, 3, 2), strict=True))
    total += {"T": 4, "G": 4, "M": 3}.get(number[0], 0)
    if number[0] == "M":
        return number[8] == "KLJNPQRTUWX"[10 - total % 11]
    return number[8] == ("JZIHGFEDCBA" if number[0] in "ST" else "XWUTRQPNMLK")[total % 11]


def _is_hong_kongs(match: re.Match[str]) -> bool:
    """Return whether the last character is the check digit of a Hong Kong identity card: weights 9 to 2 over letters and figures, modulo
    11."""
    number = re.sub(r"[\W_]", "", match[1]).upper()
    letters = number[:-7].rjust(2)
    values = [36 if letter == " " else ord(letter) - 55 for letter in letters] + [int(digit) for digit in number[-7:-1]]
    rest = -sum(value * weight for value, weight in zip(values, range(9, 1, -1), strict=True)) % 11
    return number[-1] == ("A" if rest == 10 else str(rest))


def _is_of_a_pension(match: re.Match[str]) -> bool:
    """Return whether a number is one of Germany's pension insurance (VKVV, section 4): a day of birth, and the check digit at its end."""
    number = re.sub(r"[\W_]", "", match[1]).upper()
    digits = f"{number[:8]}{ord(number[8]) - 64:02}{number[9:11]}"
    sums = (int(digit) * weight for digit, weight in zip(digits, (2, 1, 2, 5, 7, 1, 2, 1, 2, 1, 2, 1), strict=True))
    return sum(sum(divmod(value, 10)) for value in sums) % 10 == int(number[11]) and _is_day(int(number[4:6]), int(number[2:4]))


def _is_day(month: int, day: int) -> bool:
    try:
        return bool(date(2000, month, day))
    except ValueError:
        return False


_FORMS: Final[tuple[tuple[re.Pattern[str], Check], ...]] = (
    (_NINO, _is_insured),
    (_SINGAPORE, _is_singapores),
    (_HONG_KONG, _is_hong_kongs),
    (_PENSION, _is_of_a_pension),
)
DOCUMENT: Final = DocumentDetector()
