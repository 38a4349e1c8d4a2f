"""Numbers that countries give to people, where a text names them. Their check digits are python-stdnum's (the extra `privacy`)."""

import re
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from .finding import Finding
from .patterns import digits_of

_MODULES: Final = {
    **dict.fromkeys(("tfn", "tax file number"), ("au.tfn",)),
    "cpf": ("br.cpf",),
    **dict.fromkeys(("sin", "social insurance number"), ("ca.sin",)),
    **dict.fromkeys(("ahv", "avs", "oasi"), ("ch.ssn",)),
    "rodné číslo": ("cz.rc",),
    **dict.fromkeys(("steuer-id", "steuerid", "steueridentifikationsnummer", "idnr"), ("de.idnr",)),
    "cpr": ("dk.cpr",),
    **dict.fromkeys(("dni", "nif", "nie"), ("es.dni", "es.nie")),
    **dict.fromkeys(("henkilötunnus", "hetu"), ("fi.hetu",)),
    **dict.fromkeys(("sécurité sociale", "nir"), ("fr.nir",)),
    "nhs": ("gb.nhs",),
    "aadhaar": ("in_.aadhaar",),
    "codice fiscale": ("it.codicefiscale",),
    "curp": ("mx.curp",),
    **dict.fromkeys(("bsn", "burgerservicenummer"), ("nl.bsn",)),
    **dict.fromkeys(("personnummer", "fødselsnummer", "personal identity number"), ("se.personnummer", "no.fodselsnummer")),
    "pesel": ("pl.pesel",),
}
"""Of `stdnum`, for each of the names that texts give to such numbers."""
_NAME: Final = re.compile(rf"(?i)\b(?:{'|'.join(_MODULES)})(?![^\W\d_])")
_WORD: Final = re.compile(r"[A-Za-z0-9]{1,20}+")
_REACH: Final = 64
"""Characters behind a name in which its number stands."""
_WORDS_BEFORE: Final = 4
"""Between a name and its number, as in `number is:`."""
_PARTS: Final = 7
"""Of a number, with something between them."""
_DIGITS: Final = range(7, 17)


class NationalIdDetector:
    """Finds the numbers that a text names."""

    def find(self, text: str) -> list[Finding]:
        return [finding for name in _NAME.finditer(text) if (finding := _number_behind(text, name)) is not None]


def has_check_digits() -> bool:
    """Whether the extra `privacy` is installed."""
    return find_spec("stdnum") is not None


def _number_behind(text: str, name: re.Match[str]) -> Finding | None:
    """The longest of the first words behind a name that together are such a number."""
    modules = _MODULES.get(name[0].lower(), ())  # none for letters that only count as the same, as a dotless i does
    words = list(_WORD.finditer(text, name.end(), name.end() + _REACH))
    for first, word in enumerate(words[: _WORDS_BEFORE + 1]):
        for last in reversed(words[first : first + _PARTS]):
            number = text[word.start() : last.end()]
            if len(digits_of(number)) in _DIGITS and _is_valid(number, modules):
                return Finding(word.start(), last.end(), "national_id", number)
    return None


def _is_valid(number: str, modules: Sequence[str]) -> bool:
    return any(import_module(f"stdnum.{module}").is_valid(number) for module in modules)
