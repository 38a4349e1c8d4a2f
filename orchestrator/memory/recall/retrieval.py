"""Find turns by a question, searching all granularities at once."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from langgraph.store.base import GetOp

from ....protocols.namespaces import Namespace
from .. import reading
from ..fusion import Ranking
from ..reading import MemoryItem, Query, Reader, SearchMode
from ..rendering import when
from .granularity import EPISODIC, TEXT, Granularity, episodic, span
from .question import keywords
from .ranking import Matches, Said, ranked, relevance

if TYPE_CHECKING:
    from ..basic_store import BasicStore


_CANDIDATES: Final = 100
"""Hits of each search, by words and by meaning, that are ranked. Twice as many gain nothing."""
_PIECES: Final = 5
"""Number of best pieces of each granularity above the turn, all of whose turns are candidates."""
_WIDEST: Final = 64
"""The most turns of such a piece."""


def find(store: "BasicStore", scope: Namespace, question: str, *, limit: int) -> list[MemoryItem]:
    """Return the turns that answer a question best, the best first. A turn's `score` means nothing beyond this order."""
    places = [episodic(scope, granularity) for granularity in Granularity]
    answers = store.matches(places, keywords=keywords(question), text=question, limit=_CANDIDATES)
    found = {granularity: _by_key(answer) for granularity, answer in zip(Granularity, answers, strict=True)}
    turns = {address.key: item for address, item in answers[0].items.items()} | _turns_of_pieces(store, scope, found)
    said = {key: Said(str(item.value.get("speaker", "")), str(item.value.get(TEXT, "")), when(item).date()) for key, item in turns.items()}
    best = ranked(question, found, said)[:limit]
    for key, score in best:
        turns[key].score = score
    return [turns[key] for key, _ in best]


def _by_key(found: reading.Matches) -> Matches:
    keyword, semantic = ({address.key: score for address, score in scores.items()} for scores in (found.keyword, found.semantic))
    return Matches(keyword, semantic)


def _turns_of_pieces(store: "BasicStore", scope: Namespace, found: Mapping[Granularity, Matches]) -> dict[str, MemoryItem]:
    """Return turns of the best pieces, without those that were found themselves."""
    of_turns = found[Granularity.TURN]
    pieces = (_best_of(matches) for granularity, matches in found.items() if granularity is not Granularity.TURN)
    keys = {turn for best in pieces for key in best for turn in _turns(key)} - of_turns.keyword.keys() - of_turns.semantic.keys()
    place = episodic(scope, Granularity.TURN)
    items = store.batch([GetOp(place, key, refresh_ttl=False) for key in sorted(keys)])
    return {item.key: item for item in items if isinstance(item, MemoryItem)}


def _best_of(matches: Matches) -> list[str]:
    relevances = relevance(*matches)
    return sorted(relevances, key=lambda key: -relevances[key])[:_PIECES]


def _turns(key: str) -> Iterable[str]:
    about = span(key)
    return () if about is None or about.last - about.first >= _WIDEST else about.turns


_ALL = 1_000_000
"""More turns than `find` ranks."""


def ranks_turns(query: Query) -> bool:
    """Return whether a search asks for turns by words and meaning, without conditions that only the engine can evaluate."""
    is_plain = not query.conditions and not query.key_prefix and query.ranking == Ranking() and query.mode is SearchMode.HYBRID
    return is_plain and query.prefix[-2:] == (EPISODIC, Granularity.TURN.value) and bool(query.text and query.text.strip())


def search_turns(store: "BasicStore", reader: Reader, query: Query, *, refresh: bool) -> list[MemoryItem]:
    """Return a page of turns: first those that recall ranks, then all others that the engine finds.

    The first ones do not depend on the page, so pages fit together.
    """
    end = query.offset + query.limit
    best = find(store, query.prefix[:-2], query.text or "", limit=_ALL)
    ordered = [(item.address, item.score) for item in best]
    if len(ordered) < end:
        least, known = best[-1].score if best else None, {item.address for item in best}
        others = reader.search(replace(query, offset=0, limit=end), refresh=False)
        ordered += [(item.address, least) for item in others if item.address not in known]
    page = dict(ordered[query.offset : end])
    items = reader.get(list(page), list(page) if refresh else [])
    for item in (found := [item for item in items if item is not None]):
        item.score = page[item.address]
    return found
