"""Rank turns by a question: by their own match with it, and by that of the larger pieces that contain them."""

import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from datetime import date
from typing import Final, NamedTuple, TypeVar

from ..fusion import MEANING
from .granularity import Granularity, Span, span
from .question import NamedDate, named_dates, words

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
    entropy = -sum(weight / total * math.log(weight / total) for weight in weights if weight > 0)
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


class Matches(NamedTuple):
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


def ranked(question: str, found: Mapping[Granularity, Matches], turns: Mapping[str, Said]) -> list[tuple[str, float]]:
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
