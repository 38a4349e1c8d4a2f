"""What LangGraph's own SQLite store is known to get wrong (langgraph-checkpoint-sqlite 3.1), and this one does not.

Where it can be shown without an extension that SQLite has to load, it is shown; where that fails, they have mended it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from memory_bench import MINUTE, Clock, LetterEmbedder, MakeStore

from nearfar import MemoryStore, SearchMode

NOTES = ("notes",)


@contextmanager
def stock_store(**options: Any) -> Iterator[Any]:  # noqa: ANN401 - the options and the type of an extra that may be missing
    sqlite = pytest.importorskip("langgraph.store.sqlite", reason="langgraph-checkpoint-sqlite is for tests only")
    with sqlite.SqliteStore.from_conn_string(":memory:", **options) as store:
        store.setup()
        yield store


def test_no_vector_of_deleted_or_overwritten_text_is_left(make_store: MakeStore) -> None:
    store = make_store(mode=SearchMode.SEMANTIC)
    store.put(NOTES, "deleted", {"text": "qqq"})
    store.put(NOTES, "overwritten", {"text": "qqq"})
    store.delete(NOTES, "deleted")
    store.put(NOTES, "overwritten", {"text": "abc"}, index=False)
    assert store.search(NOTES, query="qqq") == []
    assert store.stats()["vectors"] == 0


def test_fields_that_are_not_configured_are_not_embedded(make_store: MakeStore, embedder: LetterEmbedder) -> None:
    make_store(fields=["title"]).put(NOTES, "a", {"title": "abc", "secret": "qqq"})
    assert embedder.seen == ["abc"]


def test_later_pages_of_a_search_are_not_empty(make_store: MakeStore) -> None:
    store = make_store(mode=SearchMode.SEMANTIC)
    for number in range(30):
        store.put(NOTES, str(number), {"text": f"abc {number}"})
    assert len(store.search(NOTES, query="abc", limit=5, offset=20)) == 5


@pytest.mark.filterwarnings("ignore:The default datetime adapter:DeprecationWarning")  # from Python 3.12 on, of the stock store
def test_what_has_expired_is_not_read(make_store: MakeStore, clock: Clock) -> None:
    store = make_store(ttl={"omit_expired": True})
    store.put(NOTES, "a", {}, ttl=1)
    clock.advance(2 * MINUTE)
    assert store.get(NOTES, "a") is None
    with stock_store(ttl={"omit_expired": True}) as theirs:
        theirs.put(NOTES, "a", {}, ttl=1)
        theirs.conn.execute("UPDATE store SET expires_at = '2020-01-01'")
        assert theirs.get(NOTES, "a") is not None


def test_an_item_that_is_overwritten_keeps_when_it_was_created(store: MemoryStore, clock: Clock) -> None:
    store.put(NOTES, "a", {"n": 1})
    clock.advance(MINUTE)
    store.put(NOTES, "a", {"n": 2})
    item = store.get(NOTES, "a")
    assert item is not None
    assert item.created_at < item.updated_at
    with stock_store() as theirs:
        theirs.put(NOTES, "a", {"n": 1})
        theirs.conn.execute("UPDATE store SET created_at = '2020-01-01 00:00:00'")
        theirs.put(NOTES, "a", {"n": 2})
        assert theirs.get(NOTES, "a").created_at.year != 2020
