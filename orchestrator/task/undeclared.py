"""Tools that nobody has declared a source of: whose words their results are is told by what they take, and by what they return."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final

from pydantic import JsonValue

_NETWORK: Final = frozenset(
    {"url", "urls", "uri", "uris", "link", "links", "href", "website", "webpage", "domain", "host", "hostname", "endpoint", "feed"}
)
_NAME: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_WORD: Final = re.compile(r"[^\W\d_]{2,}")
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
    return any(count >= _FEW for count, _ in enumerate(_WORD.finditer(text)))


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
