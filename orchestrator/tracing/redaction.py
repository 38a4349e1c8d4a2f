"""Redact credentials in stored entries. They are JSON, so no pattern may match a quotation mark or a backslash."""

import re
from typing import Final

REDACTED: Final = "[redacted]"
_SECRETS: Final = (
    ("bearer ", r"(?i:(?<=\bbearer )[\w.~+/=-]{8,})"),
    ("key=", r"(?i:(?<=[?&]key=)[^&\s\"\\]+)"),
    ("PRIVATE KEY-----", r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^\"]*?-----END [A-Z ]*PRIVATE KEY-----"),
    *((f"{word}-", rf"\b{word}-[A-Za-z0-9][\w*.-]{{15,}}") for word in ("sk", "pk", "rk", "key")),  # OpenAI, Stripe and those that follow
    ("AIza", r"\bAIza[\w-]{20,}"),
    ("AKIA", r"\bAKIA[0-9A-Z]{16}\b"),
    *((f"gh{letter}_", rf"\bgh{letter}_\w{{20,}}") for letter in "pousr"),
    ("xox", r"\bxox[abeoprs]-[\w-]{10,}"),
    ("eyJ", r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+"),  # JSON Web Tokens
)
"""A substring in lower case, and the pattern of a credential that contains it. Most texts hold no substring, and looking for it is fast."""
_PATTERNS: Final = tuple((mark.lower(), re.compile(pattern)) for mark, pattern in _SECRETS)


def redacted(text: str) -> str:
    """Return the text without anything that looks like a key, a token or a private key."""
    lowered = text.lower()
    for mark, pattern in _PATTERNS:
        if mark in lowered:
            text = pattern.sub(REDACTED, text)
    return text
