"""Compare texts that differ only in case."""

import re
from typing import Final

_ADDRESS: Final = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*://)?(?P<local>[^\s@/?#]*@)?(?P<host>[\w.-]+)(?P<rest>.*)", re.IGNORECASE | re.DOTALL
)
_BETWEEN: Final = re.compile(r"(\s+)")
_JOINTS: Final = re.compile(r"[-'’.,;:!?()\"]")
"""Between the words of a compound or a name, and around words."""
_LOCAL_JOINTS: Final = re.compile(r"[._+-]")


def folded(text: str) -> str:
    """Return the text in lower case, letter by letter. A letter whose lower case is of another alphabet stays: the kelvin sign is not k."""
    return text.lower() if text.isascii() else "".join(map(_small, text))


def is_same(value: str, found: str) -> bool:
    """Return whether two texts that differ in nothing but case mean the same.

    Paths, identifiers and passwords are case-sensitive. Hosts and schemes are not (RFC 3986, 6.2.2.1), and a plain word may begin with a
    capital at the beginning of a sentence.
    """
    return value == found or all(map(_is_same_word, _BETWEEN.split(value), _BETWEEN.split(found)))


def _is_same_word(value: str, found: str) -> bool:
    if value == found:
        return True
    one, other = _ADDRESS.fullmatch(value), _ADDRESS.fullmatch(found)
    if one is not None and other is not None and (one["scheme"] or one["local"] or one["host"].lower().startswith("www.")):
        return one["rest"] == other["rest"] and _begin_alike(one["local"] or "", other["local"] or "", _LOCAL_JOINTS)
    return _begin_alike(value, found, _JOINTS)


def _begin_alike(value: str, found: str, joints: "re.Pattern[str]") -> bool:
    """Tell whether they differ in nothing but the first letters of plain words. They have the same length."""
    pairs = zip(joints.split(value.removesuffix("@")), joints.split(found.removesuffix("@")), strict=True)
    return all(one == other or (one.isalpha() and one[1:] == other[1:]) for one, other in pairs)


def _small(letter: str) -> str:
    small = letter.lower()
    return small if len(small) == 1 and (letter.isascii() or not small.isascii()) else letter
