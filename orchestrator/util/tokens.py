"""Estimate the tokens of a text without its model's tokenizer."""

import math
import re
from typing import Final

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
