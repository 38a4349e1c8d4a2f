"""Scan texts that are about to leave the device, within a time limit; a text that cannot be scanned in time does not pass.

A secret may be split between the texts of a conversation, such as a number whose halves stand in two messages. So neighbouring texts are
joined in two ways: as they stand, and by the parts that look like a piece of a value, as in `the card begins with 4111 1111` and `it ends
with 1111 1111`. Only the ends of each text are looked at.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import anyio

from ..task.policy import PrivacyConfig
from ..util.runtime import run_in_daemon_thread
from .detection.detector import UNCHECKED, Detector, Detectors, PrivateFinding, resolve

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


class OutboundScanner:
    """Scans the texts of one run, each of them once."""

    def __init__(self, detector: Detector, policy: PrivacyConfig) -> None:
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
