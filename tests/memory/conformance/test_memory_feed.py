"""Whoever watches a store hears of every item that changed, and of the last change."""

import sys
from collections.abc import Callable
from contextlib import aclosing, closing

import anyio
import pytest
from in_memory_engine import InMemoryEngine
from langgraph.store.base import PutOp
from memory_bench import Clock, MakeStore

from nearfar import MemoryChange, MemoryStore, Principal, Tier
from nearfar.orchestrator.memory.engine import Engine
from nearfar.protocols import InvalidRequest

NOTES = ("notes",)


def key_of(change: MemoryChange) -> str:
    """Of the item; empty where that is not told."""
    return "" if change.address is None else change.address.key


def told(store: MemoryStore, since: int = 0, **options: object) -> list[tuple[str, bool]]:
    changes, _ = store.changes(since, **options)  # type: ignore[arg-type]  # options of several types
    return [(key_of(change), change.item is not None) for change in changes]


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
        keys += map(key_of, found[0])
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
            heard.append(key_of(await anext(changes)))
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
        pytest.skip("no other process can reach this process's memory")
    with anyio.fail_after(20), closing(open_engine(None)) as other:
        async with aclosing(make_store().watch(since=0)) as changes:
            MemoryStore(other, now=clock).put(NOTES, "a", {})
            assert key_of(await anext(changes)) == "a"


@pytest.mark.anyio
async def test_a_watcher_that_leaves_is_not_called_any_more(store: MemoryStore) -> None:
    await store.aput(NOTES, "a", {})
    async with aclosing(store.watch(since=0)) as changes:
        await anext(changes)
        assert store._watchers.count == 1
    assert store._watchers.count == 0
    await store.aput(NOTES, "b", {})


class Mirror:
    """A copy of a store that is made by its changes alone, without what it must not keep."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._position = 0
        self.items: dict[str, dict[str, object]] = {}

    def follow(self) -> list[dict[str, object]]:
        """Take in what is new; returns the values."""
        while (found := self._store.changes(self._position, limit=3))[1] != self._position:
            changes, self._position = found
            for change in changes:
                if change.item is None:
                    self.items.pop(change.tag, None)
                else:
                    self.items[change.tag] = change.item.value
        return sorted(self.items.values(), key=str)


def test_whoever_mirrors_a_store_hears_that_something_was_erased(store: MemoryStore) -> None:
    mirror = Mirror(store)
    for number in range(5):
        store.put(NOTES, f"carl {number}", {"n": number}, subject="carl" if number % 2 else "dora")
    assert len(mirror.follow()) == 5
    store.erase(subject="carl")
    assert mirror.follow() == [{"n": 0}, {"n": 2}, {"n": 4}]
    store.put(NOTES, "carl 1", {"n": "anew"})
    assert len(mirror.follow()) == 4
    store.erase(prefix=NOTES)
    assert mirror.follow() == []
    assert told(store) == [("", False)] * 5  # and nothing of what they were called


def test_whoever_mirrors_a_store_hears_of_what_was_swept(store: MemoryStore, clock: Clock) -> None:
    mirror = Mirror(store)
    store.put(NOTES, "short", {"n": 1}, ttl=1)
    store.put(NOTES, "long", {"n": 2})
    assert len(mirror.follow()) == 2
    clock.advance(120)
    store.sweep()
    assert mirror.follow() == [{"n": 2}]


def test_a_view_hears_nothing_of_what_was_forgotten(store: MemoryStore) -> None:
    store.put(NOTES, "private", {}, subject="carl")
    theirs = store.view(Principal("bob", "phone"))
    position = store.engine.position()
    store.erase(subject="carl")
    assert theirs.changes(position)[0] == []
    assert len(store.changes(position)[0]) == 1


def test_whoever_was_away_for_too_long_has_to_begin_anew(store: MemoryStore, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    package = type(engine).__module__
    module = sys.modules.get(f"{package}.transaction", sys.modules[package])
    monkeypatch.setattr(module, "MOST_FORGOTTEN", 3)
    store.put(NOTES, "kept", {})
    position = engine.position()
    for number in range(5):
        store.put((*NOTES, str(number)), "a", {})
        store.erase(prefix=(*NOTES, str(number)))
    with pytest.raises(InvalidRequest, match="no longer reaches back"):
        store.changes(position)
    assert told(store) == [("kept", True), *[("", False)] * 3]
    assert store.changes(engine.position() - 1)[0][0].item is None
