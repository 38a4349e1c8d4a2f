"""Whoever watches a store hears of every item that changed, and of the last change."""

from collections.abc import Callable
from contextlib import aclosing, closing

import anyio
import pytest
from langgraph.store.base import PutOp
from memory_bench import Clock, MakeStore

from nearfar.orchestrator import MemoryStore
from nearfar.orchestrator.memory import Principal, Tier
from nearfar.orchestrator.memory.engine import Engine
from nearfar.orchestrator.memory.in_memory import InMemoryEngine

NOTES = ("notes",)


def told(store: MemoryStore, since: int = 0, **options: object) -> list[tuple[str, bool]]:
    changes, _ = store.changes(since, **options)  # type: ignore[arg-type]  # options of several types
    return [(change.address.key, change.item is not None) for change in changes]


def test_changes_are_told_in_order_and_once_for_each_item(store: MemoryStore) -> None:
    for key in ("a", "b", "c", "a"):
        store.put(NOTES, key, {})
    store.delete(NOTES, "b")
    assert told(store) == [("c", True), ("a", True), ("b", False)]


def test_changes_go_on_from_where_they_were_left(store: MemoryStore, engine: Engine) -> None:
    store.put(NOTES, "a", {})
    changes, position = store.changes()
    assert 0 < position == changes[-1].position <= engine.position()
    assert store.changes(position) == ([], position)
    store.put(NOTES, "b", {})
    assert told(store, position) == [("b", True)]


def test_changes_come_in_lots(store: MemoryStore) -> None:
    store.batch([PutOp(NOTES, f"{number:03}", {}) for number in range(25)])
    keys: list[str] = []
    position = -1
    while (found := store.changes(max(position, 0), limit=10))[1] != position:
        keys += [change.address.key for change in found[0]]
        position = found[1]
    assert keys == [f"{number:03}" for number in range(25)]


def test_changes_can_be_of_one_namespace(store: MemoryStore) -> None:
    store.put(("a",), "1", {})
    store.put(("b",), "2", {})
    store.put(("a", "c"), "3", {})
    assert told(store, prefix=("a",)) == [("1", True), ("3", True)]
    assert store.changes(prefix=("nothing",)) == ([], store.changes()[1])


def test_nobody_hears_of_what_is_not_meant_for_them(store: MemoryStore) -> None:
    store.put(NOTES, "private", {})
    store.put(NOTES, "shared", {}, tier=Tier.SHARED)
    store.put(NOTES, "was private", {})
    store.delete(NOTES, "was private")
    theirs = store.view(Principal("bob", "phone"))
    assert told(theirs) == [("shared", True)]
    theirs.put(NOTES, "theirs", {})
    assert told(theirs) == [("shared", True), ("theirs", True)]
    theirs.delete(NOTES, "theirs")
    assert told(theirs) == [("shared", True), ("theirs", False)]


@pytest.mark.anyio
async def test_a_watcher_hears_of_what_is_written_from_now_on(store: MemoryStore) -> None:
    await store.aput(NOTES, "before", {})
    heard: list[str] = []

    async def write() -> None:
        while not heard:  # the watcher may not have begun yet
            await store.aput(NOTES, "a", {})

    with anyio.fail_after(20):
        async with aclosing(store.watch(NOTES)) as changes, anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            heard.append((await anext(changes)).address.key)
    assert heard == ["a"]


@pytest.mark.anyio
async def test_a_watcher_goes_on_from_a_position(store: MemoryStore) -> None:
    await store.aput(NOTES, "before", {"n": 1})
    with anyio.fail_after(20):
        async with aclosing(store.watch(since=0)) as changes:
            change = await anext(changes)
    assert change.item is not None
    assert change.item.value == {"n": 1}
    assert 0 < change.position <= store.engine.position()


@pytest.mark.anyio
async def test_a_watcher_hears_of_what_others_write_to_the_database(
    open_engine: Callable[[str | None], Engine], clock: Clock, make_store: MakeStore, engine: Engine
) -> None:
    if isinstance(engine, InMemoryEngine):
        pytest.skip("nobody else can reach this process's memory")
    with anyio.fail_after(20), closing(open_engine(None)) as other:
        async with aclosing(make_store().watch(since=0)) as changes:
            MemoryStore(other, now=clock).put(NOTES, "a", {})
            assert (await anext(changes)).address.key == "a"


@pytest.mark.anyio
async def test_a_watcher_that_leaves_is_not_called_any_more(store: MemoryStore) -> None:
    await store.aput(NOTES, "a", {})
    async with aclosing(store.watch(since=0)) as changes:
        await anext(changes)
        assert store._watchers.count == 1
    assert store._watchers.count == 0
    await store.aput(NOTES, "b", {})
