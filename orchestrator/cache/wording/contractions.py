"""Contractions and their full forms."""

import re
from typing import Final

_NEGATED: Final = "do|does|did|is|are|was|were|has|have|had|would|could|should|must|need"
_PATTERNS: Final = tuple(
    (re.compile(pattern), plain)
    for pattern, plain in (
        (r"\b(?:can't|cannot|cant)\b", "can not"),
        (r"\bwon't\b", "will not"),
        (rf"\b({_NEGATED})n't\b", r"\1 not"),
        (r"\b(do|does|did|is|are|was|were|has|have|had|would|could|should)nt\b", r"\1 not"),
        (r"\b(i)'m\b", r"\1 am"),
        (r"\b(you|we|they|who|what|how|where)'re\b", r"\1 are"),
        (r"\b(i|you|we|they|who)'ve\b", r"\1 have"),
        (r"\b(i|you|he|she|it|we|they|who|that|there|what)'ll\b", r"\1 will"),
        (r"\b(i|you|he|she|we|they)'d (?=like|rather|love|prefer|be)\b", r"\1 would "),
        (r"\bwhats\b", "what is"),
        (
            r"\b(what|who|how|where|when|why|it|that|there|he|she|here)'s\b"
            r"(?! (?:\w+ )?(?:been|got|gotten|become|gone|come|done|made|taken|had|left|\w+ed)\b)",
            r"\1 is",
        ),
    )
)
"""`'s` stays as it is where it may stand for `has`, and where it says whose."""


def without_contractions(text: str) -> str:
    """Return a text in which contractions of pronouns and auxiliaries are written out."""
    for pattern, plain in _PATTERNS:
        text = pattern.sub(plain, text)
    return text
