"""Looking for known private values in what is about to leave, in the forms in which they may stand there.

A text is reduced to its letters and digits, without case; so are the values. That alone undoes spaces and punctuation. What was percent-,
JSON-, HTML-, base64- or hex-encoded is decoded first, one layer deep. A long value is cut into pieces, so that a part of it is
found too.
"""

import html
import re
import unicodedata
from binascii import a2b_base64, a2b_hex
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

SHORTEST: Final = 8
"""Letters and digits; shorter values occur by chance."""
_PIECE: Final = 12
_TELLING: Final = 24
"""Letters and digits in a row that a text has to have in common with a long value."""
_HEAD: Final = 6
_STRIDE: Final = 3
"""Only every third place of a text is looked up. So that nothing is missed, values are indexed by three places each."""
_KEPT: Final = bytes(range(128))
_DROPPED: Final = bytes(character for character in _KEPT if not chr(character).isalnum())
_NOT_BASE64: Final = bytes(
    character for character in range(256) if not (character < 128 and (chr(character).isalnum() or chr(character) in "+/"))
)
_NOT_HEX: Final = bytes(character for character in range(256) if chr(character) not in "0123456789abcdefABCDEF")
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")
_INVISIBLE: Final = dict.fromkeys([0xAD, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF])
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|.)")
_WORD: Final = re.compile(r"\S+")
_DIGITS_TELL: Final = re.compile(r"[0-9@]")


class _Needle(NamedTuple):
    letters: bytes
    value: int
    """Which of the values it is a part of."""
    is_piece: bool


def reduced(text: str) -> bytes:
    """The letters and digits of a text, in UTF-8, without case and without what cannot be seen."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text.translate(_INVISIBLE))
    return text.casefold().encode(errors="ignore").translate(None, _DROPPED)


class Needles:
    """Private values and texts, to be looked for. What a task says in public itself is not private for occurring in such a text."""

    def __init__(self, public: Iterable[str] = ()) -> None:
        self._public = reduced(" ".join(public))
        self._values: list[bytes] = []
        self._known: set[bytes] = set()
        self._by_head: dict[bytes, list[_Needle]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: str) -> None:
        """Look for a value from now on."""
        letters = reduced(value)
        if len(letters) >= SHORTEST and letters not in self._known:
            self._index(_Needle(letters, self._noted(letters), is_piece=False))

    def add_text(self, text: str) -> None:
        """Look for a text from now on, for parts of a long one, and for its words with digits in them: numbers, codes, addresses."""
        letters = reduced(text)
        if len(letters) < SHORTEST or letters in self._known:
            return
        number = self._noted(letters)
        if len(letters) < 2 * _PIECE:
            self._index_unless_public(_Needle(letters, number, is_piece=False))
            return
        for start in range(0, len(letters) - _PIECE + 1, _PIECE):
            self._index(_Needle(letters[start : start + _PIECE], number, is_piece=True))
        for word in {reduced(match[0]) for match in _WORD.finditer(text) if _DIGITS_TELL.search(match[0])}:
            if SHORTEST <= len(word) < 2 * _PIECE:
                self._index_unless_public(_Needle(word, number, is_piece=False))

    def found_in(self, message: bytes) -> bool:
        """Whether one of the values, or a telling part of one, is in what is about to leave."""
        return bool(self._values) and any(self._is_in(view) for view in _views(message))

    def _noted(self, letters: bytes) -> int:
        self._known.add(letters)
        self._values.append(letters)
        return len(self._values) - 1

    def _index_unless_public(self, needle: _Needle) -> None:
        if needle.letters not in self._public:
            self._index(needle)

    def _index(self, needle: _Needle) -> None:
        for place in range(_STRIDE):
            self._by_head.setdefault(needle.letters[place : place + _HEAD], []).append(needle)

    def _is_in(self, view: bytes) -> bool:
        heads = self._by_head
        return any(self._is_at(view, start) for start in range(0, len(view) - _HEAD + 1, _STRIDE) if view[start : start + _HEAD] in heads)

    def _is_at(self, view: bytes, start: int) -> bool:
        """Whether a needle is at a place of the view where one of its heads is."""
        for needle in self._by_head[view[start : start + _HEAD]]:
            for place in range(_STRIDE):
                begin = start - place
                if begin >= 0 and view.startswith(needle.letters, begin) and self._tells(needle, view, begin):
                    return True
        return False

    def _tells(self, needle: _Needle, view: bytes, begin: int) -> bool:
        """Whether what a view has in common with the value around a piece is long enough, and not public anyway."""
        if not needle.is_piece:
            return True
        value = self._values[needle.value]
        at = value.find(needle.letters)
        left, right = 0, len(needle.letters)
        while at - left > 0 and begin - left > 0 and value[at - left - 1] == view[begin - left - 1]:
            left += 1
        while at + right < len(value) and begin + right < len(view) and value[at + right] == view[begin + right]:
            right += 1
        common = view[begin - left : begin + right]
        return len(common) >= _TELLING and common not in self._public


def _views(message: bytes) -> Iterator[bytes]:
    """A message as whoever reads it may see it, each time reduced."""
    text = message.decode(errors="ignore")
    yield reduced(text)
    if "%" in text:
        yield reduced(unquote_to_bytes(message).decode(errors="ignore"))
    if "\\" in text:
        yield reduced(_ESCAPE.sub(_unescaped, text))
    if "&" in text:
        yield reduced(html.unescape(text))
    packed = message.translate(_URL_SAFE).translate(None, _NOT_BASE64)
    for place in range(4):
        yield reduced(a2b_base64(_whole(packed[place:], 4)).decode(errors="ignore"))
    digits = message.translate(None, _NOT_HEX)
    for place in range(2):
        yield reduced(a2b_hex(_whole(digits[place:], 2)).decode(errors="ignore"))


def _whole(data: bytes, size: int) -> bytes:
    return data[: len(data) - len(data) % size]


def _unescaped(match: re.Match[str]) -> str:
    code = match[1] or match[2]
    return chr(int(code, 16)) if code else " " if match[0][1] in "nrtbf" else match[0][1]
