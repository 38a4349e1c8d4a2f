"""Tools that nobody has declared a source of: whose words their results are is told by what they take, and by what they return."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final
from unicodedata import category

from pydantic import JsonValue

_NETWORK: Final = frozenset(
    {"url", "urls", "uri", "uris", "link", "links", "href", "website", "webpage", "domain", "host", "hostname", "endpoint", "feed"}
)
_NAME: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_UNSPACED: Final = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3105-\u312f\u3400-\u4dbf\u4e00-\u9fff"
    r"\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Letters of scripts that have no spaces between words: Thai, Lao, Burmese, Khmer, Japanese and Chinese."""
_WORD: Final = re.compile(rf"[{_UNSPACED}]|(?:(?![{_UNSPACED}])[^\W\d_])+")
_FEW: Final = 4
"""Words of a name, a title or a state. Fewer hardly make an instruction."""


def takes_addresses(parameters: Iterable[str]) -> bool:
    """Say whether one of the parameters is named like an address of the network: `url`, `page_url`, `hostName`."""
    return any(word.lower() in _NETWORK for name in parameters for word in _NAME.findall(name))


def is_prose(result: str) -> bool:
    """Say whether a result holds a text of more than four words, in which somebody may have written an instruction.

    Of JSON each text is looked at by itself.
    """
    return _is_long(result) and any(map(_is_long, _texts(result)))


def _is_long(text: str) -> bool:
    """Say whether a text has more than a few words. One letter alone, or of a script without spaces, counts as half of one."""
    words = 0.0
    for word in _WORD.finditer(text if text.isascii() else _without_marks(text)):
        words += 0.5 if len(word.group()) == 1 else 1
        if words > _FEW:
            return True
    return False


def _without_marks(text: str) -> str:
    """Return the text without accents and vowel signs that stand by themselves, and what is not seen: all of these would cut words."""
    return "".join(letter for letter in text if category(letter) not in ("Mn", "Mc", "Me", "Cf"))


def _texts(result: str) -> Iterator[str]:
    try:
        value: JsonValue = json.loads(result)
    except (ValueError, RecursionError):
        yield result
        return
    left = [value]
    while left:
        match left.pop():
            case str(text):
                yield text
            case dict(members):
                left += members.values()
                yield from members
            case list(members):
                left += members
