"""Items are written, read and deleted as LangGraph's interface documents it, and never half."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
from langgraph.store.base import GetOp, Item, ListNamespacesOp, Op, PutOp, SearchItem, SearchOp
from memory_bench import MINUTE, Clock, MakeStore

from nearfar import MemoryStore
from nearfar.orchestrator.memory.engine import Engine
from nearfar.protocols import InvalidRequest, NotFound, VersionConflict

NOTES = ("notes",)


def test_an_item_is_what_was_put(store: MemoryStore) -> None:
    store.put(NOTES, "tea", {"text": "green", "cups": 2, "hot": True, "milk": None, "days": [1, 2.5, {"of": "week"}]})
    item = store.get(NOTES, "tea")
    assert isinstance(item, Item)
    assert isinstance(item, SearchItem)
    assert (item.namespace, item.key) == (NOTES, "tea")
    assert item.value == {"text": "green", "cups": 2, "hot": True, "milk": None, "days": [1, 2.5, {"of": "week"}]}
    assert item.score is None


def test_every_json_value_comes_back_with_its_types(store: MemoryStore) -> None:
    values: list[dict[str, Any]] = [
        {},
        {"a": 1e300},
        {"a": -0.5},
        {"a": 2**63 - 1},
        {"a": -(2**63)},
        {"a": 10.0},
        {"a": [[], {}]},
        {"": ""},
    ]
    for value in values:
        store.put(NOTES, "k", value)
        item = store.get(NOTES, "k")
        assert item is not None
        assert repr(item.value) == repr(value)


def test_every_text_can_be_a_key_a_label_and_a_value(store: MemoryStore) -> None:
    for text in ["日本語", "😀", "a\nb\tc", "'; DROP TABLE items; --", '"quoted"', "\\", "%_*", "\u202e", "é"]:
        store.put((text, "x"), text, {text: text})
        item = store.get((text, "x"), text)
        assert item is not None
        assert item.value == {text: text}
        assert [found.key for found in store.search((text,))] == [text]
        assert store.list_namespaces(prefix=(text,)) == [(text, "x")]


def test_what_is_not_there_is_none(store: MemoryStore) -> None:
    store.put(NOTES, "tea", {})
    assert store.get(NOTES, "coffee") is None
    assert store.get(("notes", "tea"), "tea") is None


def test_a_key_that_is_no_text_is_taken_as_text(store: MemoryStore) -> None:
    store.put(NOTES, 7, {"a": 1})  # type: ignore[arg-type]  # as LangGraph does it
    assert store.get(NOTES, "7") is not None


def test_an_item_that_is_put_again_keeps_when_it_was_created(store: MemoryStore, clock: Clock) -> None:
    store.put(NOTES, "tea", {"text": "green"})
    clock.advance(90)
    store.put(NOTES, "tea", {"text": "black"})
    item = store.get(NOTES, "tea")
    assert item is not None
    assert item.created_at == datetime.fromtimestamp(clock.time - 90, UTC)
    assert item.updated_at == datetime.fromtimestamp(clock.time, UTC)


def test_an_item_that_was_deleted_and_is_put_again_is_a_new_one(store: MemoryStore, clock: Clock) -> None:
    store.put(NOTES, "tea", {"text": "green"})
    store.delete(NOTES, "tea")
    clock.advance(90)
    store.put(NOTES, "tea", {"text": "black"})
    item = store.get(NOTES, "tea")
    assert item is not None
    assert item.created_at == item.updated_at == datetime.fromtimestamp(clock.time, UTC)


def test_a_put_replaces_the_whole_value(store: MemoryStore) -> None:
    store.put(NOTES, "tea", {"text": "green", "cups": 2})
    store.put(NOTES, "tea", {"text": "black"})
    item = store.get(NOTES, "tea")
    assert item is not None
    assert item.value == {"text": "black"}


def test_a_deleted_item_is_gone_from_everywhere(store: MemoryStore) -> None:
    store.put(NOTES, "tea", {"text": "green"})
    store.delete(NOTES, "tea")
    assert store.get(NOTES, "tea") is None
    assert store.search(()) == []
    assert store.search((), query="green") == []
    assert store.list_namespaces() == []


def test_deleting_what_is_not_there_does_nothing(store: MemoryStore, engine: Engine) -> None:
    store.delete(NOTES, "tea")
    assert engine.position() == 0


def test_what_was_read_is_a_copy(store: MemoryStore) -> None:
    given = {"days": [1]}
    store.put(NOTES, "tea", given)
    given["days"].append(2)
    first, second = store.batch([GetOp(NOTES, "tea"), GetOp(NOTES, "tea")])
    assert isinstance(first, Item)
    first.value["days"].append(3)
    assert isinstance(second, Item)
    assert second.value == {"days": [1]}
    for item in (store.get(NOTES, "tea"), *store.search(())):
        assert item is not None
        item.value["days"].append(4)
    item = store.get(NOTES, "tea")
    assert item is not None
    assert item.value == {"days": [1]}


def test_a_batch_answers_in_order(store: MemoryStore) -> None:
    store.put(NOTES, "tea", {"text": "green"})
    ops: list[Op] = [
        SearchOp(NOTES, {"text": "green"}, 5, 0),
        PutOp(NOTES, "coffee", {"text": "black"}),
        GetOp(NOTES, "tea"),
        ListNamespacesOp(None, None, 5, 0),
        GetOp(NOTES, "milk"),
    ]
    found, written, item, namespaces, missing = store.batch(ops)
    assert isinstance(found, list)
    assert [one.key for one in found if isinstance(one, Item)] == ["tea"]
    assert written is None
    assert isinstance(item, Item)
    assert item.value == {"text": "green"}
    assert namespaces == [NOTES]
    assert missing is None
    assert store.get(NOTES, "coffee") is not None


def test_a_batch_reads_what_was_there_before_its_writes(store: MemoryStore) -> None:
    store.put(NOTES, "tea", {"text": "green"})
    ops: list[Op] = [
        PutOp(NOTES, "tea", {"text": "black"}),
        GetOp(NOTES, "tea"),
        PutOp(NOTES, "milk", {}),
        GetOp(NOTES, "milk"),
        SearchOp(()),
    ]
    _, tea, _, milk, found = store.batch(ops)
    assert isinstance(tea, Item)
    assert tea.value == {"text": "green"}
    assert milk is None
    assert isinstance(found, list)
    assert len(found) == 1


def test_of_several_writes_to_an_item_in_a_batch_the_last_one_counts(store: MemoryStore, engine: Engine) -> None:
    store.batch([PutOp(NOTES, "a", {"n": 1}), PutOp(NOTES, "b", {"n": 2}), PutOp(NOTES, "a", None), PutOp(NOTES, "a", {"n": 3})])
    item = store.get(NOTES, "a")
    assert item is not None
    assert item.value == {"n": 3}
    assert store.batch([PutOp(NOTES, "b", {"n": 4}), PutOp(NOTES, "b", None)]) == [None, None]
    assert store.get(NOTES, "b") is None
    assert len(engine.operations(0, limit=10)) == 2


def test_a_batch_that_holds_something_wrong_writes_nothing(store: MemoryStore) -> None:
    with pytest.raises(InvalidRequest):
        store.batch([PutOp(NOTES, "a", {"n": 1}), PutOp(NOTES, "b", {"n": {1, 2}})])
    with pytest.raises(InvalidRequest):
        store.batch([PutOp(NOTES, "a", {"n": 1}), "put"])  # type: ignore[list-item]
    assert store.search(()) == []


def test_an_empty_batch_answers_nothing(store: MemoryStore) -> None:
    assert store.batch([]) == []


@pytest.mark.anyio
async def test_the_asynchronous_methods_do_the_same(store: MemoryStore) -> None:
    version = await store.aput(NOTES, "tea", {"text": "green tea"})
    item = await store.aget(NOTES, "tea")
    assert item is not None
    assert (item.value, item.version) == ({"text": "green tea"}, version)
    assert [found.key for found in await store.asearch(NOTES, query="tea")] == ["tea"]
    assert await store.alist_namespaces() == [NOTES]
    await store.aappend(NOTES, "list", "items", [1])
    await store.apatch(NOTES, "tea", {"cups": 2})
    await store.asupersede(NOTES, "tea", {"text": "black tea"})
    assert [one.value["text"] for one in await store.ahistory(NOTES, "tea")] == ["black tea", "green tea"]
    await store.adelete(NOTES, "tea")
    assert await store.abatch([GetOp(NOTES, "tea"), PutOp(NOTES, "milk", {})]) == [None, None]
    assert len(await store.aerase(prefix=NOTES)) == 4
    assert await store.asweep() == await store.aindex_pending() == 0


@pytest.mark.anyio
async def test_many_tasks_write_at_once_and_lose_nothing(store: MemoryStore) -> None:
    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(store.aappend, NOTES, "log", "entries", [number])
    item = await store.aget(NOTES, "log")
    assert item is not None
    assert sorted(item.value["entries"]) == list(range(20))


def test_threads_that_append_lose_nothing(store: MemoryStore) -> None:
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: store.append(NOTES, "log", "entries", [number, -number]), range(1, 21)))
    item = store.get(NOTES, "log")
    assert item is not None
    assert sorted(map(abs, item.value["entries"])) == sorted([*range(1, 21), *range(1, 21)])


def test_threads_that_count_with_compare_and_set_lose_nothing(store: MemoryStore) -> None:
    store.put(NOTES, "counter", {"n": 0})

    def count(_: int) -> int:
        tries = 0
        while True:
            item = store.get(NOTES, "counter")
            assert item is not None
            tries += 1
            try:
                store.put(NOTES, "counter", {"n": item.value["n"] + 1}, if_version=item.version)
            except VersionConflict:
                continue
            return tries

    with ThreadPoolExecutor(4) as threads:
        tries = list(threads.map(count, range(20)))
    item = store.get(NOTES, "counter")
    assert item is not None
    assert item.value == {"n": 20}
    assert min(tries) >= 1


def test_a_write_meant_for_another_version_is_refused(store: MemoryStore) -> None:
    first = store.put(NOTES, "tea", {"n": 1})
    second = store.put(NOTES, "tea", {"n": 2}, if_version=first)
    assert first != second
    for write in (
        lambda: store.put(NOTES, "tea", {"n": 3}, if_version=first),
        lambda: store.patch(NOTES, "tea", {"n": 3}, if_version=first),
        lambda: store.supersede(NOTES, "tea", {"n": 3}, if_version=first),
        lambda: store.delete(NOTES, "tea", if_version=first),
        lambda: store.put(NOTES, "tea", {"n": 3}, if_version="absent"),
    ):
        with pytest.raises(VersionConflict, match="read it again"):
            write()
    item = store.get(NOTES, "tea")
    assert item is not None
    assert (item.value, item.version) == ({"n": 2}, second)


def test_absent_is_the_version_of_what_is_not_there(store: MemoryStore, clock: Clock) -> None:
    store.put(NOTES, "tea", {"n": 1}, if_version="absent", ttl=1)
    store.delete(NOTES, "tea")
    store.put(NOTES, "tea", {"n": 2}, if_version="absent", ttl=1)
    clock.advance(2 * MINUTE)
    store.put(NOTES, "tea", {"n": 3}, if_version="absent")
    with pytest.raises(VersionConflict):
        store.put(NOTES, "milk", {}, if_version="1f@device")


def test_writing_the_same_again_is_a_new_version(store: MemoryStore) -> None:
    assert store.put(NOTES, "tea", {"n": 1}) != store.put(NOTES, "tea", {"n": 1})


def test_append_makes_the_item_and_the_list(store: MemoryStore) -> None:
    store.append(NOTES, "log", "entries", ["a"])
    store.append(NOTES, "log", "others", ["b", {"c": 1}])
    store.append(NOTES, "log", "entries", [])
    item = store.get(NOTES, "log")
    assert item is not None
    assert item.value == {"entries": ["a"], "others": ["b", {"c": 1}]}


def test_append_refuses_what_is_no_list(store: MemoryStore) -> None:
    store.put(NOTES, "tea", {"text": "green"})
    with pytest.raises(InvalidRequest, match="no list"):
        store.append(NOTES, "tea", "text", ["a"])


def test_a_list_cannot_grow_beyond_what_a_value_may_have(make_store: MakeStore) -> None:
    store = make_store(maximum_bytes=1000)
    store.append(NOTES, "log", "entries", ["a" * 600])
    with pytest.raises(InvalidRequest, match="too large"):
        store.append(NOTES, "log", "entries", ["a" * 600])
    item = store.get(NOTES, "log")
    assert item is not None
    assert len(item.value["entries"]) == 1


def test_patch_sets_and_removes_fields_and_leaves_the_rest(store: MemoryStore) -> None:
    store.put(NOTES, "tea", {"text": "green", "cups": 2, "hot": True}, index=["text"], ttl=5)
    store.patch(NOTES, "tea", {"cups": 3, "milk": None}, remove=["hot", "sugar"])
    item = store.get(NOTES, "tea")
    assert item is not None
    assert item.value == {"text": "green", "cups": 3, "milk": None}
    assert item.expires_at is not None
    with pytest.raises(NotFound, match="milk"):
        store.patch(NOTES, "milk", {"a": 1})


def test_what_was_written_is_there_for_others_who_open_the_database(
    open_engine: Callable[[str | None], Engine], clock: Clock, request: pytest.FixtureRequest
) -> None:
    first = open_engine(None)
    version = MemoryStore(first, now=clock).put(NOTES, "tea", {"text": "green"})
    second = open_engine(None)
    if request.node.callspec.params["open_engine"] in ("plain", "memory"):  # each is one of its own
        second = first
    item = MemoryStore(second, now=clock).get(NOTES, "tea")
    assert item is not None
    assert (item.version, second.device) == (version, first.device)
    first.close()
    second.close()
