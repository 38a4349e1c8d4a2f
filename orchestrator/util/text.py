"""Escape untrusted texts in prompts, on terminals, and in pages of HTML; estimate the tokens of a text without its tokenizer."""

import math
import re
from collections.abc import Sequence
from html import escape
from typing import Final

_UNSAFE: Final = re.compile(r"[<\x7f-\x9f\u00ad\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]|\[(?=/?[A-Z_]+\])")
"""Marks of roles in chat templates (`<|im_end|>`, `[INST]`), which a tokenizer takes for the mark wherever they stand; line ends that JSON
leaves as they are; and invisible characters.
"""
_ESCAPES: Final = re.compile(r"(?:\\u[0-9a-f]{4})+")
_COMMANDS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters that a terminal obeys, and characters that turn the reading direction and so can hide the rest."""


_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #777 }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem } h3 { font-size: 1rem }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
caption { text-align: left; color: var(--soft); padding: .3rem 0 }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top }
th:first-child, td:first-child, td.text, th.text { text-align: left }
td.text { max-width: 26rem } .wrong { color: #c1121f } .right { color: #2a9d8f }
svg { width: 100%; height: auto; max-width: 44rem } svg text { fill: currentColor; font-size: 13px }
.note { color: var(--soft) } .wide { overflow-x: auto }
@media (prefers-color-scheme: dark) { .wrong { color: #ff6b6b } }
"""


def escape_text(text: str) -> str:
    r"""Return the text with marks and invisible characters escaped as in JSON (`\u003c`)."""
    return _UNSAFE.sub(_escape, text)


def unescape_text(text: str) -> str:
    """Undo `escape_text`."""
    return _ESCAPES.sub(_unescape, text)


def printable(text: str) -> str:
    """Return the text with control characters for terminals, and those that turn its direction, written out; line ends and tabs stay."""
    return _COMMANDS.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), text)


def spell_out(text: str) -> str:
    """Return the text in one line, with all invisible characters and line ends written out, for a decision of the user."""
    return "".join(character if character.isprintable() else character.encode("unicode_escape").decode("ascii") for character in text)


def _escape(match: "re.Match[str]") -> str:
    units = match.group().encode("utf-16-be").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))


def _unescape(match: "re.Match[str]") -> str:
    units = bytes.fromhex(match.group().replace("\\u", ""))
    text = units.decode("utf-16-be", "surrogatepass")
    return text if all(letter == "[" or _UNSAFE.fullmatch(letter) for letter in text) else match.group()


def page(title: str, body: str, *, style: str = "") -> str:
    """Return a document with a body of ready-made HTML."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{_STYLE}{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def table(head: Sequence[str], body: Sequence[Sequence[str]], *, text_columns: bool = False, caption: str = "") -> str:
    """Return a table of ready-made HTML cells."""
    css = ' class="text"' if text_columns else ""
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    header = "".join(f'<th scope="col"{css}>{escape(name)}</th>' for name in head)
    lines = "\n".join("<tr>" + "".join(f"<td{css}>{cell}</td>" for cell in line) + "</tr>" for line in body)
    return f"<table>{title}<thead><tr>{header}</tr></thead><tbody>\n{lines}\n</tbody></table>"


_PIECE: Final = re.compile(r"[A-Za-z]+|\s+|[\x21-\x7e]|[^\x00-\x7f]+")
_SWITCH: Final = re.compile(r"(?<=[a-z])[A-Z]|(?<=[A-Z])[a-z]{1,2}(?=[A-Z])")
"""A letter of the other case: where they are many, as in base64, tokens are short."""
_LETTERS: Final = 4
"""Letters of a token, at most: longer tokens are common words, and shorter ones make up for them."""
_BYTES: Final = 2
"""Bytes of a token outside of ASCII."""


def tokens_at_most(text: str) -> int:
    """Return the tokens of a text by its letters, digits, signs and bytes: above what the tokenizers of large models make of prose, code
    and Chinese."""
    return sum(_piece_tokens(piece[0]) for piece in _PIECE.finditer(text))


def _piece_tokens(piece: str) -> int:
    if piece.isspace():
        return 0 if piece == " " else 1 + piece.count("\n")
    if piece.isascii():
        return max(math.ceil(len(piece) / _LETTERS), 2 * len(_SWITCH.findall(piece)))
    return math.ceil(len(piece.encode(errors="surrogatepass")) / _BYTES)
