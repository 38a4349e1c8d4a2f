"""Numbers that countries give to people, where a text names them. Their check digits are python-stdnum's (the extra `privacy`)."""

import re
from importlib import import_module
from importlib.util import find_spec
from typing import Final, NamedTuple

from .finding import Finding
from .patterns import digits_of


class _Kind(NamedTuple):
    names: str
    """What such a number is called: a pattern."""
    modules: tuple[str, ...]
    """Of `stdnum`."""


_KINDS: Final = (
    _Kind(r"tax file number|\bTFN\b", ("au.tfn",)),
    _Kind(r"\bCPF\b", ("br.cpf",)),
    _Kind(r"social insurance|\bSIN\b", ("ca.sin",)),
    _Kind(r"\bAHV|\bAVS\b|\bOASI\b", ("ch.ssn",)),
    _Kind(r"rodné číslo", ("cz.rc",)),
    _Kind(r"Steuer-?ID|Steueridentifikation|\bIdNr\b", ("de.idnr",)),
    _Kind(r"\bCPR\b", ("dk.cpr",)),
    _Kind(r"\b(?:DNI|NIF|NIE)\b", ("es.dni", "es.nie")),
    _Kind(r"henkilötunnus|\bhetu\b", ("fi.hetu",)),
    _Kind(r"sécurité sociale|\bNIR\b", ("fr.nir",)),
    _Kind(r"\bNHS\b", ("gb.nhs",)),
    _Kind(r"\baadhaar\b", ("in_.aadhaar",)),
    _Kind(r"codice fiscale", ("it.codicefiscale",)),
    _Kind(r"\bCURP\b", ("mx.curp",)),
    _Kind(r"\bBSN\b|burgerservicenummer", ("nl.bsn",)),
    _Kind(r"personnummer|fødselsnummer|personal identity number", ("se.personnummer", "no.fodselsnummer")),
    _Kind(r"\bPESEL\b", ("pl.pesel",)),
)
_NAME: Final = re.compile("(?i)" + "|".join(f"({kind.names})" for kind in _KINDS))
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
    words = list(_WORD.finditer(text, name.end(), name.end() + _REACH))
    for first, word in enumerate(words[: _WORDS_BEFORE + 1]):
        for last in reversed(words[first : first + _PARTS]):
            number = text[word.start() : last.end()]
            if len(digits_of(number)) in _DIGITS and _is_valid(number, _KINDS[(name.lastindex or 1) - 1]):
                return Finding(word.start(), last.end(), "national_id", number)
    return None


def _is_valid(number: str, kind: _Kind) -> bool:
    return any(import_module(f"stdnum.{module}").is_valid(number) for module in kind.modules)
