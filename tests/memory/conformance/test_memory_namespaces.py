"""Namespaces: what is below them, which there are, and which cannot be."""

from collections.abc import Callable
from typing import Any

import pytest
from langgraph.store.base import InvalidNamespaceError, ListNamespacesOp, MatchCondition, PutOp, SearchOp
from memory_bench import MINUTE, Clock

from nearfar import MemoryStore
from nearfar.protocols import InvalidRequest

TREE = [
    *[("a",), ("a", "b"), ("a", "b", "c"), ("a", "bb"), ("ab",), ("a_", "b"), ("a%", "b"), ("a*", "b"), ("a?",), ("A",), ("a\n",)],
    *[
        ("users", "ann", "notes"),
        ("users", "bob", "notes"),
        ("users", "joann", "x", "notes"),
        ("é",),
        ("e\u0301",),
        ("日本",),
        ("a/b",),
        ("a|b",),
    ],
]
MATCHES: list[tuple[dict[str, Any], list[tuple[str, ...]]]] = [
    ({"suffix": ("notes",)}, [("users", "ann", "notes"), ("users", "bob", "notes"), ("users", "joann", "x", "notes")]),
    ({"suffix": ("ann", "notes")}, [("users", "ann", "notes")]),
    ({"prefix": ("users", "*", "notes")}, [("users", "ann", "notes"), ("users", "bob", "notes")]),
    ({"prefix": ("*", "b")}, [("a", "b"), ("a", "b", "c"), ("a%", "b"), ("a*", "b"), ("a_", "b")]),
    ({"suffix": ("*", "x", "*")}, [("users", "joann", "x", "notes")]),
    ({"prefix": ("users",), "suffix": ("x", "notes")}, [("users", "joann", "x", "notes")]),
    ({"prefix": ("users",), "max_depth": 1}, [("users",)]),
    ({"prefix": ("users",), "max_depth": 2}, [("users", "ann"), ("users", "bob"), ("users", "joann")]),
    ({"prefix": ("a", "b"), "max_depth": 5}, [("a", "b"), ("a", "b", "c")]),
    ({"prefix": ("nowhere",)}, []),
    ({"prefix": ("users", "ann", "notes", "deeper")}, []),
    ({"prefix": ["users", "ann"]}, [("users", "ann", "notes")]),
]

UNREADABLE: list[Any] = [("",), ("a.b",), ("a\0",), ("\ud800",), (1,), "notes", None, ("x" * 257,), ("x",) * 33]
UNWRITABLE: list[Any] = [(), ("langgraph",), ("langgraph", "x")]
WRITES: list[Callable[[MemoryStore, Any], object]] = [
    lambda store, namespace: store.put(namespace, "k", {}),
    lambda store, namespace: store.batch([PutOp(namespace, "k", {})]),
    lambda store, namespace: store.supersede(namespace, "k", {}),
    lambda store, namespace: store.append(namespace, "k", "f", []),
]
READS: list[Callable[[MemoryStore, Any], object]] = [
    lambda store, namespace: store.batch([SearchOp(namespace)]),
    lambda store, namespace: store.batch([ListNamespacesOp((MatchCondition("prefix", namespace),))]),
    lambda store, namespace: store.get(namespace, "k"),
    lambda store, namespace: store.delete(namespace, "k"),
    lambda store, namespace: store.search(namespace),
]


@pytest.fixture
def tree(store: MemoryStore) -> MemoryStore:
    for namespace in TREE:
        store.put(namespace, "k", {"text": "leaf"})
    return store


def test_a_search_looks_into_a_namespace_and_below_it(tree: MemoryStore) -> None:
    for prefix in [(), *TREE, ("users",), ("users", "ann"), ("u",), ("a", "b", "c", "d")]:
        below = {namespace for namespace in TREE if namespace[: len(prefix)] == prefix}
        assert {item.namespace for item in tree.search(prefix, limit=100)} == below
        assert {item.namespace for item in tree.search(prefix, query="leaf", limit=100)} == below
        assert set(tree.list_namespaces(prefix=prefix)) == below


def test_namespaces_are_told_once_and_in_order(tree: MemoryStore) -> None:
    tree.put(("a",), "another", {})
    assert tree.list_namespaces() == sorted(TREE)


def test_namespaces_match(tree: MemoryStore) -> None:
    for options, found in MATCHES:
        assert tree.list_namespaces(**options) == found


def test_namespaces_come_in_pages(tree: MemoryStore) -> None:
    assert [one for offset in range(0, 30, 4) for one in tree.list_namespaces(limit=4, offset=offset)] == sorted(TREE)
    cut = tree.list_namespaces(max_depth=1)
    assert [one for offset in range(0, 30, 3) for one in tree.list_namespaces(max_depth=1, limit=3, offset=offset)] == cut
    assert tree.list_namespaces(limit=0) == []


def test_namespaces_without_living_items_are_not_told(store: MemoryStore, clock: Clock) -> None:
    store.put(("gone",), "k", {})
    store.delete(("gone",), "k")
    store.put(("mortal",), "k", {}, ttl=1)
    store.put(("there",), "k", {})
    clock.advance(2 * MINUTE)
    assert store.list_namespaces() == [("there",)]


def test_a_namespace_that_cannot_be_is_refused(store: MemoryStore) -> None:
    for namespace in (*UNREADABLE, *UNWRITABLE):
        for write in WRITES:
            with pytest.raises(InvalidNamespaceError) as refused:
                write(store, namespace)
            assert isinstance(refused.value, InvalidRequest)


def test_a_namespace_that_cannot_be_is_not_looked_into_either(store: MemoryStore) -> None:
    for namespace in UNREADABLE:
        for read in READS:
            with pytest.raises(InvalidNamespaceError):
                read(store, namespace)


def test_the_root_of_langgraph_itself_may_be_read(store: MemoryStore) -> None:
    assert store.search(("langgraph",)) == []


def test_an_unknown_kind_of_match_is_refused(store: MemoryStore) -> None:
    with pytest.raises(InvalidRequest, match="prefix or suffix"):
        store.batch([ListNamespacesOp((MatchCondition("infix", ("a",)),))])  # type: ignore[arg-type]  # what is tested
    with pytest.raises(InvalidRequest, match="max_depth"):
        store.list_namespaces(max_depth=0)
