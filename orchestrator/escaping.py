"""Texts of others within a prompt, so that nothing in them can pass for the prompt's own marks."""

import re
from typing import Final

_UNSAFE: Final = re.compile(r"[<\x7f-\x9f\u00ad\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]|\[(?=/?[A-Z_]+\])")
"""What chat templates mark roles with (`<|im_end|>`, `[INST]`), which a tokenizer takes for the mark itself wherever it stands; line ends
that JSON leaves as they are; and what is not seen."""


def escaped(text: str) -> str:
    """The text with what could pass for a mark, and what is not seen, as JSON escapes it (`\\u003c`)."""
    return _UNSAFE.sub(_escape, text)


def _escape(match: "re.Match[str]") -> str:
    units = match.group().encode("utf-16-be").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))
