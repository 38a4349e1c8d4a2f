"""Scan texts that are about to leave the device for private values, within a time limit; a text that takes longer does not pass.

*Known secrets* are looked for in the forms in which they may be written. A text is reduced to its letters and digits, without case,
accents and look-alikes; so are the values. That alone undoes spaces and punctuation. Percent, JSON, HTML, base64 and hex encodings are
decoded first, one layer deep. A part of a long value is found too.

A secret may be *split* between the texts of a conversation, such as a number whose halves stand in two messages. So neighbouring texts are
joined in two ways: as they stand, and by the parts that look like a piece of a value, as in `the card begins with 4111 1111` and `it ends
with 1111 1111`. Only the ends of each text are looked at.
"""

import html
import re
import unicodedata
from binascii import a2b_base64, a2b_hex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

import anyio

from ..task.policy import PrivacyConfig
from ..util.runtime import run_in_daemon_thread
from .detection import UNCHECKED, Detector, Detectors, PrivateFinding, resolve

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
_SPACED_WORD: Final = re.compile(r"\S+")
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
        for word in {match[0] for match in _SPACED_WORD.finditer(text) if _DIGITS_TELL.search(match[0])}:
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


REACH: Final = 128
"""Characters at either end of a text in which a piece may stand."""
_PARTS: Final = 8
"""Texts that may follow the one that a value begins in."""
_WITHOUT_CHECK: Final = {"phone"}
"""Types that numbers of other kinds, put together, are taken for."""
_WORD: Final = re.compile(r"[^\s\"'`(){}\[\]<>,;:|]++")
_TAIL: Final = ".!?*_"
_LEAST_DIGITS: Final = 3
_LONG: Final = 12
"""Characters of a word with capitals in it that may be half a key, or encoded."""
_DOTTED: Final = re.compile(r"(?:^|\w)\.\w")


class OutboundPart(NamedTuple):
    """A part of one of the texts."""

    text: int
    start: int
    end: int


class JoinedText(NamedTuple):
    """Parts of several texts, as one text."""

    text: str
    parts: tuple[OutboundPart, ...]

    def locate(self, finding: PrivateFinding) -> list[OutboundPart]:
        """Return the parts of the texts that a finding covers; nothing if it lies in one text, or may be chance."""
        if finding.type in _WITHOUT_CHECK:
            return []
        pieces = []
        begin = 0
        for part in self.parts:
            start, end = max(finding.start - begin, 0), min(finding.end - begin, part.end - part.start)
            if start < end:
                pieces.append(OutboundPart(part.text, part.start + start, part.start + end))
            begin += part.end - part.start
        return pieces if len(pieces) > 1 else []


class _Ends(NamedTuple):
    """The ends of one text."""

    whole: OutboundPart
    """The text without the spaces around it."""
    is_plain_at_start: bool
    is_plain_at_end: bool
    """Its first and its last word are no pieces of a value."""
    pieces: tuple[OutboundPart, ...]
    """The first and the last piece of a value, if it has any."""


def join_neighbours(texts: Sequence[str]) -> Iterator[JoinedText]:
    """Yield the texts that neighbouring texts may make together."""
    ends = [_ends(text, number) for number, text in enumerate(texts) if text.strip()]
    for place, first in enumerate(ends):
        later = ends[place + 1 : place + 1 + _PARTS]
        if later and not (first.is_plain_at_end and later[0].is_plain_at_start):
            yield _join(texts, [first.whole, *(each.whole for each in later)])
        pieces = [each.pieces for each in later if each.pieces]
        if pieces and texts[pieces[0][0].text].startswith("@", pieces[0][0].start):
            yield _join(texts, [first.whole, pieces[0][0]])  # the name before it may be any word
        for count in range(1, _unbroken(pieces) + 1) if first.pieces else ():
            yield _join(texts, [first.pieces[-1], *(found[0] for found in pieces[:count])])


def _unbroken(pieces: Sequence[tuple[OutboundPart, ...]]) -> int:
    """Return the number of leading pieces without one between: behind a text with two pieces, the second one stands between."""
    return next((place + 1 for place, found in enumerate(pieces) if len(found) > 1), len(pieces))


def _join(texts: Sequence[str], parts: Sequence[OutboundPart]) -> JoinedText:
    """Join the end of the first part and the parts behind it, as far as a value reaches."""
    first, *others = parts
    cut, room = [first._replace(start=max(first.end - REACH, first.start))], REACH
    for part in others:
        cut.append(part._replace(end=min(part.end, part.start + room)))
        room -= part.end - part.start
        if room <= 0:
            break
    return JoinedText("".join(texts[part.text][part.start : part.end] for part in cut), tuple(cut))


def _ends(text: str, number: int) -> _Ends:
    end = len(text.rstrip())
    start = len(text) - len(text.lstrip())
    head, tail = (start, min(end, start + REACH)), (max(start, end - REACH), end)
    first_word, last_word = _WORD.match(text, *head), list(_WORD.finditer(text, *tail))[-1:]
    pieces = (*_pieces(text, *head)[:1], *_pieces(text, *tail)[-1:])
    return _Ends(
        OutboundPart(number, start, end),
        first_word is not None and _is_plain(first_word[0]),
        bool(last_word) and last_word[0].end() == end and _is_plain(last_word[0][0]),
        tuple(OutboundPart(number, *span) for span in dict.fromkeys(pieces)),
    )


def _is_plain(word: str) -> bool:
    letters = word.rstrip(_TAIL)
    return letters.isalpha() and (letters.islower() or letters.istitle())


def _pieces(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Return the spans of words that may belong to a value, neighbours joined, with enough in them to tell."""
    spans: list[tuple[int, int]] = []
    for word in _WORD.finditer(text, start, end):
        if not _may_belong(word[0]):
            continue
        span = (word.start(), word.start() + len(word[0] if "@" in word[0] else word[0].rstrip(_TAIL)))
        is_beside = bool(spans) and span[0] - spans[-1][1] == 1
        spans.append((spans.pop()[0], span[1]) if is_beside else span)
    return [span for span in spans if _tells(text[slice(*span)])]


def _may_belong(word: str) -> bool:
    has_digit = any(character.isdecimal() for character in word)
    is_mixed = len(word) >= _LONG and any(character.isupper() for character in word[1:])
    return has_digit or is_mixed or "@" in word or word.isupper() or _DOTTED.search(word) is not None


def _tells(piece: str) -> bool:
    digits = sum(character.isdecimal() for character in piece)
    return digits >= _LEAST_DIGITS or len(piece) >= _LONG or "@" in piece or _DOTTED.search(piece) is not None


Findings = Mapping[str, Sequence[PrivateFinding]]
"""Findings, by the texts that they are in."""


_A_FEW_LINES: Final = 500
"""Characters that are looked through in about half a millisecond."""


class OutboundScanner:
    """Scans the texts of one run, each of them once.

    Args:
        detector: looks through a text.
        policy: the `[policy.privacy]` section.
        is_quick: a few lines take the detector less time than handing them to a thread.
    """

    def __init__(self, detector: Detector, policy: PrivacyConfig, *, is_quick: bool = False) -> None:
        self._is_quick = is_quick
        self._detector = Detectors([detector], policy.detect)
        self._time_limit = policy.patience
        self._seen: dict[str, list[PrivateFinding]] = {}

    async def scan(self, texts: Sequence[str], said: Sequence[str] | None = None, before: Sequence[str] = ()) -> Findings:
        """Return the findings in each text that has any, including values that are split between neighbouring texts.

        Args:
            said: the texts that follow each other; None: all texts.
            before: the ends of texts that left earlier in the same conversation. An end that is in one of `said` stands there.
        """
        said = texts if said is None else said
        conversation = [*(end for end in before if not any(text.endswith(end) for text in said)), *said]
        joined = list(join_neighbours(conversation))
        wanted = dict.fromkeys((*texts, *(join.text for join in joined)))
        new = [text for text in wanted if text not in self._seen]
        if new:
            self._seen |= await self._looked_through(new)
        found = {text: list(self._seen[text]) for text in (*conversation, *texts) if text in self._seen}
        for join in joined:
            for finding in self._seen[join.text]:
                _add(finding, [(conversation[part.text], part) for part in join.locate(finding)], found)
        return {text: resolve(found[text]) for text in texts if found[text]}

    async def _looked_through(self, texts: Sequence[str]) -> dict[str, list[PrivateFinding]]:
        found: dict[str, list[PrivateFinding]] = {}

        def scan() -> None:
            for text in texts:
                found[text] = self._detector.find(text)

        if self._is_quick and sum(map(len, texts)) <= _A_FEW_LINES:
            scan()
        else:
            with anyio.move_on_after(self._time_limit):
                await run_in_daemon_thread(scan)
        return {text: found.get(text, [PrivateFinding(0, len(text), UNCHECKED, text)]) for text in texts}


def _add(finding: PrivateFinding, places: Sequence[tuple[str, OutboundPart]], found: Mapping[str, list[PrivateFinding]]) -> None:
    """Put the pieces of a finding into the texts, unless a text alone already has that finding."""
    if any(_is_known(finding.type, part, found.get(text, ())) for text, part in places):
        return
    for text, part in places:
        if text in found:
            found[text].append(PrivateFinding(part.start, part.end, finding.type, text[part.start : part.end]))


def _is_known(type: str, part: OutboundPart, findings: Sequence[PrivateFinding]) -> bool:
    return any(each.type == type and each.start < part.end and part.start < each.end for each in findings)
