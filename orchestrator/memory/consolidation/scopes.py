"""Which scopes a store has: below each there is a memory of its own."""

from ....protocols.namespaces import Namespace
from ..recall.granularity import EPISODIC, SEMANTIC, Granularity
from ..store import MemoryStore
from .journal import CONSOLIDATION, Journal

_ALL = 1_000_000
_MARKS: tuple[Namespace, ...] = ((EPISODIC, Granularity.SEGMENT.value), (SEMANTIC,))
"""What the namespaces of a scope end with that has something to be consolidated."""


def scopes(store: MemoryStore, prefix: Namespace = ()) -> list[Namespace]:
    """The scopes in or below a prefix that have something to be consolidated, in order."""
    return sorted({scope for mark in _MARKS for scope in _ending(store, mark) if scope[: len(prefix)] == prefix})


def journals(store: MemoryStore) -> list[Journal]:
    """Of all scopes in which anything was consolidated."""
    return [Journal(store, scope) for scope in _ending(store, (CONSOLIDATION,))]


def _ending(store: MemoryStore, mark: Namespace) -> list[Namespace]:
    return [namespace[: -len(mark)] for namespace in store.list_namespaces(suffix=mark, limit=_ALL)]
