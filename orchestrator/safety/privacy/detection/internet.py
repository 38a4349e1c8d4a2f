"""E-mail addresses, addresses of machines, and URLs."""

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final

from .finding import Finding
from .patterns import PatternDetector, follows

_LABEL: Final = r"[^\W_][\w-]{0,62}+"
_TOP: Final = r"[^\W\d_]{2,24}+"
_SPELLED_DOT: Final = r"(?:\s?[\[({<]\s?(?:dot|\.)\s?[\])}>]\s?|\sdot\s)"
_DOT: Final = rf"(?:\.|{_SPELLED_DOT})"
# An @, or what is written for it. ` at ` is one only with a ` dot ` behind it.
_DOMAIN: Final = re.compile(
    rf"(?i)(?:@|[ \t]@[ \t]|%40|&#64;|&commat;|\s?[\[({{<]\s?(?:at|@)\s?[\])}}>]\s?)(?:{_LABEL}{_DOT}){{1,8}}{_TOP}"
    rf"|\sat\s(?:{_LABEL}{_SPELLED_DOT}){{1,8}}{_TOP}"
)
_LOCAL: Final = re.compile(r"[\w.+%'~-]{1,64}+")
_NOT_FIRST: Final = ".+%'~-"
_AT_HINTS: Final = ("@", "%40", "&#64;", "&commat;", "at")
_IP4: Final = re.compile(r"(?<![\w.])(?:\d{1,3}(?:\.|\[\.\]|\(\.\)| \. )){3}\d{1,3}(?!\w|\.\d)")
_MAC: Final = re.compile(
    r"(?<![\w:.-])(?:[0-9A-Fa-f]{2}([:-]))(?:[0-9A-Fa-f]{2}\1){4}[0-9A-Fa-f]{2}(?![\w:-])|(?<![\w.])(?:[0-9A-Fa-f]{4}\.){2}[0-9A-Fa-f]{4}(?![\w.])"
)
_BRACKETED: Final = re.compile(r"[\[( ]\.[\]) ]")
_IP6: Final = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}(?:(?:\d{1,3}\.){3}\d{1,3}|[0-9A-Fa-f]{1,4}|)(?![\w:])")
_VERSION: Final = re.compile(r"(?i)(?:\bversion|\brelease|\bv|\bsection|\bclause|\bchapter|§|\brfc \d{1,5},?)[\s:=.-]{0,3}\Z")
_GROUPS: Final = 4
"""Least number of groups of an IPv6 address; with fewer, the first one has to have all of its digits."""
_URL: Final = re.compile(r"(?i)(?:(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{1,20}+://|(?<![\w.@-])www\.)[\w\[][^\s<>\"'`{}|\\^\x00]*+")
_URL_TAIL: Final = ".,;:!?*"
_BRACKETS: Final = {")": "(", "]": "["}


class EmailDetector:
    """Finds e-mail addresses, also where `@` and `.` are spelled: it goes back from what follows the name."""

    def find(self, text: str) -> list[Finding]:
        lowered = text.lower()
        if not any(hint in lowered for hint in _AT_HINTS):
            return []
        return [finding for domain in _DOMAIN.finditer(text) if (finding := self._finding(text, domain)) is not None]

    def _finding(self, text: str, domain: re.Match[str]) -> Finding | None:
        before = text[max(0, domain.start() - 64) : domain.start()]
        local = _LOCAL.match(before[::-1])
        name = before[len(before) - local.end() :].lstrip(_NOT_FIRST) if local else ""
        if not name:
            return None
        start = domain.start() - len(name)
        return Finding(start, domain.end(), "email", text[start : domain.end()])


class UrlDetector:
    """Finds URLs with a scheme or `www.`, without the punctuation of the sentence around."""

    def find(self, text: str) -> list[Finding]:
        if "://" not in text and "www." not in text.lower():
            return []
        urls = ((match.start(), _without_tail(match[0])) for match in _URL.finditer(text))
        return [Finding(start, start + len(url), "url", url) for start, url in urls]


def _without_tail(url: str) -> str:
    """Return the URL without trailing punctuation. A closing bracket without its opening one belongs to the sentence."""
    surplus = {closing: url.count(closing) - url.count(opening) for closing, opening in _BRACKETS.items()}
    end = len(url)
    while (last := url[end - 1]) in _URL_TAIL or surplus.get(last, 0) > 0:
        surplus[last] = surplus.get(last, 0) - 1
        end -= 1
    return url[:end]


def _is_ip4(match: re.Match[str]) -> bool:
    """Return whether an IPv4 address identifies a machine: it is not loopback, unspecified or reserved, and not named as a
    version."""
    try:
        address = IPv4Address(_BRACKETED.sub(".", match[0]))
    except AddressValueError:
        return False
    return not (address.is_loopback or address.is_unspecified or address.is_reserved or follows(_VERSION, match))


def _is_mac(match: re.Match[str]) -> bool:
    """Return whether a MAC address identifies a device: it is no broadcast or zero address, and has a letter, since six small numbers
    may be a time."""
    figures = re.sub(r"[:.-]", "", match[0]).lower()
    return len(set(figures)) > 1 and figures != "ffffffffffff" and any(figure in "abcdef" for figure in figures)


def _is_ip6(match: re.Match[str]) -> bool:
    try:
        address = IPv6Address(match[0])
    except AddressValueError:
        return False
    groups = match[0].replace("::", ":").strip(":").split(":")
    is_slice = len(groups) < _GROUPS and len(groups[0]) < 4  # as of a list: `1::2`
    has_digit = any(character.isdecimal() for character in match[0])  # `face::bed` is a name in a program
    return has_digit and not (is_slice or address.is_loopback or address.is_unspecified)


EMAIL: Final = EmailDetector()
URL: Final = UrlDetector()
IP4: Final = PatternDetector("ip", _IP4, _is_ip4, hints=".")
MAC: Final = PatternDetector("ip", _MAC, _is_mac, hints=(":", "-", "."))
IP6: Final = PatternDetector("ip", _IP6, _is_ip6, hints=":")
