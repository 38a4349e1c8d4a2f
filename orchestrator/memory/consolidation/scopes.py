"""List the scopes of a store: each has a memory of its own."""

from ....protocols.namespaces import Namespace
from ..recall.granularity import EPISODIC, SEMANTIC, Granularity
from ..store import MemoryStore
from .journal import CONSOLIDATION, Journal

_ALL = 1_000_000
_MARKS: tuple[Namespace, ...] = ((EPISODIC, Granularity.SEGMENT.value), (SEMANTIC,))
"""The ends of a scope's namespaces that hold items to consolidate."""


def scopes(store: MemoryStore, prefix: Namespace = ()) -> list[Namespace]:
    """Return the scopes in or below a prefix that have items to consolidate, in order."""
    return sorted({scope for mark in _MARKS for scope in _ending(store, mark) if scope[: len(prefix)] == prefix})


def journals(store: MemoryStore) -> list[Journal]:
    """Return the journals of all scopes that were consolidated before."""
    return [Journal(store, scope) for scope in _ending(store, (CONSOLIDATION,))]


def _ending(store: MemoryStore, mark: Namespace) -> list[Namespace]:
    return [namespace[: -len(mark)] for namespace in store.list_namespaces(suffix=mark, limit=_ALL)]
