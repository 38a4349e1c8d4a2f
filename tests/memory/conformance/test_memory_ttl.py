"""Items live as long as they are told to."""

import threading
from typing import Any

import pytest
from langgraph.store.base import GetOp, PutOp, SearchOp
from memory_bench import MINUTE, Clock, MakeStore

from nearfar import MemoryStore, SearchMode
from nearfar.orchestrator.memory.engine import Engine
from nearfar.protocols import InvalidRequest
from nearfar.protocols.items import ItemAddress

NOTES = ("notes",)


def test_an_item_is_gone_when_its_time_is_over(store: MemoryStore, clock: Clock) -> None:
    store.put(NOTES, "tea", {"text": "green"}, ttl=10)
    store.put(NOTES, "milk", {"text": "white"})
    clock.advance(10 * MINUTE - 1)
    assert store.get(NOTES, "tea", refresh_ttl=False) is not None
    clock.advance(1)
    assert store.get(NOTES, "tea") is None
    assert [item.key for item in store.search(NOTES)] == ["milk"]
    assert store.search(NOTES, query="green", mode=SearchMode.KEYWORD) == []
    assert [item.key for item in store.search(NOTES, query="green")] == ["milk"]
    assert store.batch([GetOp(NOTES, "tea")]) == [None]


def test_reading_an_item_begins_its_time_anew(store: MemoryStore, clock: Clock) -> None:
    for key in ("get", "search", "query", "batch", "none"):
        store.put(NOTES, key, {"of": key}, ttl=10)
    clock.advance(9 * MINUTE)
    store.get(NOTES, "get")
    store.search(NOTES, filter={"of": "search"})
    store.search(NOTES, query="query", filter={"of": "query"})
    store.batch([GetOp(NOTES, "batch"), GetOp(NOTES, "none", refresh_ttl=False), SearchOp(NOTES, {"of": "none"}, refresh_ttl=False)])
    clock.advance(9 * MINUTE)
    assert {item.key for item in store.search(NOTES)} == {"get", "search", "query", "batch"}


def test_reading_leaves_the_time_as_it_is_where_that_is_configured(make_store: MakeStore, clock: Clock) -> None:
    store = make_store(ttl={"refresh_on_read": False})
    store.put(NOTES, "tea", {}, ttl=10)
    store.put(NOTES, "milk", {}, ttl=10)
    clock.advance(9 * MINUTE)
    store.get(NOTES, "tea")
    store.get(NOTES, "milk", refresh_ttl=True)
    store.search(NOTES)
    clock.advance(9 * MINUTE)
    assert [item.key for item in store.search(NOTES)] == ["milk"]


def test_reading_does_not_count_as_a_change(store: MemoryStore, engine: Engine) -> None:
    version = store.put(NOTES, "tea", {}, ttl=10)
    position = engine.position()
    item = store.get(NOTES, "tea")
    assert item is not None
    assert (item.version, engine.position()) == (version, position)


def test_writing_an_item_begins_its_time_anew(store: MemoryStore, clock: Clock) -> None:
    store.put(NOTES, "put", {}, ttl=10)
    store.put(NOTES, "patched", {}, ttl=10)
    store.put(NOTES, "kept", {}, ttl=10)
    clock.advance(9 * MINUTE)
    store.put(NOTES, "put", {}, ttl=5)
    store.patch(NOTES, "patched", {"a": 1})
    store.put(NOTES, "kept", {})
    clock.advance(4 * MINUTE)
    assert {item.key for item in store.search(NOTES, refresh_ttl=False)} == {"put", "patched", "kept"}
    clock.advance(6 * MINUTE)
    assert {item.key for item in store.search(NOTES, refresh_ttl=False)} == {"kept"}


def test_the_configured_time_is_that_of_items_without_one_of_their_own(make_store: MakeStore, clock: Clock) -> None:
    store = make_store(ttl={"default_ttl": 10})
    store.put(NOTES, "default", {})
    store.put(NOTES, "longer", {}, ttl=30)
    store.put(NOTES, "for ever", {}, ttl=None)
    store.batch([PutOp(NOTES, "as the operation says", {})])
    clock.advance(20 * MINUTE)
    assert {item.key for item in store.search(NOTES)} == {"longer", "for ever", "as the operation says"}


def test_items_whose_time_is_over_can_be_shown_until_they_are_swept(make_store: MakeStore, clock: Clock) -> None:
    store = make_store(ttl={"omit_expired": False})
    store.put(NOTES, "tea", {"text": "green"}, ttl=10)
    clock.advance(11 * MINUTE)
    assert store.get(NOTES, "tea", refresh_ttl=False) is not None
    assert len(store.search(NOTES, query="green", refresh_ttl=False)) == 1
    assert store.list_namespaces() == [NOTES]
    assert make_store(ttl={"omit_expired": True}).list_namespaces() == []
    assert store.sweep() == 1
    assert store.get(NOTES, "tea") is None


def test_reading_does_not_bring_back_what_is_over(store: MemoryStore, clock: Clock) -> None:
    store.put(NOTES, "tea", {"text": "green"}, ttl=10)
    clock.advance(11 * MINUTE)
    assert store.get(NOTES, "tea", refresh_ttl=True) is None
    assert store.search(NOTES, query="green", refresh_ttl=True) == []
    assert store.get(NOTES, "tea") is None
    assert store.sweep() == 1


def test_reading_does_not_bring_back_what_is_over_where_it_is_still_shown(make_store: MakeStore, clock: Clock) -> None:
    store = make_store(ttl={"omit_expired": False})
    store.put(NOTES, "tea", {"text": "green"}, ttl=10)
    store.put(NOTES, "milk", {"text": "white"}, ttl=20)
    clock.advance(11 * MINUTE)
    assert store.get(NOTES, "tea", refresh_ttl=True) is not None
    assert len(store.search(NOTES, query="green", refresh_ttl=True)) == 2
    clock.advance(5 * MINUTE)
    assert store.sweep() == 1
    assert [item.key for item in store.search(NOTES, refresh_ttl=False)] == ["milk"]


def test_what_is_over_takes_no_place_on_a_page(store: MemoryStore, clock: Clock) -> None:
    for number in range(6):
        store.put(NOTES, str(number), {"text": "tea"}, ttl=10 if number % 2 else None)
    clock.advance(11 * MINUTE)
    assert [item.key for item in store.search(NOTES, limit=2)] == ["0", "2"]
    assert [item.key for item in store.search(NOTES, limit=2, offset=2)] == ["4"]
    assert len(store.search(NOTES, query="tea", limit=2)) == 2


def test_a_sweep_leaves_no_trace_of_what_is_over(store: MemoryStore, engine: Engine, clock: Clock) -> None:
    for number in range(7):
        store.put(NOTES, str(number), {"text": "tea"}, ttl=number + 1)
    clock.advance(5 * MINUTE)
    assert store.sweep() == 5
    assert store.sweep() == 0
    assert len(engine.traces(prefix=())) == 2
    assert len(engine.operations(0, limit=100)) == 2


def test_an_item_that_is_over_can_be_put_anew(store: MemoryStore, clock: Clock) -> None:
    store.put(NOTES, "tea", {"text": "green"}, ttl=10)
    clock.advance(11 * MINUTE)
    store.append(NOTES, "tea", "cups", [1])
    item = store.get(NOTES, "tea")
    assert item is not None
    assert item.value == {"cups": [1]}
    assert item.created_at == item.updated_at
    assert item.expires_at is None


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), True, "10"])
def test_a_time_to_live_that_makes_no_sense_is_refused(make_store: MakeStore, store: MemoryStore, ttl: Any) -> None:  # noqa: ANN401 - of any type
    with pytest.raises(InvalidRequest):
        store.put(NOTES, "tea", {}, ttl=ttl)
    with pytest.raises(InvalidRequest):
        make_store(ttl={"default_ttl": ttl})
    with pytest.raises(InvalidRequest):
        make_store(ttl={"sweep_interval_minutes": ttl})
    assert store.search(NOTES) == []


def test_a_store_can_sweep_by_itself(make_store: MakeStore, clock: Clock, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    swept = threading.Event()
    find_expired = engine.expired

    def expired(now: float, *, limit: int) -> list[ItemAddress]:
        found = find_expired(now, limit=limit)
        if not engine.traces(prefix=()):
            swept.set()
        return found

    make_store().put(NOTES, "tea", {}, ttl=12)
    clock.advance(13 * MINUTE)
    monkeypatch.setattr(engine, "expired", expired)
    with make_store(ttl={"sweep_interval_minutes": 1 / 6000}):  # type: ignore[typeddict-item]  # a test does not wait for a minute
        assert swept.wait(10)


def test_a_sweep_spares_what_was_read_meanwhile(store: MemoryStore, clock: Clock, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put(NOTES, "tea", {}, ttl=10)
    clock.advance(11 * MINUTE)
    find_expired, looks = engine.expired, iter([True, False])

    def expired(now: float, *, limit: int) -> list[ItemAddress]:
        found = find_expired(now, limit=limit)
        if next(looks, False):
            engine.refresh([ItemAddress(NOTES, "tea")], clock.time)
        return found

    monkeypatch.setattr(engine, "expired", expired)
    assert store.sweep() == 0
    assert store.get(NOTES, "tea") is not None
