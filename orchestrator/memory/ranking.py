"""Rank items by a question: by words and by meaning, and by the larger pieces of an episode that contain them.

Turns are kept verbatim. The same episode is kept again in larger and in condensed pieces, each of which names the turns it is about. A
question is compared with all of them, and answered with turns (MemGAS, arXiv 2505.19549).

    (*scope, "episodic", "turn")        one turn each                       key: SESSION:000012
    (*scope, "episodic", "segment")     turns in a row about one topic      key: SESSION:000012-000015
    (*scope, "episodic", "summary")     a summary of turns in a row         key: SESSION:000012-000031
    (*scope, "episodic", "keywords")    keywords of turns in a row, with the same key as their summary
    (*scope, "semantic")                a fact each, see `SemanticMemory`
    (*scope, "working", RUN)            notes of a run, see `WorkingMemory`

The value of every episodic item has `TEXT`, which is shown, and `SEARCHABLE`, the passages by which it is found.
"""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from ...protocols import InvalidRequest
from ...protocols.items import Namespace
from .engine import Hit, ItemRow

_WORD: Final = re.compile(r"\w+")
_COMMON_WORDS: Final = """
a about am an and any are as at be been being but by can could did do does for from had has have having he her here him his how i if in into
is it its just me may might my no not of on or our out over s she should so some t than that the their them then there these they this those
to up us was we were what when where which who whom whose why will with would you your
"""
_COMMON: Final = frozenset(_COMMON_WORDS.split())


def words(text: str) -> frozenset[str]:
    """Return the words of a text, each once, in lower case."""
    return frozenset(_WORD.findall(text.casefold()))


def keywords(question: str) -> str:
    """Return the words of a question that can find its answer; the whole question if all its words are common.

    bm25 gives common words little weight, but half of a question is made of them, and turns of a conversation are short.
    """
    rare = [word for word in _WORD.findall(question) if word.casefold() not in _COMMON]
    return " ".join(rare) or question


_ENGLISH: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_MONTHS: Final = {name: number for number, name in enumerate(_ENGLISH, start=1)}
_NAMES: Final = "|".join(_MONTHS)
_DAY: Final = r"\d{1,2}(?:st|nd|rd|th)?"
_NAMED: Final = re.compile(
    rf"\b(?:(?P<before>{_DAY})(?: of)? )?(?P<month>{_NAMES})\b(?: (?P<after>{_DAY})\b)?(?:,? (?P<year>(?:19|20)\d\d)\b)?"
)
_ISO: Final = re.compile(r"\b(?P<year>(?:19|20)\d\d)-(?P<month>0[1-9]|1[0-2])(?:-(?P<day>\d\d))?\b")
_YEAR: Final = re.compile(r"\b(?:19|20)\d\d\b")


class NamedDate(NamedTuple):
    """A date as far as a text names it; None: any."""

    year: int | None
    month: int | None = None
    day: int | None = None

    def fits(self, moment: date) -> float:
        """Return how well a moment fits: 0 not at all, 1 the right day, or 0.5 the right month or year."""
        if self.year not in (None, moment.year) or self.month not in (None, moment.month):
            return 0.0
        return 1.0 if self.day == moment.day else 0.5


def named_dates(text: str) -> list[NamedDate]:
    """Return the dates that a text names: English names of months with a capital letter, ISO 8601, and years alone.

    A month without a year takes the only year that the text names.
    """
    iso = [NamedDate(int(one["year"]), int(one["month"]), _number(one["day"])) for one in _ISO.finditer(text)]
    rest = _ISO.sub(" ", text)
    years = {int(year) for year in _YEAR.findall(rest)}
    only = next(iter(years)) if len(years) == 1 else None
    months = [
        NamedDate(_number(one["year"]) or only, _MONTHS[one["month"]], _number(one["before"] or one["after"]))
        for one in _NAMED.finditer(rest)
        if not _is_verb(one)
    ]
    return [*iso, *months] or [NamedDate(year) for year in sorted(years)]


def _number(text: str | None) -> int | None:
    digits = re.match(r"\d+", text or "")
    return int(digits[0]) if digits else None


def _is_verb(found: "re.Match[str]") -> bool:
    """Return whether a text begins with May or March as a verb, without any other part of a date: "May I ...?"."""
    alone = not (found["before"] or found["after"] or found["year"])
    return alone and found.start() == 0 and found["month"] in ("May", "March")


EPISODIC: Final = "episodic"
SEMANTIC: Final = "semantic"
WORKING: Final = "working"

TEXT: Final = "text"
SEARCHABLE: Final = "searchable"
INDEX: Final = [f"{SEARCHABLE}[*]"]
"""The `index` to pass when an item of this layout is put."""

_DIGITS: Final = 6
_KEY: Final = re.compile(r"(?P<session>.*):(?P<first>\d{6,})(?:-(?P<last>\d{6,}))?", re.DOTALL)


class Granularity(StrEnum):
    """The size of an episodic item, in turns."""

    TURN = "turn"
    SEGMENT = "segment"
    SUMMARY = "summary"
    KEYWORDS = "keywords"


class Span(NamedTuple):
    """Consecutive turns of one session; a single turn is its own first and last."""

    session: str
    first: int
    last: int

    @property
    def key(self) -> str:
        """The key of an item about these turns. Keys of a session are in the order of its turns."""
        first = f"{self.session}:{self.first:0{_DIGITS}d}"
        return first if self.first == self.last else f"{first}-{self.last:0{_DIGITS}d}"

    @property
    def turns(self) -> tuple[str, ...]:
        """The keys of the turns."""
        return tuple(turn_key(self.session, number) for number in range(self.first, self.last + 1))


def turn_key(session: str, number: int) -> str:
    """Return the key of the `number`-th turn of a session, counted from 0."""
    return Span(session, number, number).key


def span(key: str) -> Span | None:
    """Return the turns that the item of this key is about; None if the key is of another layout."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    first = int(match["first"])
    return Span(match["session"], first, int(match["last"] or first))


def episodic(scope: Namespace, granularity: Granularity) -> Namespace:
    """Return the namespace of the episodic items of a granularity."""
    return (*scope, EPISODIC, granularity.value)


MEANING: Final = 4.0
"""Weight of a cosine similarity of 1, if the best match by words has 1. Similarities of unlike texts lie close together."""
WINDOW: Final = 50
"""The number of best hits of each ranking that are fused at a time."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The weights of a search. The score of an item is

        (keyword * score by words / best score by words + semantic * 4 * cosine similarity)
            * (1 - recency + recency * 2 ** (-age / half_life)) * (1 - trust + trust * trust of the item)

    An item that only one of the two rankings has counts in the other one as its last item: no score by words, and the least similarity,
    both 0 at least. Such scores mean nothing beyond the order within one search. In a search by words alone the first line is the
    database's own score (bm25), and by meaning alone it is the cosine similarity.
    """

    keyword: float = 1.0
    """Weight of the match by words."""
    semantic: float = 1.0
    """Weight of the match by meaning."""
    recency: float = 0.0
    """From 0 (age does not matter) to 1."""
    half_life: float = 30 * 86400.0
    """Seconds."""
    trust: float = 0.0
    """From 0 (trust does not matter) to 1."""

    def __post_init__(self) -> None:
        weights = (self.keyword, self.semantic)
        if min(weights) < 0 or max(weights) <= 0 or not self.half_life > 0:
            raise InvalidRequest("the weights of a ranking must be 0 or more, one of them above 0, and its half-life above 0")
        if not (0 <= self.recency <= 1 and 0 <= self.trust <= 1):
            raise InvalidRequest("recency and trust of a ranking must be numbers from 0 to 1")

    @property
    def needs_rows(self) -> bool:
        """True if the order depends on more than the two rankings."""
        return self.recency > 0 or self.trust > 0

    def factor(self, row: ItemRow, now: float) -> float:
        """Return the factor of an item's score."""
        age = max(0.0, now - row.updated_at)
        recent = 1 - self.recency + self.recency * math.exp2(-age / self.half_life)
        return recent * (1 - self.trust + self.trust * row.meta.trust)


def fuse(keyword: Sequence[Hit], nearest: Sequence[Hit], ranking: Ranking, factors: Mapping[int, float] | None = None) -> Iterator[Hit]:
    """Yield the items of both rankings, the best first; if there are `factors`, items without one are left out."""
    best = max((hit.score for hit in keyword), default=0.0) or 1.0
    words = _Scores(keyword, ranking.keyword / best)
    meanings = _Scores(nearest, MEANING * ranking.semantic, least=True)
    return _windowed([one for one in (words, meanings) if one.weight > 0], factors)


def weigh(hits: Sequence[Hit], factors: Mapping[int, float] | None = None) -> Iterator[Hit]:
    """Yield the items of a single ranking with their own scores, times the factors if there are some."""
    return iter(hits) if factors is None else _windowed([_Scores(hits)], factors)


def depth(count: int) -> int:
    """Return how many hits of each ranking are needed for the first `count` items: whole windows."""
    return -(-count // WINDOW) * WINDOW


@dataclass(frozen=True, slots=True)
class _Scores:
    """A ranking and the weight of its scores."""

    hits: Sequence[Hit]
    weight: float = 1.0
    least: bool = False
    """True: an item outside the window counts as much as the last one in it. False: it counts nothing."""

    def missing(self, end: int) -> float:
        """Return the weighted score of an item that is not among the first `end`."""
        return self._weighed(self.hits[min(end, len(self.hits)) - 1].score) if self.least and self.hits else 0.0

    def scores(self, end: int) -> dict[int, float]:
        """Return the weighted scores of the first `end` items, by row."""
        return {hit.row: self._weighed(hit.score) for hit in self.hits[:end]}

    def _weighed(self, score: float) -> float:
        return self.weight * (max(0.0, score) if self.least else score)


def _windowed(rankings: Sequence[_Scores], factors: Mapping[int, float] | None) -> Iterator[Hit]:
    """Fuse the rankings window by window, the first windows before the second ones.

    Therefore the beginning is the same however many hits there are, and pages fit together; scores do not rise at a window's edge.
    """
    done: set[int] = set()
    ceiling = math.inf
    for end in range(WINDOW, max((len(one.hits) for one in rankings), default=0) + WINDOW, WINDOW):
        scores = _sums(rankings, end, done)
        done.update(scores)
        for negative, row in _ordered(scores, factors):
            ceiling = min(-negative, ceiling)
            yield Hit(row, ceiling)


def _sums(rankings: Sequence[_Scores], end: int, done: set[int]) -> dict[int, float]:
    scored = [(ranking.scores(end), ranking.missing(end)) for ranking in rankings]
    rows = {row for scores, _ in scored for row in scores} - done
    return {row: sum(scores.get(row, missing) for scores, missing in scored) for row in rows}


def _ordered(scores: Mapping[int, float], factors: Mapping[int, float] | None) -> list[tuple[float, int]]:
    """Return negative scores with rows, the best first; of equals, the older one."""
    if factors is not None:
        scores = {row: score * factors[row] for row, score in scores.items() if row in factors}
    return sorted((-score, row) for row, score in scores.items())


Key = TypeVar("Key", bound=Hashable)

_TEMPERATURE: Final = 0.1
"""Differences in relevance of this size matter when a granularity's certainty is measured."""


def relevance(keyword: Mapping[Key, float], semantic: Mapping[Key, float]) -> dict[Key, float]:
    """Return the relevance of each key, from scores by words and cosine similarities. An item that only one of the two searches found
    counts in the other as its last hit.

    Unlike ranks, relevance keeps how much better one item is than the next.
    """
    best = max(keyword.values(), default=0.0) or 1.0
    last = min(semantic.values(), default=0.0)
    return {key: keyword.get(key, 0.0) / best + MEANING * semantic.get(key, last) for key in (*keyword, *semantic)}


def certainty(relevances: Collection[float]) -> float:
    """Return a certainty from 1/e (all fit equally well) to 1 (one stands out): exp of the negative entropy of their softmax, in units
    of the greatest that is possible (MemGAS, arXiv 2505.19549)."""
    if len(relevances) < 2:
        return 1.0
    best = max(relevances)
    weights = [math.exp((one - best) / _TEMPERATURE) for one in relevances]
    total = sum(weights)
    entropy = -sum(share * math.log(share) for share in (weight / total for weight in weights) if share > 0)
    return math.exp(-entropy / math.log(len(weights)))


WEIGHT: Final = {Granularity.TURN: 1.5, Granularity.SEGMENT: 0.7, Granularity.SUMMARY: 0.15, Granularity.KEYWORDS: 0.15}
"""Weight of the relevance at a granularity, before the granularity's certainty about the question at hand."""
_SESSION: Final = 0.3
"""Weight of the relevance of a session, which is the mean of that of its best turns."""
_BEST_OF_SESSION: Final = 3
_SPEAKER: Final = 0.8
"""Bonus of a turn if the question names its speaker."""
_LENGTH: Final = 0.3
"""Bonus of a turn for being e times as long, up to a paragraph: short turns acknowledge, long ones tell."""
_PARAGRAPH: Final = 400
"""Characters of a paragraph."""
_ASKING: Final = 0.4
"""Penalty of a turn that ends with a question: the answer is in the next one."""
_DATE: Final = 1.0
"""Bonus of a turn that happened on a day that the question names; half of it for the month or the year."""


class TurnMatches(NamedTuple):
    """The results of a search at one granularity, by key."""

    keyword: Mapping[str, float]
    """Scores by words, on any scale."""
    semantic: Mapping[str, float]
    """Cosine similarities."""


class Said(NamedTuple):
    """The fields of a turn that ranking uses."""

    speaker: str
    text: str
    at: date | None = None
    """The day of the turn, if it is known."""


def rank_turns(question: str, found: Mapping[Granularity, TurnMatches], turns: Mapping[str, Said]) -> list[tuple[str, float]]:
    """Return the turns' keys with their scores, the best first. `turns` are the candidates, by key."""
    relevances = {granularity: relevance(*matches) for granularity, matches in found.items()}
    relevances = {granularity: of_items for granularity, of_items in relevances.items() if of_items}
    own = relevances.pop(Granularity.TURN, {})
    least = min(own.values(), default=0.0)
    of_turns = {key: own.get(key, least) for key in turns}
    weights = _weights({Granularity.TURN: of_turns, **relevances})
    scores = {key: weights.get(Granularity.TURN, 0.0) * one for key, one in of_turns.items()}
    for granularity, of_items in relevances.items():
        for key, one in _handed_down(of_items, of_turns).items():
            scores[key] += weights[granularity] * one
    asked, dates = words(question), named_dates(question)
    for key, one in _of_sessions(scores).items():
        scores[key] += _SESSION * one + _bearing(turns[key], asked, dates)
    return sorted(scores.items(), key=lambda scored: (-scored[1], scored[0]))


def _weights(relevances: Mapping[Granularity, Mapping[str, float]]) -> dict[Granularity, float]:
    certainties = {granularity: certainty(of_items.values()) for granularity, of_items in relevances.items() if of_items}
    mean = sum(certainties.values()) / max(1, len(certainties))
    return {granularity: WEIGHT[granularity] * one / mean for granularity, one in certainties.items()}


def _handed_down(of_items: Mapping[str, float], of_turns: Mapping[str, float]) -> dict[str, float]:
    """Return the best relevance of the pieces around each turn. A turn without any found piece keeps its own: it may be too new."""
    spans: dict[str, list[tuple[Span, float]]] = defaultdict(list)
    for key, one in of_items.items():
        if (about := span(key)) is not None:
            spans[about.session].append((about, one))
    return {key: _best_around(key, spans, default=own) for key, own in of_turns.items()}


def _best_around(key: str, spans: Mapping[str, Sequence[tuple[Span, float]]], default: float) -> float:
    turn = span(key)
    if turn is None:
        return default
    return max((one for about, one in spans.get(turn.session, ()) if about.first <= turn.first <= about.last), default=default)


def _of_sessions(scores: Mapping[str, float]) -> dict[str, float]:
    """Return the relevance of the session of each turn."""
    sessions: dict[str, list[str]] = defaultdict(list)
    for key in scores:
        turn = span(key)
        sessions[key if turn is None else turn.session].append(key)
    least = min(scores.values(), default=0.0)
    return {key: value for keys in sessions.values() for value in [_mean_of_best((scores[key] for key in keys), least)] for key in keys}


def _mean_of_best(scores: Iterable[float], least: float) -> float:
    best = sorted(scores, reverse=True)[:_BEST_OF_SESSION]
    return (sum(best) + least * (_BEST_OF_SESSION - len(best))) / _BEST_OF_SESSION


def _bearing(turn: Said, asked: frozenset[str], dates: Sequence[NamedDate]) -> float:
    """Return the part of a turn's score that does not depend on its topic."""
    named = _SPEAKER if words(turn.speaker) & asked else 0.0
    asking = _ASKING if turn.text.rstrip().endswith("?") else 0.0
    return named + _LENGTH * math.log(max(1, min(len(turn.text), _PARAGRAPH)) / _PARAGRAPH) - asking + _dated(turn, dates)


def _dated(turn: Said, dates: Sequence[NamedDate]) -> float:
    return 0.0 if turn.at is None else _DATE * max((one.fits(turn.at) for one in dates), default=0.0)
