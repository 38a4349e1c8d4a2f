"""Numbers that identify a person: social security, documents, national ids with check digits, and dates of birth."""

import re
from collections.abc import Iterator, Sequence
from datetime import date
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from . import PatternDetector, PrivateFinding, any_of, digits_of, follows, has_digits, lower_in_place, precedes

_SSN: Final = re.compile(
    r"(?<![\w-])(?<!\d[.,:/])\d{3}([ \t]{0,3}+[-_/.,:·|]?[ \t]{0,3}+(?:\r?\n[ \t]{0,3}+)?)\d{2}\1\d{4}(?![\w-]|[.,:/]\d)"
)
_SSN_WORDS: Final = re.compile(
    r"(?i)\bssn|\bs\.s\.n|\bsocial\b|soc\.? ?sec|\bss ?#|\bss no|\btax(?:payer)? id|\bitin\b|\btin\b|seguro social"
)
_SSN_BEHIND: Final = re.compile(r"(?i)[\s,;:(]{0,3}+(?>(?:(?:is|was)\s)?)(?>(?:(?:my|his|her|the|a|an)\s)?)(?:ssn|social security)")
_ADVERTISED: Final = {"078051120", "219099999"}
"""Numbers that were printed in advertisements, and belong to no person."""

_MONTHS: Final = (
    "jan|feb|m[aä]r|mars|apr|avr|abr|ma[iyjg]|jun|juin|giu|jul|juil|lug|aug|ao[uû]|ago|sep|set|o[ck]t|out|ott|nov|de[cksz]|d[ée]c|dic|gen|ene|f[ée]v|hein|"
    "tammi|helmi|maalis|huhti|touko|kes[äa]|elo|syys|loka|marras|joulu"
)
_MONTH: Final = rf"(?>{_MONTHS})[^\W\d_]{{0,9}}+\.?+"
_DATE: Final = re.compile(
    rf"(?i)(?<![\w])(?:\d{{4}}([-/. ])\d{{1,2}}\1\d{{1,2}}|\d{{1,2}}(\s?[-/.]\s?|\s)\d{{1,2}}\2(?:\d{{4}}|\d{{2}})|\d{{8}}"
    rf"|\d{{1,2}}(?:st|nd|rd|th|\.|er|º)?[ -]?(?:of |de |d')?{_MONTH}[ ,-]{{0,2}}(?:de |del )?(?:\d{{4}}|\d{{2}})"
    rf"|{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}"
    r"|\d{4}年\d{1,2}月\d{1,2}日)(?!\d)"
)
_BIRTH: Final = (
    r"birth|\bborn\b|\bb-?day|\bd\.?\s?o\.?\s?b\b|geboren|geburt|geb\.|\bn[ée]e? le\b|\bn[ée]\(e\) le|naissance|naci[dm]"
    r"|\bnat[oa] il|nascita|nascid|nasciment|geboorte|\bf[øö]d[dts]|fødsel|synty[nm]|urodz|narozen"
    r"|született|születés|рожд|родил|出生|生日|生年月日"
)
_BORN: Final = re.compile(rf"(?i)(?:{_BIRTH})[^\d]{{0,24}}\Z")
_WAS_BORN: Final = re.compile(
    rf"(?i)[\s,;:(\[-]{{0,4}}+(?>(?:(?:is|was|ist|war)\s)?)(?>(?:(?:my|his|her|the|mein|sein|ihr)\s)?)"
    r"(?>(?:date (?:of|de) |fecha de |data d[ie] )?)"
    rf"(?:{_BIRTH})"
)
_BIRTH_HINTS: Final = (
    "birth|born|b-day|bday|dob|d.o|d. o|gebor|geb.|geburt|né|ne le|nee le|naissance|naci|nato il|nata il|nasc|geboorte|fød|föd|fodt|"
    "fods|synty|urodz|narozen|szület|рожд|родил|出生|生日|生年月日"
)
_FIRST_YEAR: Final = 1900


def _is_ssn(match: re.Match[str]) -> bool:
    """Return whether a number may have been issued (20 CFR 422.103 and the rules before), and is written or named as an SSN."""
    digits = digits_of(match[0])
    area, group, serial = digits[:3], digits[3:5], digits[5:]
    is_possible = area not in ("000", "666") and area < "900" and group != "00" and serial != "0000" and digits not in _ADVERTISED
    return is_possible and (match[1].strip() == "-" or follows(_SSN_WORDS, match) or precedes(_SSN_BEHIND, match))


def _is_birth_date(match: re.Match[str]) -> bool:
    return (follows(_BORN, match) or precedes(_WAS_BORN, match)) and _may_be_date(match[0])


def _may_be_date(text: str) -> bool:
    """Return whether the date exists. A date with the month in words is accepted as it is."""
    parts = [int(part) for part in re.findall(r"\d+", text)]
    if len(parts) == 1:
        digits = digits_of(text)
        return _is_day(int(digits[:4]), int(digits[4:6]), int(digits[6:])) or _is_day(int(digits[4:]), int(digits[2:4]), int(digits[:2]))
    if len(parts) == 2:
        return 1 <= parts[0] <= 31 and (parts[1] >= _FIRST_YEAR or parts[1] < 100)
    if parts[0] >= 1000:
        return _is_day(*parts)
    year = parts[2] if parts[2] >= 100 else 2000 + parts[2]  # which century does not matter but for the 29th of February
    return _is_day(year, parts[1], parts[0]) or _is_day(year, parts[0], parts[1])


def _is_day(year: int, month: int, day: int) -> bool:
    try:
        return date(year, month, day).year >= _FIRST_YEAR
    except ValueError:
        return False


SSN: Final = PatternDetector("ssn", _SSN, _is_ssn)
BIRTH_DATE: Final = PatternDetector("birth_date", _DATE, _is_birth_date, hints=_BIRTH_HINTS.split("|"))


_DOCUMENT_NAMES: Final = (
    "passport|reisepass|passeport|pasaporte|passaporto|passaporte|paspoort|paszport|pass-nr|passnummer|паспорт|护照|旅券|여권|"
    "personalausweis|ausweisnummer|ausweisnr|ausweis|ausweis-nr|carte d'identité|carta d'identità|identity card|id card|"
    "identiteitskaart|dowód osobisty|dowodu osobistego|driving licence|driving license|driver's licence|driver's license|"
    "drivers license|driver license|führerschein|permis de conduire|carnet de conducir|permiso de conducir|patente|rijbewijs|körkort|"
    "ajokortti|prawo jazdy|medicare|health card|снилс|snils|taj|versichertennummer|krankenversicherungsnummer|kvnr|nss|imss|"
    "philhealth|umid|licence plate|license plate|number plate|kennzeichen|imei|versicherungsnummer|rentenversicherungsnummer|"
    "account number|account no|acct no|kontonummer|konto-nr|numéro de compte|número de cuenta|rekeningnummer|routing number|"
    "sort code|policy number|policy no|patient number|medical record|mrn|krankenkasse"
)
_DOCUMENT_NAME: Final = re.compile(rf"(?<![^\W\d_])(?:{any_of(_DOCUMENT_NAMES.split('|'))})(?![^\W\d_])")
_DOCUMENT_NUMBER: Final = re.compile(
    r"(?i)(?:[ \t]{1,3}+(?:no|nr|number|nummer|num|n[úu]mero|num[ée]ro|n°|nº|numer|#)\.?+)?"
    r"(?:[\s:=#()-]|\b(?:is|ist|lautet|war|was|es|est|è|jest|on)\b){0,6}"
    r"((?:[A-Z]{0,5}+\d\w{0,16}+|[A-Z0-9]{1,6}+(?=[ \t_/.-]{1,3}\w*\d))(?>(?:[ \t_/.-]{1,3}(?=\w*\d|[A-Z]{1,2}\b)[A-Z0-9]{1,9}+){0,6}))"
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

    def find(self, text: str) -> list[PrivateFinding]:
        if not has_digits(text, _LEAST_FIGURES):
            return []
        return [*_named(text), *(finding for detector in _OF_OWN_FORM for finding in detector.find(text))]


def _named(text: str) -> Iterator[PrivateFinding]:
    for name in _DOCUMENT_NAME.finditer(lower_in_place(text)):
        number = _DOCUMENT_NUMBER.match(text, name.end())
        if number is not None and has_digits(number[1], _LEAST_FIGURES):
            yield PrivateFinding(*number.span(1), "national_id", number[1])


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
    """Return whether the last character is the check digit of a Hong Kong identity card: weights 9 to 2, modulo 11."""
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
    return sum(sum(divmod(value, 10)) for value in sums) % 10 == int(number[11]) and _is_day(2000, int(number[4:6]), int(number[2:4]))


_OF_OWN_FORM: Final = tuple(
    PatternDetector("national_id", pattern, check, group=1)
    for pattern, check in ((_NINO, _is_insured), (_SINGAPORE, _is_singapores), (_HONG_KONG, _is_hong_kongs), (_PENSION, _is_of_a_pension))
)
DOCUMENT: Final = DocumentDetector()


_MODULES: Final = {
    name: tuple(modules.split())
    for modules, names in {
        "ar.dni ar.cuit": "cuit/cuil",
        "at.vnr at.tin": "svnr/sv-nummer/sv-nr/sozialversicherungsnummer/versicherungsnummer/ecard",
        "au.tfn": "tfn/tax file number/tax file",
        "au.abn": "abn",
        "be.nn be.bis": "rijksregister/rijksregisternummer/registre national/insz/niss/nationaal nummer/numéro national",
        "bg.egn bg.pnf": "егн/egn/лнч",
        "br.cpf br.cnpj": "cpf/cnpj",
        "ca.sin": "sin/social insurance number/social insurance/nas",
        "ch.ssn": "ahv/avs/oasi/ahv-nummer/ahv-nr/n° avs",
        "cl.rut": "rut/run",
        "cn.ric": "身份证/身份证号/身份证号码/resident identity card",
        "co.nit": "nit",
        "cz.rc sk.rc": "rodné číslo/rodne cislo/rodného čísla/r.č/rč",
        "de.idnr de.stnr": "steuer-id/steuerid/steueridentifikationsnummer/steuer-identifikationsnummer/idnr/steuernummer/tax id/tin",
        "dk.cpr": "cpr/cpr-nummer/cpr-nr/personnummer",
        "do.cedula ec.ci uy.rut": "cédula/cedula",
        "ee.ik": "isikukood",
        "es.dni es.nie es.nif ar.dni pe.cui": "dni",
        "es.nif es.dni es.nie pt.nif": "nif",
        "es.nie": "nie",
        "fi.hetu": "henkilötunnus/henkilotunnus/hetu/personbeteckning",
        "fr.nir": "sécurité sociale/securite sociale/nir/insee/numéro de sécu/n° de sécu/numéro ss",
        "fr.nif": "numéro fiscal/spi",
        "gb.nhs": "nhs/nhs number/nhs no",
        "gb.utr": "utr/unique taxpayer reference",
        "gr.amka": "αμκα/amka",
        "gr.vat": "αφμ/afm",
        "hr.oib": "oib",
        "id.nik": "nik/ktp",
        "ie.pps": "pps/ppsn/pps number/pps no",
        "il.idnr": "תעודת זהות/ת.ז/teudat zehut/israeli id/mispar zehut",
        "in_.aadhaar": "aadhaar/aadhar/आधार",
        "in_.pan": "pan/pan number/pan card/permanent account number",
        "is_.kennitala": "kennitala/kt",
        "it.codicefiscale": "codice fiscale/cod. fiscale/cod. fisc/c.f",
        "jp.in_": "マイナンバー/my number/個人番号/mynumber",
        "kr.rrn": "주민등록번호/rrn/resident registration number",
        "lt.asmens": "asmens kodas",
        "lv.pvn": "personas kods",
        "mk.edb": "edb",
        "mx.curp": "curp",
        "mx.rfc": "rfc",
        "my.nric": "mykad/nric/no. kp",
        "nl.bsn": "bsn/burgerservicenummer/sofinummer/sofi",
        "nz.ird": "ird",
        "pe.cui pe.ruc": "cui/ruc",
        "pk.cnic": "cnic",
        "pl.pesel": "pesel",
        "pl.nip": "nip",
        "pt.nif pt.cc": "contribuinte/cartão de cidadão/cartao de cidadao",
        "ro.cnp": "cnp/cod numeric personal",
        "ru.inn": "инн/inn",
        "se.personnummer no.fodselsnummer fi.hetu": "personnummer/fødselsnummer/fodselsnummer/personal identity number/personal number",
        "si.emso": "emšo/emso/jmbg/матични број/maticni broj/matični broj",
        "th.pin": "เลขประจำตัวประชาชน/thai id",
        "tr.tckimlik": "tckn/tc kimlik/t.c. kimlik/kimlik no/tc no",
        "ua.rntrc": "рнокпп/іпн/rnokpp",
        "us.itin us.ein us.ssn": "itin/ein/taxpayer id",
        "za.idnr": "south african id/sa id/rsa id/id number/id no/identity number/id-nommer",
    }.items()
    for name in names.split("/")
}
"""Modules of `stdnum` for each name that texts give to such numbers."""
_NAME: Final = re.compile(rf"(?<![^\W\d_])(?:{any_of(_MODULES)})(?![^\W\d_])")
_WORD: Final = re.compile(r"[A-Za-z0-9]{1,20}+")
_REACH: Final = 64
"""Number of characters behind a name in which its number stands."""
_WORDS_BEFORE: Final = 4
"""Most words between a name and its number, as in `number is:`."""
_PARTS: Final = 7
"""Most parts of a number, with separators between them."""
_DIGITS: Final = range(7, 17)
_BETWEEN: Final = re.compile(r"[\W_]")
_BESIDE: Final = 4
"""Most characters between a number and the name behind it."""


class NationalIdDetector:
    """Finds the numbers that a text names."""

    def find(self, text: str) -> list[PrivateFinding]:
        if not has_digits(text, _DIGITS.start):
            return []
        found = (_number_behind(text, name) or _number_before(text, name) for name in _NAME.finditer(lower_in_place(text)))
        return list(filter(None, found))


def has_check_digits() -> bool:
    """Return whether the extra `privacy` is installed."""
    return find_spec("stdnum") is not None


def _number_behind(text: str, name: re.Match[str]) -> PrivateFinding | None:
    """Return the longest valid number made of the first words behind a name."""
    modules = _MODULES[name[0]]
    words = list(_WORD.finditer(text, name.end(), name.end() + _REACH))
    for first, word in enumerate(words[: _WORDS_BEFORE + 1]):
        for last in reversed(words[first : first + _PARTS]):
            number = text[word.start() : last.end()]
            if len(digits_of(number)) in _DIGITS and _is_valid(number, modules):
                return PrivateFinding(word.start(), last.end(), "national_id", number)
    return None


def _number_before(text: str, name: re.Match[str]) -> PrivateFinding | None:
    """Return the valid number made of the words directly before a name: `12345678903 (OIB)`."""
    begin = max(0, name.start() - _REACH)
    words = list(_WORD.finditer(text, begin, name.start()))[-_PARTS:]
    modules = _MODULES[name[0]]
    if not words or name.start() - words[-1].end() > _BESIDE:
        return None
    for word in words:
        number = text[word.start() : words[-1].end()]
        if len(digits_of(number)) in _DIGITS and _is_valid(number, modules):
            return PrivateFinding(word.start(), words[-1].end(), "national_id", number)
    return None


def _is_valid(number: str, modules: Sequence[str]) -> bool:
    """Return whether a number is valid as it stands, or without its separators."""
    checks = [import_module(f"stdnum.{module}") for module in modules]
    return any(check.is_valid(number) or check.is_valid(_BETWEEN.sub("", number)) for check in checks)
