"""The same calls to LangGraph's own stores and to this one: where theirs agree, this one answers as they do.

Where theirs disagree, the documented contract decides, and docs/memory.md says so.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from nearfar import MemoryStore, SearchMode

NOTES = ("notes",)
VALUES: dict[str, dict[str, Any]] = {
    "one": {"a": 1, "s": "x"},
    "two": {"a": 2.5, "s": "y"},
    "null": {"a": None, "s": "x"},
    "list": {"a": [1, "x"], "s": "z"},
    "missing": {"s": "x"},
}
AGREED: list[tuple[dict[str, Any], str]] = [
    ({"s": "x"}, "one null missing"),
    ({"s": {"$ne": "x"}}, "two list"),
    ({"a": 2.5}, "two"),
    ({"a": [1, "x"]}, "list"),
    ({"a": None}, "null missing"),
    ({"a": {"$eq": None}}, "null missing"),
    ({"a": {"$ne": None}}, "one two list"),
    ({"a": 1, "s": "x"}, "one"),
    ({"nothing": None}, "one two null list missing"),
    ({"nothing": 1}, ""),
    ({}, "one two null list missing"),
]
DOTTED: dict[str, dict[str, Any]] = {"name": {"a.b": 1}, "path": {"a": {"b": 1}}, "both": {"a.b": 2, "a": {"b": 1}}}


class Lengths:
    """A text's numbers of a few letters."""

    def __call__(self, texts: list[str]) -> list[list[float]]:
        return [[text.count(letter) + 0.01 for letter in "abcd"] for text in texts]


@contextmanager
def opened(name: str, *, is_indexed: bool = False) -> Iterator[BaseStore]:
    index: Any = {"dims": 4, "embed": Lengths(), "fields": ["text"]} if is_indexed else None
    match name:
        case "InMemoryStore":
            yield InMemoryStore(index=index)
        case "SqliteStore":
            sqlite = pytest.importorskip("langgraph.store.sqlite", reason="langgraph-checkpoint-sqlite is for tests only")
            with closing(connection()) as connected:
                theirs: BaseStore = sqlite.SqliteStore(connected, index=index)
                theirs.setup()  # type: ignore[attr-defined]  # the module is imported where it is there, without its types
                yield theirs
        case _:
            with MemoryStore.open(index=index, embedder=None, mode=SearchMode.SEMANTIC if is_indexed else None) as ours:
                yield ours


def connection() -> sqlite3.Connection:
    """Connect as LangGraph's store does: its vectors need an SQLite that loads extensions, as sqlcipher3's does where Python's does not."""
    module: Any = sqlite3
    if not hasattr(sqlite3.Connection, "enable_load_extension"):
        module = pytest.importorskip("sqlcipher3.dbapi2", reason="this Python's SQLite loads no extension")
    connected: sqlite3.Connection = module.connect(":memory:", check_same_thread=False, isolation_level=None)
    return connected


def keys(store: BaseStore, wanted: dict[str, Any]) -> set[str]:
    return {item.key for item in store.search(NOTES, filter=wanted, limit=100)}


@pytest.mark.parametrize("name", ["InMemoryStore", "SqliteStore", "MemoryStore"])
def test_filters_find_the_same_in_every_store(name: str) -> None:
    with opened(name) as store:
        for key, value in VALUES.items():
            store.put(NOTES, key, value)
        assert [(wanted, keys(store, wanted)) for wanted, _ in AGREED] == [(wanted, set(found.split())) for wanted, found in AGREED]


@pytest.mark.parametrize(
    ("name", "found"), [("InMemoryStore", {"name"}), ("SqliteStore", {"path", "both"}), ("MemoryStore", {"name", "path"})]
)
def test_a_key_with_a_period_is_a_name_or_a_path_and_here_whichever_an_item_has(name: str, found: set[str]) -> None:
    with opened(name) as store:
        for key, value in DOTTED.items():
            store.put(NOTES, key, value)
        assert keys(store, {"a.b": 1}) == found


@pytest.mark.parametrize(
    ("name", "found"), [("InMemoryStore", ["indexed", "hidden"]), ("SqliteStore", ["indexed"]), ("MemoryStore", ["indexed"])]
)
def test_an_item_that_is_not_indexed_is_found_without_a_query_and_not_by_meaning(name: str, found: list[str]) -> None:
    with opened(name, is_indexed=True) as store:
        store.put(NOTES, "hidden", {"text": "abc"}, index=False)
        store.put(NOTES, "indexed", {"text": "abc"})
        assert keys(store, {}) == {"indexed", "hidden"}
        assert [item.key for item in store.search(NOTES, query="abc")] == found
        assert store.get(NOTES, "hidden") is not None


@pytest.mark.parametrize("name", ["InMemoryStore", "SqliteStore", "MemoryStore"])
def test_pages_deletions_and_namespaces_are_the_same_in_every_store(name: str) -> None:
    with opened(name) as store:
        for number in range(5):
            store.put(("users", f"{number % 2}", "notes"), f"{number}", {"number": number})
        store.delete(("users", "0", "notes"), "4")
        store.delete(("users", "0", "notes"), "nothing")
        pages = [store.search(("users",), limit=3, offset=offset) for offset in (0, 3, 6)]
        assert [len(page) for page in pages] == [3, 1, 0]
        assert {item.key for page in pages for item in page} == {"0", "1", "2", "3"}
        assert store.list_namespaces(prefix=("users",), max_depth=2) == [("users", "0"), ("users", "1")]
        assert store.list_namespaces(suffix=("notes",)) == [("users", "0", "notes"), ("users", "1", "notes")]
        assert store.list_namespaces(prefix=("users", "*")) == [("users", "0", "notes"), ("users", "1", "notes")]
