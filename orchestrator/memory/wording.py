"""Find out whether a text names somebody, or repeats what an item says."""

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

_LEAST_NAME: Final = 2
_LEAST_TEXT: Final = 8
"""Characters of a text, below which the same text elsewhere says nothing: "yes" and "tea" are in most runs."""


@dataclass(frozen=True, slots=True)
class Wording:
    """A name, and texts of items, as other texts may repeat them: in other cases, forms of Unicode and spacing, or quoted as JSON."""

    name: re.Pattern[str] | None = None
    texts: frozenset[str] = frozenset()

    @classmethod
    def of(cls, name: str | None, values: Iterable[Any] = ()) -> "Wording":
        """Return the wording of a name and of values. Short texts, and names that are a number or one letter, are not looked for."""
        texts = [text for value in values for text in leaves(value) if len(fold(text)) >= _LEAST_TEXT]
        quoted = [json.dumps(text, ensure_ascii=False)[1:-1] for text in texts]
        return cls(_pattern(fold(name or "")), frozenset(map(fold, (*texts, *quoted))))

    def is_named_in(self, value: Any) -> bool:  # noqa: ANN401 - a value as JSON has it
        """Return whether any text in a value has the name, as whole words."""
        return self.name is not None and any(self.name.search(fold(text)) for text in leaves(value))

    def is_in(self, text: str) -> bool:
        """Return whether a text has the name, or repeats a text."""
        folded = fold(text)
        return (self.name is not None and self.name.search(folded) is not None) or any(one in folded for one in self.texts)


def fold(text: str) -> str:
    """Return a text without what makes no difference: case, forms of Unicode, and kinds of white space."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def leaves(value: Any) -> Iterator[str]:  # noqa: ANN401 - a value as JSON has it
    """Yield all texts and numbers in a value, the names of its fields among them."""
    match value:
        case str():
            yield value
        case Mapping():
            for name, part in value.items():
                yield str(name)
                yield from leaves(part)
        case list() | tuple() | set() | frozenset():
            for part in value:
                yield from leaves(part)
        case int() | float() if not isinstance(value, bool):
            yield str(value)


def _pattern(name: str) -> re.Pattern[str] | None:
    """Return what finds a folded name between other words; scripts that are written without spaces have no such ends of words."""
    if len(name) < _LEAST_NAME or name.isdecimal():
        return None
    before = "" if _is_wide(name[0]) else r"(?<!\w)"
    behind = "" if _is_wide(name[-1]) else r"(?!\w)"
    return re.compile(before + re.escape(name) + behind)


def _is_wide(letter: str) -> bool:
    return unicodedata.east_asian_width(letter) in "WF"
