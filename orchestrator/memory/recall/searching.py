"""`MemoryStore.search` below a namespace of turns: the same turns in the same order as recall."""

from dataclasses import replace
from typing import TYPE_CHECKING

from ..fusion import Ranking
from ..memory_item import MemoryItem
from ..reading import Query, Reader, SearchMode
from .granularity import EPISODIC, Granularity
from .retrieval import find

if TYPE_CHECKING:
    from ..basic_store import BasicStore

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
