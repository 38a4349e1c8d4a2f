"""All detectors together, which look at a text as it stands and without disguises.

Disguises are undone first: other digits, invisible characters, spaces in between, encodings. Each clear text maps its characters to their
positions in the original. There are a few clear texts, each at most a few times as long as the text.
"""

import logging
import re
import unicodedata
from binascii import a2b_base64, a2b_hex
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property, lru_cache
from typing import Final, NamedTuple, cast

from ....protocols import ConfigError
from ...util.plugins import Plugin, find_plugin
from . import PLUGIN, UNCHECKED, Detector, PatternDetector, PresidioDetector, PrivateFinding, digits_of, follows
from .contacts import ADDRESSES, EMAIL, IP4, IP6, MAC, URL, PhoneDetector, has_numbering_plans
from .id_numbers import BIRTH_DATE, DOCUMENT, SSN, NationalIdDetector, has_check_digits
from .keys import KEYS

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


logger = logging.getLogger(__name__)

_SUSPICIOUS: Final = re.compile(
    r"[\u00ad\u034f\u061c\u115f\u1160\u180e\u200b-\u200f\u2010-\u2015\u2060-\u2064\u2212\ufe00-\ufe0f\ufeff\U000e0000-\U000e01ef]"
)
"""Characters that Unicode's normal form keeps: invisible ones, and dashes of all lengths."""
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")
_TAGS: Final = 0xE0000
"""Invisible copies of the ASCII characters begin here; models read them."""
_SPACED: Final = re.compile(r"(?<!\w)\w(?!\S)(?:\s\S(?!\S)){7,}+(?:\s\w(?=[^\w\s]))?")
_ESCAPE: Final = re.compile(r"%([0-9A-Fa-f]{2})|\\u([0-9A-Fa-f]{4})|\\x([0-9A-Fa-f]{2})|&#(?:x([0-9A-Fa-f]{2,6})|(\d{2,7}));")
_PRINTABLE: Final = re.compile(rb"[\t\n\r\x20-\x7e]{8,}+")
_LAYERS: Final = 2
"""Layers of encoding that are undone."""
_LONGEST_SIGN: Final = 3
"""Characters that one sign stands for, as `㎢` does. Whole phrases in one sign are left as they are."""
_AROUND: Final = 256
"""Characters around an escape that are read again with it."""
_GAP: Final = "\x00"
"""Stands between what was decoded from different places, so that no number goes on from one into the next."""


class ClearText(NamedTuple):
    """A text as it may be read, and the start and end of each of its characters in the original."""

    text: str
    starts: Sequence[int]
    ends: Sequence[int]

    def place(self, finding: PrivateFinding, original: str) -> PrivateFinding:
        """Return the finding with its position in the original."""
        start, end = self.starts[finding.start], self.ends[finding.end - 1]
        return PrivateFinding(start, end, finding.type, original[start:end])


class _Piece(NamedTuple):
    text: str
    start: int
    end: int
    """End of the part that the piece replaces, in the text that it was made of."""


class _Encoding(NamedTuple):
    """A way to write bytes as characters, each of which stands for some bits."""

    pattern: re.Pattern[str]
    bits: int
    group: int
    """Characters that stand for whole bytes together: where the first ones begin is not known."""
    decode: Callable[[str], bytes]
    """Decodes digits that stand for whole bytes."""


def _from_base64(digits: str) -> bytes:
    """Decode with or without padding; one digit alone stands for nothing."""
    whole = digits[:-1] if len(digits) % 4 == 1 else digits
    return a2b_base64(f"{whole.translate(_URL_SAFE)}==")


def _from_hex(digits: str) -> bytes:
    return a2b_hex(digits[: len(digits) - len(digits) % 2])


_URL_SAFE: Final = str.maketrans("-_", "+/")
_ENCODINGS: Final = (
    _Encoding(re.compile(r"[A-Za-z0-9+/_-]{16,}+(?>(?:\r?\n[A-Za-z0-9+/_-]{16,}+)*)"), 6, 4, _from_base64),
    _Encoding(re.compile(r"[0-9A-Fa-f]{2}(?:[ :]?+[0-9A-Fa-f]{2}){7,}+"), 4, 2, _from_hex),
)
_BETWEEN_DIGITS: Final = "\r\n :"


def undisguise(text: str) -> Iterator[ClearText]:
    """Yield the text as it is displayed, and with other disguises undone if there are any."""
    seen = _normalize(ClearText(text, range(len(text)), range(1, len(text) + 1)))
    yield seen
    if _ESCAPE.search(seen.text):
        yield _replace(seen, _ESCAPE, _unescape, around=_AROUND)
    if _SPACED.search(seen.text):
        yield _replace(seen, _SPACED, _close_gaps, around=_AROUND)
    decoded = seen
    for _ in range(_LAYERS):
        decoded = _build(decoded, _decode(decoded.text))
        if not decoded.text:
            return
        yield decoded


def _normalize(clear: ClearText) -> ClearText:
    text = clear.text
    if text.isascii() or (unicodedata.is_normalized("NFKC", text) and not _SUSPICIOUS.search(text)):
        return clear
    return _replace(clear, _NOT_ASCII, lambda match: [_Piece(_normalize_character(match[0]), *match.span())], around=len(text))


@lru_cache(maxsize=4096)
def _normalize_character(character: str) -> str:
    """Return how a character looks, in ASCII if possible; an empty text if it is invisible."""
    if _TAGS < ord(character) < _TAGS + 0x7F:
        return chr(ord(character) - _TAGS)
    shown = unicodedata.normalize("NFKC", character)
    if len(shown) > _LONGEST_SIGN:
        return character
    if unicodedata.category(shown[0]) == "Pd" or shown == "\u2212":
        return "-"
    return "" if _SUSPICIOUS.match(shown) or unicodedata.category(shown[0]) == "Cf" else shown


def _unescape(match: re.Match[str]) -> list[_Piece]:
    code = int(match[match.lastindex or 0], 10 if match[5] else 16)
    return [_Piece(chr(min(code, 0x10FFFF)), *match.span())]


def _close_gaps(match: re.Match[str]) -> list[_Piece]:
    return [_Piece(match.string[place], place, place + 1) for place in range(match.start(), match.end(), 2)]


def _decode(text: str) -> Iterator[_Piece]:
    """Yield the readable parts of encoded bytes, decoded from each possible start: the first character may not belong to them."""
    for code in _ENCODINGS:
        for run in code.pattern.finditer(text):
            places = [place for place in range(*run.span()) if text[place] not in _BETWEEN_DIGITS]
            digits = "".join(text[place] for place in places)
            for first in range(code.group):
                yield from _printable(code, digits[first:], places[first:])


def _printable(code: _Encoding, digits: str, places: Sequence[int]) -> Iterator[_Piece]:
    for readable in _PRINTABLE.finditer(code.decode(digits)):
        for place, byte in enumerate(readable[0], readable.start()):
            yield _Piece(chr(byte), places[8 * place // code.bits], places[(8 * place + 7) // code.bits] + 1)
        yield _Piece(_GAP, places[0], places[0] + 1)


def _replace(clear: ClearText, pattern: re.Pattern[str], pieces: Callable[[re.Match[str]], Iterable[_Piece]], *, around: int) -> ClearText:
    """Return a clear text with other pieces in the place of each match, and the text around them."""

    def all_pieces() -> Iterator[_Piece]:
        end = 0
        for match in pattern.finditer(clear.text):
            yield from _surroundings(clear.text, end, match.start(), around)
            yield from pieces(match)
            end = match.end()
        yield from _surroundings(clear.text, end, len(clear.text), around)

    return _build(clear, all_pieces())


def _surroundings(text: str, start: int, end: int, around: int) -> Iterator[_Piece]:
    """Yield the beginning and the end of the text between two places."""
    if end - start <= 2 * around:
        yield _Piece(text[start:end], start, end)
        return
    yield _Piece(text[start : start + around], start, start + around)
    yield _Piece(_GAP, start, start + 1)
    yield _Piece(text[end - around : end], end - around, end)


def _build(clear: ClearText, pieces: Iterable[_Piece]) -> ClearText:
    """Return the pieces of a clear text as a new one."""
    texts: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for text, start, end in pieces:
        texts.append(text)
        if len(text) == end - start:
            starts += clear.starts[start:end]
            ends += clear.ends[start:end]
        else:
            starts += [clear.starts[start]] * len(text)
            ends += [clear.ends[end - 1]] * len(text)
    return ClearText("".join(texts), starts, ends)


_BY_FORM: Final[tuple[Detector, ...]] = (EMAIL, CARD, GROUPED_CARD, IBAN, SSN, IP4, IP6, MAC, URL, BIRTH_DATE, DOCUMENT, *ADDRESSES, *KEYS)
STRUCTURED: Final[Sequence[Detector]] = (*_BY_FORM, PhoneDetector(numbering_plans=False))
"""Detectors that work without any extra."""


class StandardDetectors:
    """Combines detectors.

    Args:
        detectors: look at the text with all disguises undone, too.
        slow: look at the text as it stands.
    """

    def __init__(self, detectors: Sequence[Detector], slow: Sequence[Detector] = ()) -> None:
        self._detectors = tuple(detectors)
        self._slow = tuple(slow)

    def find(self, text: str) -> list[PrivateFinding]:
        """Return the findings in the text as it stands and without disguises; some of them overlap."""
        found = [clear.place(finding, text) for clear in undisguise(text) for finding in _findings(self._detectors, clear.text)]
        return [*found, *_findings(self._slow, text)]


def _findings(detectors: Sequence[Detector], text: str) -> Iterator[PrivateFinding]:
    for detector in detectors:
        yield from detector.find(text)


_TYPE: Final = re.compile(r"[a-z][a-z_]{0,29}")


class PluginDetector:
    """A detector of another distribution, loaded when the first text comes. It fails closed.

    Its findings are checked, and count whatever types the policy lists.

    Raises:
        ConfigError: there is no such plugin.
    """

    def __init__(self, name: str) -> None:
        self._plugin = find_plugin("detectors", name)

    def find(self, text: str) -> list[PrivateFinding]:
        """Return the findings, or the whole text as one if the plugin fails, or returns something that is no finding in the text."""
        try:
            return [_checked(finding, text) for finding in self._detector.find(text)]
        except (Exception, SystemExit) as error:  # a task boundary: a plugin is third-party code, and a failing one must let nothing pass
            logger.warning("%s has failed, so that the text counts as private: %s", self._plugin.described, _cause(error))
            return [PrivateFinding(0, len(text), UNCHECKED, text)]

    @cached_property
    def _detector(self) -> Detector:
        return load_detector(self._plugin)


def load_detector(plugin: Plugin) -> Detector:
    """Load a plugin and return its detector: the object itself, or that of a class or function. Raises `ConfigError` for anything else."""
    loaded = plugin.load()
    with plugin.blamed("has made no detector"):
        found = loaded() if callable(loaded) and not hasattr(type(loaded), "find") else loaded
    if not callable(getattr(found, "find", None)):
        raise plugin.misfit("a detector with a method `find`", found)
    return cast(Detector, found)


def _checked(finding: object, text: str) -> PrivateFinding:
    """Return a plugin's finding, with a type that says whose it is. Raises `ValueError` or `TypeError` for anything else."""
    start, end, kind, _ = cast(PrivateFinding, finding)
    if not 0 <= start < end <= len(text) or _TYPE.fullmatch(kind) is None:
        raise ValueError("no finding in the text")
    return PrivateFinding(start, end, f"{PLUGIN}{kind}", text[start:end])


def _cause(error: BaseException) -> str:
    """Return an error without the text that it may quote: the plugin's own, or its class alone."""
    return error.message if isinstance(error, ConfigError) else type(error).__name__


@cache
def standard_detectors(spacy_model: str | None = None, plugins: tuple[str, ...] = ()) -> StandardDetectors:
    """Return all installed detectors, made once; with a spaCy model, also for names of people, and those of plugins.

    Raises:
        ConfigError: the model, the extra `presidio` or a plugin is not installed.
    """
    by_form: list[Detector] = [*_BY_FORM, PhoneDetector(numbering_plans=has_numbering_plans())]
    if has_check_digits():
        by_form.append(NationalIdDetector())
    slow: list[Detector] = [] if spacy_model is None else [PresidioDetector(spacy_model)]
    return StandardDetectors(by_form, [*slow, *map(PluginDetector, plugins)])
