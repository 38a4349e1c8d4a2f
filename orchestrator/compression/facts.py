"""Find the checkable facts of a text (numbers, identifiers, names), and those that its sources do not contain."""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from ..util.function_words import FUNCTION_WORDS

_WORD: Final = re.compile(r"[\w@.+'’-]*\w")
_GROUPED: Final = re.compile(r"(?<=\d),(?=\d{3}\b)")
_CLOSING_ZEROS: Final = re.compile(r"(\.\d*?)0+$")
_OPENING: Final = frozenset(".!?:;\n-*•\"'“‘([{#>")
"""Characters before the first word of a sentence, a quotation or a line."""
_PREDICATE: Final = re.compile(r"\s+(?:is|was|has|had|are|were|will|did|does|can|[A-Z]\w+)\b")
"""Text after the first word of a sentence that makes this word likely a name."""
_NOT_NAMES: Final = FUNCTION_WORDS | {"also", "assistant", "tool", "user", "yes"}
"""Words that open sentences and are never names."""
_UNUSUAL: Final = re.compile(r"(?<![\w@.+'’-])(?![a-z]+[@.+'’-]*(?![\w@.+'’-]))[\w@.+'’-]*\w")
"""Words that are not made of small letters alone; all other words are no facts."""
_CODED: Final = re.compile(r"[\d_@]")


def facts(text: str) -> list[str]:
    """Return numbers, identifiers and names in their order, in the form in which they are compared."""
    text = _GROUPED.sub("", text)
    return [_normal(match.group()) for match in _UNUSUAL.finditer(text) if _is_fact(match, text)]


def unsupported(text: str, sources: Iterable[str]) -> list[str]:
    """Return the facts of a text that none of the sources contains, each once.

    A compound is supported if its parts are, and a plural if its singular is.
    """
    known = {form for source in sources for form in _forms(_GROUPED.sub("", source))}
    return [
        fact for fact in dict.fromkeys(facts(text)) if not known & {fact, fact.removesuffix("s")} and not known.issuperset(_parts(fact))
    ]


def _forms(source: str) -> Iterator[str]:
    """Yield the words of a source, and the parts of its compounds."""
    for word in _WORD.findall(source):
        normal = _normal(word)
        yield normal
        parts = _parts(normal)
        yield from parts if len(parts) > 1 else ()


def _parts(word: str) -> list[str]:
    return [_normal(part) for part in re.split(r"[^\w]+", word) if part]


def _is_fact(match: "re.Match[str]", text: str) -> bool:
    """Return whether a word is a fact. A capital at the beginning of a sentence makes a name only if a name's predicate follows."""
    word = match.group().lstrip("'’.+-")
    if _CODED.search(word):
        return True
    if not word[:1].isupper() or _normal(word) in _NOT_NAMES:
        return False
    before = text[max(0, match.start() - 8) : match.start()].rstrip(" \t")
    opens = not before or before[-1] in _OPENING
    return not opens or word.endswith(("'s", "’s")) or _PREDICATE.match(text, match.end()) is not None


@lru_cache(maxsize=1 << 16)
def _normal(word: str) -> str:
    plain = word if word.isascii() else unicodedata.normalize("NFKC", word)
    form = plain.casefold().strip(".-+'’").removesuffix("'s").removesuffix("’s")
    return _CLOSING_ZEROS.sub(r"\1", form).removesuffix(".") if form[:1].isdigit() else form
