"""Escape untrusted texts in prompts and on terminals."""

import re
from typing import Final

_UNSAFE: Final = re.compile(r"[<\x7f-\x9f\u00ad\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]|\[(?=/?[A-Z_]+\])")
"""Marks of roles in chat templates (`<|im_end|>`, `[INST]`), which a tokenizer takes for the mark wherever they stand; line ends that
JSON
leaves as they are; and invisible characters.
"""
_ESCAPES: Final = re.compile(r"(?:\\u[0-9a-f]{4})+")
_COMMANDS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters that a terminal obeys, and characters that turn the reading direction and so can hide the rest."""


def escaped(text: str) -> str:
    r"""Return the text with marks and invisible characters escaped as in JSON (`\u003c`)."""
    return _UNSAFE.sub(_escape, text)


def unescaped(text: str) -> str:
    """Undo `escaped`."""
    return _ESCAPES.sub(_unescape, text)


def printable(text: str) -> str:
    """Return the text with control characters for terminals, and those that turn its direction, written out; line ends and tabs stay."""
    return _COMMANDS.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), text)


def spelled_out(text: str) -> str:
    """Return the text in one line, with all invisible characters and line ends written out, for a decision of the user."""
    return "".join(character if character.isprintable() else character.encode("unicode_escape").decode("ascii") for character in text)


def _escape(match: "re.Match[str]") -> str:
    units = match.group().encode("utf-16-be").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))


def _unescape(match: "re.Match[str]") -> str:
    units = bytes.fromhex(match.group().replace("\\u", ""))
    text = units.decode("utf-16-be", "surrogatepass")
    return text if all(letter == "[" or _UNSAFE.fullmatch(letter) for letter in text) else match.group()
