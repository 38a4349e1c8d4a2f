"""The canonical form of a question: two questions ask the same where their forms are equal.

Every step undoes a change that is known to be harmless: politeness, contractions, spelling, ways of asking. Any other change stays in
the form, so that an unforeseen one makes another form.
"""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from .phrases import direct, in_plain_frame, without_politeness
from .tokens import is_caseless, is_english, is_literal, normalised, tokens
from .word_lists import AMBIGUOUS
from .words import agree, in_one_spelling, of_a_kind, without_contractions, without_marks

_ENDS: Final = re.compile(r"[\s?!.\u2026\uff1f\u3002\uff01\u061f]+$")
_NAME: Final = re.compile(r"[^\W\d_]+(?:['-][^\W\d_]+)*")
"""A word that may be a name; of what holds digits or points, as a file does, the case counts in any text."""
_BEGINS: Final = re.compile(r"^[\s\u00bf\u00a1]+")


@dataclass(frozen=True, slots=True)
class Canonical:
    """The form of a text in which only differences are left that may matter."""

    words: tuple[str, ...]
    """The words and signs of the form; of another language than English, and of a text with code or quotations, the text as a whole."""
    marks: Mapping[int, str]
    """Words that the other text may leave out, by place in `words`."""
    is_english: bool
    is_caseless: bool = False
    """The text has no capitals that could tell a name: its writer does not use them."""

    @classmethod
    def of(cls, text: str) -> "Canonical":
        """Return the form of a text."""
        return _canonical(text)

    def asks_the_same_as(self, other: "Canonical") -> bool:
        """Tell whether only harmless changes lie between two texts."""
        if self.is_english != other.is_english or not agree(self.marks, other.marks):
            return False
        return self.words == other.words or ((self.is_caseless or other.is_caseless) and self._without_case() == other._without_case())

    @property
    def text(self) -> str:
        """The form in one line, marks in their places."""
        return " ".join(f"{self.marks[place]} {word}" if place in self.marks else word for place, word in enumerate(self.words))

    def _without_case(self) -> list[str]:
        return [word if word.lower() in AMBIGUOUS or not _NAME.fullmatch(word) else word.lower() for word in self.words]


@lru_cache(maxsize=256)
def _canonical(text: str) -> Canonical:
    stripped = unicodedata.normalize("NFC", text).strip()
    if is_literal(stripped):
        return Canonical((stripped,), {}, is_english=False)
    plain = normalised(text)
    written = without_contractions(" ".join(tokens(plain)))
    asked, is_indirect = without_politeness(written)
    if not (is_english(written.lower().split()) or is_english(asked.lower().split())):
        return Canonical((_of_any_language(plain),), {}, is_english=False)
    if is_indirect:
        asked = direct(asked)
    form = of_a_kind(in_plain_frame(in_one_spelling(asked)))
    words, marks = without_marks(form.split())
    return Canonical(words, marks, is_english=True, is_caseless=is_caseless(plain))


def _of_any_language(text: str) -> str:
    bare = _BEGINS.sub("", _ENDS.sub("", text)) or text
    return bare[:1].lower() + bare[1:]
