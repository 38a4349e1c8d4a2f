"""A text as the guards read it: its words in one form, without those that decide nothing."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from .words import (
    ALIKE_MODALS,
    ARTICLES,
    ASKERS,
    AUXILIARIES,
    CONJUNCTIONS,
    ENGLISH,
    FUTURE,
    MODALS,
    NEGATIONS,
    NEUTRAL_PREPOSITIONS,
    NUMERALS,
    OPENINGS,
    OWNERS,
    PAST,
    PHRASES,
    QUESTIONS,
    SIGNS,
    SYNONYMS,
    TONE,
)

_TOKEN: Final = re.compile(
    r"\d+(?:[.,:/]\d+)*|[^\W\d_]+(?:[+#]+(?!\w))?|(?<!\w)-(?=\d)|[^\w\s.,;:!?\"'()\[\]{}\u2026\u201c\u201d\u00ab\u00bb\u2013\u2014\u3001\u3002\uff01\uff0c\uff1f\u061f-]"
)
"""Numbers, words (`c++` and `c#` too), the sign of a number, and single symbols, accents and emoji; punctuation is none."""
_FORMAL: Final = re.compile(r"[={}<>\\^`|~]|\w\(|\)\s*[-+*/]|[-+*/]\s*\(|\d\s*[-+*/]\s*\d")
"""Code and formulas, where every character counts."""
_LETTER: Final = re.compile(r"(?<=\w) A\b(?!')")
"""As in `vitamin A`, which is no article."""
_PATTERNS: Final = tuple((re.compile(pattern), plain) for pattern, plain in PHRASES)
_SHARE: Final = 0.2
"""Of a text's words that have to be among these for it to be taken for English; ordinary questions reach twice as many."""
_SILENT: Final = ARTICLES | TONE
_SHORTEST_STEM: Final = 3
_SILENT_E: Final = re.compile(
    r"(?:[cvzu]|[^s]s|dg|[^aeo]ag|(?:^|[^aeo])at|[^aeo]ar|[^aeo]i[dr]|[^aeo]ut|re-?at|^[^aeiou]*[aiou][^aeiouwxy])$"
)
"""Stems in front of `-ing` that have lost an `e`: `mak`, `danc`, `purchas`, `creat`; but not `read`, `show` and `visit`."""


@dataclass(frozen=True, slots=True)
class Wording:
    """What the guards compare of a text."""

    literal: tuple[str, ...]
    """All of it, but case, spacing and punctuation."""
    is_english: bool
    """The fields below may be gone by; else two texts are the same only where all is."""
    content: tuple[str, ...] = ()
    """The words that carry meaning, in their order, numbers and negations among them."""
    questions: tuple[str, ...] = ()
    """What is asked for: `how`, `why` ..., sorted."""
    tense: tuple[str, ...] = ()
    """`past` and `future`, where the text is put so."""
    owners: tuple[str, ...] = ()
    """`my`, `your`, `our`, sorted."""

    @classmethod
    def of(cls, text: str) -> "Wording":
        """Read a text."""
        return _read(text)


@lru_cache(maxsize=256)
def _read(text: str) -> Wording:
    lower = _LETTER.sub(" letter a", unicodedata.normalize("NFC", text)).lower().replace("\u2019", "'")
    if _FORMAL.search(lower):
        return Wording(literal=tuple(text.split()), is_english=False)
    literal = tuple(_TOKEN.findall(lower))
    if not _is_english(literal):
        return Wording(literal=literal, is_english=False)
    for pattern, plain in _PATTERNS:
        lower = pattern.sub(plain, lower)
    words = _TOKEN.findall(lower)
    return Wording(
        literal=literal,
        is_english=True,
        content=tuple(_coordinated(list(_content(words)))),
        questions=_kinds(QUESTIONS, words),
        tense=tuple(name for name, kind in (("past", PAST), ("future", FUTURE)) if kind.intersection(words)),
        owners=_kinds(OWNERS, words),
    )


def _is_english(words: Sequence[str]) -> bool:
    known = sum(word in ENGLISH for word in words)
    if not words:
        return False
    if words[0] == "is" and SIGNS.intersection(words[1:]):
        return True
    return words[0] in ENGLISH or " ".join(words[:2]) in OPENINGS or known >= _SHARE * len(words)


def _kinds(kind: frozenset[str], words: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(kind.intersection(words)))


def _content(words: Sequence[str]) -> Iterator[str]:
    """The words that carry meaning, each in its plain form."""
    before = ""
    for place, word in enumerate(words):
        is_last = place == len(words) - 1
        if word in MODALS and (place == 0 or before in QUESTIONS):
            if before != "how" and word not in FUTURE:
                yield ALIKE_MODALS.get(word, word)
        elif not _is_silent(word, before, is_last=is_last):
            yield _plain(word)
        before = word


def _coordinated(words: list[str]) -> list[str]:
    """The words with what `and` or `or` joins in one order: `tea or milk` for `milk or tea`."""
    for place in range(1, len(words) - 1):
        before, after = words[place - 1], words[place + 1]
        if words[place] in CONJUNCTIONS and before > after and not NEGATIONS.intersection((before, after)):
            words[place - 1], words[place + 1] = after, before
    return words


def _is_silent(word: str, before: str, *, is_last: bool) -> bool:
    """Whether a word decides nothing where it stands, or is looked at apart."""
    if word in QUESTIONS or word in OWNERS:
        return True
    if word in ASKERS:
        return before in MODALS or before in ("do", "does", "did")
    if word in _SILENT:
        return True
    return not is_last and (word in NEUTRAL_PREPOSITIONS or (word in AUXILIARIES and before != "to"))


def _plain(word: str) -> str:
    """One form for `learn`, `learns` and `learning`, and for words that mean the same."""
    if word in SYNONYMS or word in NUMERALS:
        return SYNONYMS.get(word) or NUMERALS[word]
    if word.endswith("s") and word[:-1] in SYNONYMS:
        return SYNONYMS[word[:-1]]
    stem = _without_ending(word)
    return SYNONYMS.get(stem, stem)


def _without_ending(word: str) -> str:
    if word.endswith(("ies", "ie")) and len(word) > _SHORTEST_STEM + 1:
        return word.removesuffix("s")[:-2] + "y"
    if word.endswith(("sses", "shes", "ches", "xes")):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > _SHORTEST_STEM:
        return word[:-1]
    if word.endswith("ing") and len(word) >= _SHORTEST_STEM + 3:
        return _with_silent_e(_undoubled(word[:-3]))
    return word


def _with_silent_e(stem: str) -> str:
    """`increase` for the `increas` of `increasing`. Where it is put wrongly, two forms of a word are taken for two words."""
    return f"{stem}e" if _SILENT_E.search(stem) else stem


def _undoubled(stem: str) -> str:
    return stem[:-1] if stem[-1] == stem[-2] and stem[-1] not in "lsz" else stem
