"""Which items are about a prompt. Most prompts have nothing to do with most of what is remembered, so there is a bar to pass."""

from typing import TYPE_CHECKING, Final

from .item import Namespace, Principal
from .recall.granularity import EPISODIC, WORKING, Granularity
from .recall.question import keywords, words
from .recall.relevance import relevance
from .rendering import said
from .settings import RecallConfig

if TYPE_CHECKING:
    from .memory_item import MemoryItem
    from .store import MemoryStore

_CANDIDATES: Final = 50
"""Items that are looked at, by words and by meaning each."""
_SHARED_WORDS: Final = 0.5
"""Of the prompt's words that are not common ones, so many have to occur in an item, where meanings cannot be compared."""
_REPEATING: Final = {(EPISODIC, Granularity.SEGMENT.value), (EPISODIC, Granularity.KEYWORDS.value)}
"""Ends of namespaces whose items say again what others say."""


def relevant(store: "MemoryStore", prompt: str, config: RecallConfig) -> "list[MemoryItem]":
    """Items of the store's own user, and shared ones, that are about the prompt, the best first. Raises `StoreError`."""
    own = store.view(Principal(store.user, store.engine.device, config.prefixes, config.minimum_trust))
    (found,) = own.matches([()], keywords=keywords(prompt), text=prompt, limit=_CANDIDATES)
    if found.semantic:
        near = {address for address, similarity in found.semantic.items() if similarity >= config.minimum_similarity}
    else:  # there is no embedder, or it failed
        near = {address for address in found.keyword if _coverage(prompt, found.items[address]) >= _SHARED_WORDS}
    scores = relevance(found.keyword, found.semantic)
    ordered = sorted(near, key=lambda address: (-scores[address], address))
    return [found.items[address] for address in ordered if address in found.items and _speaks_for_itself(address.namespace)]


def _speaks_for_itself(namespace: Namespace) -> bool:
    return namespace[-2:] not in _REPEATING and WORKING not in namespace[-2:-1]


def _coverage(prompt: str, item: "MemoryItem") -> float:
    wanted = words(keywords(prompt))
    return len(wanted & words(said(item))) / len(wanted)
