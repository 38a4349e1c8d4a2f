"""Regular expressions: those of all modules match alike on every supported Python."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from re import _constants as codes  # type: ignore[attr-defined]  # it has no stubs
from re import _parser as parser  # type: ignore[attr-defined]  # it has no stubs
from typing import Any

from nearfar import cloud, device, orchestrator, protocols

REPEATS = {codes.MAX_REPEAT, codes.MIN_REPEAT}
SETTLED = {codes.POSSESSIVE_REPEAT, codes.ATOMIC_GROUP, codes.ASSERT, codes.ASSERT_NOT}


def test_no_pattern_repeats_possessively_what_can_backtrack() -> None:
    # Python 3.11.0 to 3.11.4, which Debian 12 has, matches too little then (gh-106052); an atomic group around the repeat does not.
    known = list(patterns())
    assert len(known) > 100
    assert [
        f"{name}: {pattern.pattern!r:.120}" for name, pattern in known if is_misread(parser.parse(pattern.pattern, pattern.flags))
    ] == []


def test_such_a_pattern_is_found() -> None:
    assert is_misread(parser.parse("-(?:[^-]|-(?!-)){0,9}+"))
    assert not is_misread(parser.parse("-(?>(?:[^-]|-(?!-)){0,9})(?:[ab]{1,2}+c)*+"))


def patterns() -> Iterator[tuple[str, re.Pattern[str]]]:
    """Yield the compiled patterns of all modules, each with the name that holds it."""
    for package in (cloud, device, orchestrator, protocols):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name.endswith("__main__"):
                continue
            for name, value in vars(importlib.import_module(found.name)).items():
                yield from ((f"{found.name}.{name}", pattern) for pattern in held(value))


def held(value: object, depth: int = 3) -> Iterator[re.Pattern[str]]:
    """Yield the patterns of a value, and of what it holds."""
    if isinstance(value, re.Pattern):
        if isinstance(value.pattern, str):
            yield value
    elif depth and not isinstance(value, (type, str)):
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list, frozenset)) else ()
        fields = [getattr(value, name, None) for name in getattr(value, "__dataclass_fields__", ())]
        for each in (*inner, *fields):
            yield from held(each, depth - 1)


def is_misread(parsed: Any) -> bool:  # noqa: ANN401 - the parser carries no types
    """Return whether a parsed pattern holds a possessive repeat of something that can backtrack."""
    return any((code is codes.POSSESSIVE_REPEAT and backtracks(given[2])) or any(map(is_misread, parts(given))) for code, given in parsed)


def backtracks(parsed: Any) -> bool:  # noqa: ANN401 - the parser carries no types
    """Return whether a parsed pattern can match a text in several ways; what is possessive or atomic within it cannot."""
    return any(
        code is codes.BRANCH or (code in REPEATS and given[0] != given[1]) or (code not in SETTLED and any(map(backtracks, parts(given))))
        for code, given in parsed
    )


def parts(given: Any) -> list[Any]:  # noqa: ANN401 - as above
    """Return the parsed patterns within an operation's arguments."""
    if isinstance(given, parser.SubPattern):
        return [given]
    return [part for each in given for part in parts(each)] if isinstance(given, (tuple, list)) else []
