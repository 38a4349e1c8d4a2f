"""TODO-DOC."""

import html
import re
import unicodedata
from binascii import a2b_base64, a2b_hex
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Final
from urllib.parse import unquote_to_bytes

SHORTEST: Final = 8
"""Letters and digits; shorter values occur by chance."""
_TELLING: Final = 24
"""Letters and digits in a row that a text has to have in common with a long value."""
_HEAD: Final = 6
_WINDOW: Final = 12
_STRIDE: Final = 3
"""Only every third place of a text is looked up."""
_STEP: Final = 4
"""Every fourth window of a long text is known. With `_TELLING` letters in common there are three of these in a row, one of which is at a
place that is looked up, since three and four have no common divisor."""
_IN_A_ROW: Final = 3
_KEPT: Final = bytes(range(128))
_DROPPED: Final = bytes(character for character in _KEPT if not chr(character).isalnum())
_NOT_ALPHANUMERIC: Final = re.compile(r"[\W_]+")
_NOT_BASE64: Final = bytes(
    character for character in range(256) if not (character < 128 and (chr(character).isalnum() or chr(character) in "+/"))
)
_NOT_HEX: Final = bytes(character for character in range(256) if chr(character) not in "0123456789abcdefABCDEF")
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")
_TAGS: Final = 0xE0000
"""Invisible copies of the ASCII characters begin here."""
_LOOK_ALIKES: Final[dict[int, int | str]] = {
    **str.maketrans("авекмнорстухіјѕԁԛԝһӏ", "abekmhopctyxijsdqwhl"),
    **str.maketrans("αβεηικνορτυχıɑɡ", "abenikvoptuxiag"),
    **{_TAGS + character: chr(character).lower() for character in range(0x20, 0x7F)},
}
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|.)")
_READABLE: Final = re.compile(rb"[\0\t\n\r\x20-\x7e]{8,}+")
_WORD: Final = re.compile(r"\S+")
_DIGITS_TELL: Final = re.compile(r"[0-9@]")


def normalize(text: str) -> bytes:
    """Return the letters and digits of a text in UTF-8, without case and accents; letters that look like Latin ones become these."""
    if text.isascii():
        return _as_written(text.encode())
    plain = unicodedata.normalize("NFKD", text).casefold().translate(_LOOK_ALIKES)
    return _NOT_ALPHANUMERIC.sub("", plain).encode(errors="ignore")


def _as_written(text: bytes) -> bytes:
    """Return the lower case text without ASCII punctuation and spaces; other characters stay."""
    return text.lower().translate(None, _DROPPED)


class KnownSecrets:
    """Known private values and texts. A word that the task says in public is not private for occurring in such a text."""

    def __init__(self, public: Iterable[str] = ()) -> None:
        self._public = normalize(" ".join(public))
        self._known: set[bytes] = set()
        self._is_ascii = True
        """Only ASCII matters in decoded bytes."""
        self._heads: set[bytes] = set()
        """Beginnings of values that count as a whole, from each of their first three places on."""
        self._values: dict[int, set[bytes]] = {}
        """Values that count as a whole, by their lengths."""
        self._windows: set[bytes] = set()
        """Parts of long texts that count."""

    def add(self, value: str) -> None:
        """Look for a value from now on."""
        if len(normalize(value)) >= SHORTEST:
            self._add(value)

    def add_text(self, text: str) -> None:
        """Look for a text from now on, for parts of a long one, and for its words with digits in them: numbers, codes, addresses."""
        letters = normalize(text)
        if len(letters) < SHORTEST or letters in self._known:
            return
        if len(letters) < _TELLING:
            self._add_unless_public(text)
            return
        for form in self._forms(text):
            self._windows.update(form[start : start + _WINDOW] for start in range(0, len(form) - _WINDOW + 1, _STEP))
        for word in {match[0] for match in _WORD.finditer(text) if _DIGITS_TELL.search(match[0])}:
            if SHORTEST <= len(normalize(word)) < _TELLING:
                self._add_unless_public(word)

    def is_in(self, message: bytes) -> bool:
        """Return whether an outbound message contains one of the values, or a telling part of one."""
        views = _views(message, is_ascii=self._is_ascii) if self._known else ()
        return any(self._has_value(view) or self._has_part(view) for view in views)

    def _add_unless_public(self, value: str) -> None:
        if normalize(value) not in self._public:
            self._add(value)

    def _add(self, value: str) -> None:
        for form in self._forms(value):
            self._values.setdefault(len(form), set()).add(form)
            self._heads.update(form[place : place + _HEAD] for place in range(_STRIDE))

    def _forms(self, text: str) -> set[bytes]:
        """Return the forms to look for: the text forwards and backwards, as it may be written and as it may be encoded."""
        letters, encoded = normalize(text), _as_written(text.encode(errors="ignore"))
        self._known.add(letters)
        self._is_ascii = self._is_ascii and text.isascii()
        return {letters, normalize(text[::-1]), encoded}

    def _has_value(self, view: bytes) -> bool:
        heads = self._heads
        hits = (start for start in range(0, len(view) - _HEAD + 1, _STRIDE) if view[start : start + _HEAD] in heads)
        return any(
            view[begin : begin + length] in values
            for start in hits
            for begin in range(max(start - _STRIDE + 1, 0), start + 1)
            for length, values in self._values.items()
        )

    def _has_part(self, view: bytes) -> bool:
        windows = self._windows
        places = range(0, len(view) - _WINDOW + 1, _STRIDE) if windows else ()
        return any(self._tells(view, start) for start in places if view[start : start + _WINDOW] in windows)

    def _tells(self, view: bytes, hit: int) -> bool:
        """Return whether a view shares enough consecutive windows with a text that are not all public."""
        places = range(max(hit - (_IN_A_ROW - 1) * _STEP, hit % _STEP), hit + 1, _STEP)
        rows = ([view[start + step : start + step + _WINDOW] for step in range(0, _IN_A_ROW * _STEP, _STEP)] for start in places)
        return any(self._windows.issuperset(row) and not self._public_windows.issuperset(row) for row in rows)

    @cached_property
    def _public_windows(self) -> set[bytes]:
        return {self._public[start : start + _WINDOW] for start in range(len(self._public) - _WINDOW + 1)}


def _views(message: bytes, *, is_ascii: bool) -> Iterator[bytes]:
    """Yield the message in each form in which a reader may see it, reduced."""
    text = message.decode(errors="ignore")
    yield normalize(text)
    if "%" in text:
        yield normalize(unquote_to_bytes(message).decode(errors="ignore"))
    if "&" in text:
        yield normalize(html.unescape(text))
    yield from _decode(message, is_ascii=is_ascii)
    if "\\" in text:
        unescaped = _ESCAPE.sub(_unescape, text)
        yield normalize(unescaped)
        yield from _decode(unescaped.encode(errors="ignore"), is_ascii=is_ascii)


def _decode(message: bytes, *, is_ascii: bool) -> Iterator[bytes]:
    """Yield the bytes that base64 or hex in a message may stand for, from each possible start. Most of them are no text."""
    packed = message.translate(_URL_SAFE).translate(None, _NOT_BASE64)
    digits = message.translate(None, _NOT_HEX)
    decoded = [a2b_base64(_whole(packed[place:], 4)) for place in range(4)]
    decoded += [a2b_hex(_whole(digits[place:], 2)) for place in range(2)]
    for data in decoded:
        yield _as_written(b" ".join(_READABLE.findall(data)) if is_ascii else data)


def _whole(data: bytes, size: int) -> bytes:
    return data[: len(data) - len(data) % size]


def _unescape(match: re.Match[str]) -> str:
    code = match[1] or match[2]
    return chr(int(code, 16)) if code else " " if match[0][1] in "nrtbf" else match[0][1]
