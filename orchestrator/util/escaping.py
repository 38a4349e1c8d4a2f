"""Texts of others within a prompt or on a terminal, so that nothing in them can pass for what that says itself."""

import re
from typing import Final

_UNSAFE: Final = re.compile(r"[<\x7f-\x9f\u00ad\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]|\[(?=/?[A-Z_]+\])")
"""What chat templates mark roles with (`<|im_end|>`, `[INST]`), which a tokenizer takes for the mark itself wherever it stands; line ends
that JSON leaves as they are; and what is not seen."""
_ESCAPES: Final = re.compile(r"(?:\\u[0-9a-f]{4})+")
_COMMANDS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys instead of showing it, and what turns the direction in which the rest is read, and so can hide what it says."""


def escaped(text: str) -> str:
    """The text with what could pass for a mark, and what is not seen, as JSON escapes it (`\\u003c`)."""
    return _UNSAFE.sub(_escape, text)


def unescaped(text: str) -> str:
    """Return the text with what `escaped` has written out as it was."""
    return _ESCAPES.sub(_unescape, text)


def printable(text: str) -> str:
    """The text with what would be a command to a terminal, or turn its direction, written out; line ends and tabs stay."""
    return _COMMANDS.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), text)


def spelled_out(text: str) -> str:
    """The text with all that is not seen as it is written out, line ends too: what somebody decides on stands in one line."""
    return "".join(character if character.isprintable() else character.encode("unicode_escape").decode("ascii") for character in text)


def _escape(match: "re.Match[str]") -> str:
    units = match.group().encode("utf-16-be").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))


def _unescape(match: "re.Match[str]") -> str:
    units = bytes.fromhex(match.group().replace("\\u", ""))
    text = units.decode("utf-16-be", "surrogatepass")
    return text if all(letter == "[" or _UNSAFE.fullmatch(letter) for letter in text) else match.group()
