"""Find the items that are about a prompt. Most prompts have nothing to do with most of the memory, so there is a bar to pass."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ...protocols.namespaces import ItemAddress, Namespace
from ..task.sections.memory import RecallConfig
from .item import Principal
from .reading import Matches
from .recall.granularity import EPISODIC, TEXT, WORKING, Span, span
from .recall.question import keywords, words
from .recall.relevance import relevance
from .recall.retrieval import find
from .rendering import said

if TYPE_CHECKING:
    from .memory_item import MemoryItem
    from .store import MemoryStore

_CANDIDATES: Final = 100
"""Items that are looked at, by words and by meaning each."""
_SHARED_WORDS: Final = 0.5
"""Share of the prompt's uncommon words that must occur in an item, if meanings cannot be compared."""


def relevant(store: "MemoryStore", prompt: str, config: RecallConfig) -> "list[MemoryItem]":
    """Return items of the store's own user, and shared ones, that are about the prompt: facts before turns, the best first.

    If a piece of an episode passes the bar, its turns are ranked as `recall.retrieval` does, together with their neighbours, which may
    be the answer: all of them, for `render` to cut to the budget. Working notes of runs are left out. Raises `StoreError`.
    """
    own = store.view(Principal(store.user, store.engine.device, config.prefixes, config.minimum_trust))
    (found,) = own.matches([()], keywords=keywords(prompt), text=prompt, limit=_CANDIDATES)
    scores = relevance(found.keyword, found.semantic)
    near = sorted(_near(found, prompt, config.minimum_similarity), key=lambda address: (-scores[address], address))
    known = [found.items[address] for address in near if not {EPISODIC, WORKING} & {*address.namespace[-2:-1]}]
    pieces = [address for address in near if address.namespace[-2:-1] == (EPISODIC,)]
    return [*known, *_turns(own, prompt, pieces)]


def _turns(store: "MemoryStore", prompt: str, pieces: Sequence[ItemAddress]) -> "list[MemoryItem]":
    """Return the best turns of the pieces and of their neighbours. A turn that only repeats the prompt is no answer."""
    spans: dict[Namespace, list[Span]] = {}
    for address in pieces:
        if (about := span(address.key)) is not None:
            spans.setdefault(address.namespace[:-2], []).append(about)
    turns = [turn for scope, near in spans.items() for turn in find(store, scope, prompt, limit=_CANDIDATES) if _is_beside(turn.key, near)]
    return [turn for turn in turns if turn.value.get(TEXT) != prompt]


def _is_beside(key: str, spans: Sequence[Span]) -> bool:
    turn = span(key)
    return turn is not None and any(one.session == turn.session and one.first - 1 <= turn.first <= one.last + 1 for one in spans)


def _near(found: Matches, prompt: str, minimum_similarity: float) -> list[ItemAddress]:
    """Return the addresses of the items that pass the bar."""
    if found.semantic:
        return [address for address, similarity in found.semantic.items() if similarity >= minimum_similarity]
    # There is no embedder, or it fails now.
    return [address for address in found.keyword if _coverage(prompt, found.items[address]) >= _SHARED_WORDS]


def _coverage(prompt: str, item: "MemoryItem") -> float:
    wanted = words(keywords(prompt))
    return len(wanted & words(said(item))) / len(wanted)
