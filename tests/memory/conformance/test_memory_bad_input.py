"""What cannot be stored is refused before anything is written, with words that help."""

import enum
from collections import UserDict, deque
from datetime import UTC, datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any

import pytest
from langgraph.store.base import PutOp, SearchOp
from memory_bench import MakeStore

from nearfar import MemoryStore
from nearfar.orchestrator.memory.engine import Engine
from nearfar.protocols import ConfigError, InvalidRequest

NOTES = ("notes",)


def circle() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = [value]
    return value


def tower(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"in": value}
    return value


def billion_laughs() -> dict[str, Any]:
    value: list[Any] = ["ha"]
    for _ in range(40):
        value = [value, value]
    return {"a": value}


BAD: dict[str, Any] = {
    "not a number": {"a": float("nan")},
    "infinite": {"a": [float("-inf")]},
    "set": {"a": {1}},
    "bytes": {"a": b"x"},
    "date": {"a": datetime.now(UTC)},
    "object": {"a": object()},
    "deque": {"a": deque([1])},
    "key": {1: "a"},
    "inner key": {"a": {None: 1}},
    "surrogate": {"a": "\ud800"},
    "surrogate key": {"\udfff": 1},
    "nul": {"a": "x\0"},
    "nul key": {"\0": 1},
    "large integer": {"a": 2**63},
    "large negative integer": {"a": -(2**63) - 1},
    "circle": circle(),
    "tower": tower(100),
    "laughs": billion_laughs(),
    "list": [1],
    "text": "text",
    "number": 7,
    "large": {"a": "x" * 10_000_000},
    "many": {"a": [1] * 200_000},
    "large key": {"x" * 2_000_000: 1},
}


@pytest.mark.parametrize("name", BAD)
def test_a_value_that_cannot_be_stored_is_refused(make_store: MakeStore, engine: Engine, name: str) -> None:
    store = make_store(maximum_bytes=5_000)
    for write in (
        lambda: store.put(NOTES, "k", BAD[name]),
        lambda: store.batch([PutOp(NOTES, "fine", {}), PutOp(NOTES, "k", BAD[name])]),
        lambda: store.supersede(NOTES, "k", BAD[name]),
        lambda: (
            store.append(NOTES, "k", "list", [BAD[name]]) if name not in ("list", "text", "number") else store.put(NOTES, "k", BAD[name])
        ),
    ):
        with pytest.raises(InvalidRequest) as refused:
            write()
        assert len(str(refused.value)) < 400
    assert engine.position() == 0


def test_an_error_says_where_in_the_value_it_is(store: MemoryStore) -> None:
    with pytest.raises(InvalidRequest, match=r"value\.a\[1\]\.b is nan"):
        store.put(NOTES, "k", {"a": [1, {"b": float("nan")}]})


def test_a_value_may_be_as_large_as_the_store_allows(make_store: MakeStore, engine: Engine) -> None:
    store = make_store(maximum_bytes=100)
    store.put(NOTES, "k", {"a": "x" * 92}, index=False)
    for text in ("x" * 93, "\n" * 60, "é" * 60):
        with pytest.raises(InvalidRequest, match="maximum_bytes"):
            store.put(NOTES, "k", {"a": text}, index=False)
    make_store(maximum_bytes=10_000_000).put(NOTES, "k", {"a": "x" * 3_000_000}, index=False)


def test_what_is_nearly_json_becomes_json(store: MemoryStore) -> None:
    class Color(enum.StrEnum):
        RED = "red"

    class Number(enum.IntEnum):
        ONE = 1

    value = MappingProxyType({"a": (1, (2,)), "b": Color.RED, "c": Number.ONE, "d": UserDict({"e": 1})})
    store.put(NOTES, "k", value)
    item = store.get(NOTES, "k")
    assert item is not None
    assert repr(item.value) == "{'a': [1, [2]], 'b': 'red', 'c': 1, 'd': {'e': 1}}"


def test_a_value_may_name_one_part_twice(store: MemoryStore) -> None:
    part = [1]
    store.put(NOTES, "k", {"a": part, "b": [part, part]})
    item = store.get(NOTES, "k")
    assert item is not None
    assert item.value == {"a": [1], "b": [[1], [1]]}


@pytest.mark.parametrize("key", ["", "x" * 2000, "a\0", "\ud800"])
def test_a_key_that_cannot_be_is_refused(store: MemoryStore, engine: Engine, key: str) -> None:
    for call in (
        lambda: store.put(NOTES, key, {}),
        lambda: store.get(NOTES, key),
        lambda: store.delete(NOTES, key),
        lambda: store.history(NOTES, key),
        lambda: store.resolve(NOTES, key),
    ):
        with pytest.raises(InvalidRequest):
            call()
    assert engine.position() == 0


def test_the_longest_key_can_be_superseded(store: MemoryStore) -> None:
    store.supersede(NOTES, "é" * 768, {"n": 1})
    store.supersede(NOTES, "é" * 768, {"n": 2})
    past = store.history(NOTES, "é" * 768)[1]
    assert store.get(NOTES, past.key) is not None


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 2000, 5])
def test_a_name_that_no_peer_would_take_is_stamped_on_nothing(store: MemoryStore, engine: Engine, name: Any) -> None:  # noqa: ANN401
    store.put(NOTES, "there", {"a": 1})
    position = engine.position()
    with pytest.raises(InvalidRequest):
        store.put(NOTES, "x", {"a": 1}, subject=name)
    with pytest.raises(InvalidRequest):
        store.bound(agent=name).put(NOTES, "x", {"a": 1})
    with pytest.raises(InvalidRequest):
        store.bound(subject=name).patch(NOTES, "there", {"a": 1})
    assert engine.position() == position


@pytest.mark.parametrize("year", [1, 9999])
def test_a_moment_of_which_there_is_no_date_elsewhere_is_refused(store: MemoryStore, engine: Engine, year: int) -> None:
    store.put(NOTES, "x", {"a": 1})
    position = engine.position()
    with pytest.raises(InvalidRequest, match="time"):
        store.supersede(NOTES, "x", {"a": 2}, valid_from=datetime(year, 1, 1, tzinfo=timezone(timedelta(hours=(-14 if year > 1 else 14)))))
    assert engine.position() == position


@pytest.mark.parametrize("minutes", [1e15, 1e308, 10**20, 10**400, float("inf"), float("nan")])
def test_a_time_to_live_beyond_all_dates_is_refused(store: MemoryStore, engine: Engine, minutes: float) -> None:
    position = engine.position()
    with pytest.raises(InvalidRequest, match="time to live"):
        store.put(NOTES, "x", {"a": 1}, ttl=minutes)
    assert engine.position() == position


def test_the_longest_time_to_live_ends_on_a_date(store: MemoryStore) -> None:
    store.put(NOTES, "x", {"a": 1}, ttl=1000 * 366 * 1440)
    assert (item := store.get(NOTES, "x")) is not None
    assert item.expires_at is not None


@pytest.mark.parametrize("name", ["", "\ud800", "a\0b"])
def test_nothing_is_erased_by_a_name_that_cannot_be(store: MemoryStore, name: str) -> None:
    with pytest.raises(InvalidRequest):
        store.erase(subject=name)


@pytest.mark.parametrize("name", ["", "x" * 257, "\ud800", "a\n", "a\x1b[2J"])
def test_a_device_that_cannot_be_is_not_shut_out_and_the_store_stays_whole(store: MemoryStore, name: str) -> None:
    with pytest.raises(InvalidRequest, match="no device"):
        store.replica().revoke(name)
    assert store.replica().facts().revoked == frozenset()


def test_an_unknown_tier_is_refused(store: MemoryStore, engine: Engine) -> None:
    with pytest.raises(ConfigError, match="public"):
        store.put(NOTES, "k", {}, tier="public")  # type: ignore[arg-type]  # what is tested
    assert engine.position() == 0


def test_a_filter_that_is_no_object_is_refused(store: MemoryStore) -> None:
    wrong: Any
    for wrong in ([1], "town", 7, [("town", "Bonn")]):
        with pytest.raises(InvalidRequest, match="a filter is an object"):
            store.search((), filter=wrong)
        with pytest.raises(InvalidRequest, match="a filter is an object"):
            store.batch([SearchOp((), filter=wrong)])


def test_a_mode_a_tier_or_a_source_that_does_not_exist_is_refused_with_those_that_do(store: MemoryStore, engine: Engine) -> None:
    wrong: Any = "nope"
    for call in (
        lambda: store.search((), query="tea", mode=wrong),
        lambda: store.put(NOTES, "k", {}, tier=wrong),
        lambda: store.supersede(NOTES, "k", {}, tier=wrong),
        lambda: store.patch(NOTES, "k", {}, tier=wrong),
        lambda: store.bound(tier=wrong),
        lambda: store.bound(source=wrong),
        lambda: list(store.export(tier=wrong)),
    ):
        with pytest.raises(ConfigError, match="it is one of"):
            call()
    assert engine.position() == 0
