"""The canonical form of a question: two questions ask the same where their forms are equal.

Every step undoes a change that is known to be harmless: politeness, contractions, spelling, ways of asking. Whatever no step undoes stays
in the form, so a change that nobody thought of makes another form. Equal forms are an equivalence: what two questions may share with a
third, they may share with each other.
"""

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from .contractions import without_contractions
from .frames import in_plain_frame
from .language import is_english
from .plurals import of_a_kind
from .politeness import direct, without_politeness
from .spellings import in_one_spelling
from .tokens import is_literal, normalised, tokens

_ENDS: Final = re.compile(r"[\s?!.\u2026\uff1f\u3002\uff01\u061f]+$")
_BEGINS: Final = re.compile(r"^[\s\u00bf\u00a1]+")


@dataclass(frozen=True, slots=True)
class Canonical:
    """The form of a text in which only differences are left that may matter."""

    form: str
    is_english: bool
    """The form was made by the rules for English; else it is the text itself, without the case of its first letter and its end."""

    @classmethod
    def of(cls, text: str) -> "Canonical":
        """Return the form of a text."""
        return _canonical(text)


@lru_cache(maxsize=256)
def _canonical(text: str) -> Canonical:
    stripped = unicodedata.normalize("NFC", text).strip()
    if is_literal(stripped):
        return Canonical(stripped, is_english=False)
    plain = normalised(text)
    written = without_contractions(" ".join(tokens(plain)))
    if not is_english(written.lower().split()):
        return Canonical(_of_any_language(plain), is_english=False)
    asked, is_indirect = without_politeness(written)
    if is_indirect:
        asked = direct(asked)
    return Canonical(in_one_spelling(of_a_kind(in_plain_frame(asked))), is_english=True)


def _of_any_language(text: str) -> str:
    bare = _BEGINS.sub("", _ENDS.sub("", text)) or text
    return bare[:1].lower() + bare[1:]
