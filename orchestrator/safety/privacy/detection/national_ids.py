"""National id numbers that a text names. Their check digits are python-stdnum's (the extra `privacy`)."""

import re
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from .finding import Finding
from .patterns import any_of, digits_of, has_digits, lowered

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

    def find(self, text: str) -> list[Finding]:
        if not has_digits(text, _DIGITS.start):
            return []
        found = (_number_behind(text, name) or _number_before(text, name) for name in _NAME.finditer(lowered(text)))
        return list(filter(None, found))


def has_check_digits() -> bool:
    """Return whether the extra `privacy` is installed."""
    return find_spec("stdnum") is not None


def _number_behind(text: str, name: re.Match[str]) -> Finding | None:
    """Return the longest valid number made of the first words behind a name."""
    modules = _MODULES[name[0]]
    words = list(_WORD.finditer(text, name.end(), name.end() + _REACH))
    for first, word in enumerate(words[: _WORDS_BEFORE + 1]):
        for last in reversed(words[first : first + _PARTS]):
            number = text[word.start() : last.end()]
            if len(digits_of(number)) in _DIGITS and _is_valid(number, modules):
                return Finding(word.start(), last.end(), "national_id", number)
    return None


def _number_before(text: str, name: re.Match[str]) -> Finding | None:
    """Return the valid number made of the words directly before a name: `12345678903 (OIB)`."""
    begin = max(0, name.start() - _REACH)
    words = list(_WORD.finditer(text, begin, name.start()))[-_PARTS:]
    modules = _MODULES[name[0]]
    if not words or name.start() - words[-1].end() > _BESIDE:
        return None
    for word in words:
        number = text[word.start() : words[-1].end()]
        if len(digits_of(number)) in _DIGITS and _is_valid(number, modules):
            return Finding(word.start(), words[-1].end(), "national_id", number)
    return None


def _is_valid(number: str, modules: Sequence[str]) -> bool:
    """Return whether a number is valid as it stands, or without its separators."""
    checks = [import_module(f"stdnum.{module}") for module in modules]
    return any(check.is_valid(number) or check.is_valid(_BETWEEN.sub("", number)) for check in checks)
