"""Filters mean the same to every engine, whatever types the values have."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.store.base import PutOp
from memory_bench import Clock

from nearfar import MemoryStore
from nearfar.orchestrator.memory.engine import Condition, Engine, ItemSelection, Operator, selects
from nearfar.protocols import InvalidRequest

NOTES = ("notes",)
VALUES: dict[str, dict[str, Any]] = {
    "one": {"a": 1},
    "float": {"a": 1.0},
    "two": {"a": 2},
    "half": {"a": -0.5},
    "text": {"a": "1"},
    "word": {"a": "ab"},
    "umlaut": {"a": "ä"},
    "true": {"a": True},
    "false": {"a": False},
    "null": {"a": None},
    "list": {"a": [1, "x"]},
    "nested": {"a": {"b": 1, "c": {"d": "x"}}},
    "empty": {"a": {}},
    "missing": {"b": 1},
    "dotted": {"a.b": 1},
    "odd": {'say "a"': 1, "$a": 2, "it's": 3},
}


FILTERS: list[tuple[dict[str, Any], str]] = [
    ({"a": 1}, "one float"),
    ({"a": 1.0}, "one float"),
    ({"a": True}, "true"),
    ({"a": False}, "false"),
    ({"a": None}, "null missing dotted odd"),
    ({"a": {"$eq": None}}, "null missing dotted odd"),
    ({"a": {"b": None}}, " ".join(VALUES.keys() - {"nested"})),
    ({"a.b": None}, " ".join(VALUES.keys() - {"nested", "dotted"})),
    ({"a": "1"}, "text"),
    ({"a": [1, "x"]}, "list"),
    ({"a": ["x", 1]}, ""),
    ({"a": (1, "x")}, "list"),
    ({"a": {"b": 1}}, "nested"),
    ({"a": {"b": True}}, ""),
    ({"a": {"c": {"d": "x"}}}, "nested"),
    ({"a": {"c": {"d": {"$ne": "y"}}}}, "one float two half text word umlaut true false null list nested empty missing dotted odd"),
    ({"a": {"b": {"$gte": 1}}}, "nested"),
    ({"a": {"$eq": {"b": 1}}}, ""),
    ({"a": {"$eq": {"c": {"d": "x"}, "b": 1.0}}}, "nested"),
    ({"a": {}}, "empty"),
    ({"a": {"$gt": 1}}, "two"),
    ({"a": {"$gte": 1}}, "one float two"),
    ({"a": {"$lt": 1}}, "half"),
    ({"a": {"$lte": 1}}, "one float half"),
    ({"a": {"$gt": 0, "$lt": 2}}, "one float"),
    ({"a": {"$gt": "1"}}, "word umlaut"),
    ({"a": {"$lt": "ä"}}, "text word"),
    ({"a": {"$gt": True}}, ""),
    ({"a": {"$gt": None}}, ""),
    ({"a": {"$lt": [2]}}, ""),
    ({"a": {"$lt": float("inf")}}, "one float two half"),
    ({"a": {"$gt": float("-inf")}}, "one float two half"),
    ({"a": {"$lt": 10**400}}, "one float two half"),
    ({"a": {"$eq": float("inf")}}, ""),
    ({"a": float("nan")}, ""),
    ({"a": {"$lt": float("nan")}}, ""),
    ({"a": {"$ne": float("nan")}}, " ".join(VALUES)),
    ({"a": "ab\0"}, ""),
    ({"a": {"$gte": "\ud800"}}, ""),
    ({"a": {"$ne": "\0"}}, " ".join(VALUES)),
    ({"a": {"$ne": 1}}, "two half text word umlaut true false null list nested empty missing dotted odd"),
    ({"a": {"$ne": None}}, "one float two half text word umlaut true false list nested empty"),
    ({"a.b": 1}, "dotted nested"),
    ({'say "a"': 1}, "odd"),
    ({"it's": {"$gt": 2}}, "odd"),
    ({"$a": 2}, "odd"),
    ({"a": 1, "b": 1}, ""),
    ({}, " ".join(VALUES)),
    ({"nothing": 1}, ""),
    ({"a": "' OR 1=1 --"}, ""),
    ({"a' OR 1=1 --": 1}, ""),
    ({"a": "%"}, ""),
]


@pytest.fixture
def filled(store: MemoryStore) -> MemoryStore:
    for key, value in VALUES.items():
        store.put(NOTES, key, value)
    return store


def test_a_filter_lets_through_what_meets_it(filled: MemoryStore) -> None:
    found = [(wanted, {item.key for item in filled.search(NOTES, filter=wanted, limit=100)}) for wanted, _ in FILTERS]
    assert found == [(wanted, set(keys.split())) for wanted, keys in FILTERS]


@pytest.mark.parametrize(
    "wanted",
    [{"a": {"$in": [1]}}, {"a": {"$gt": 1, "b": 2}}, {"a": [float("nan")]}, {"a": {1}}, {1: 2}, {"a": {1: 2}}],
)
def test_a_filter_that_makes_no_sense_is_refused(store: MemoryStore, wanted: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        store.search(NOTES, filter=wanted)


def test_a_filter_narrows_a_query_down(filled: MemoryStore) -> None:
    found = filled.search(NOTES, query="x", filter={"a": {"b": 1}})
    assert [item.key for item in found] == ["nested"]


def test_an_integer_beyond_what_a_double_holds_is_compared_exactly(store: MemoryStore) -> None:
    store.put(NOTES, "large", {"a": 2**53 + 1})
    assert store.search(NOTES, filter={"a": 2**53}) == []
    assert len(store.search(NOTES, filter={"a": {"$gt": 2**53}})) == 1


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([0.5, 1.0, -2.5])
    | st.sampled_from(["", "a", "b", "1", "é", '"', "\\"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b", ".", '"']), inner, max_size=2),
    max_leaves=4,
)
conditions = st.builds(
    Condition, st.lists(st.sampled_from(["a", "b", ".", '"']), min_size=1, max_size=2).map(tuple), st.sampled_from(Operator), json_values
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(st.dictionaries(st.sampled_from(["a", "b", ".", '"']), json_values, max_size=2), max_size=4), condition=conditions)
def test_engines_select_what_the_definition_selects(
    store: MemoryStore, engine: Engine, clock: Clock, values: list[dict[str, Any]], condition: Condition
) -> None:
    fresh = (f"example {engine.position()}",)
    store.batch([PutOp(fresh, str(number), value) for number, value in enumerate(values)])
    everything = engine.select(ItemSelection(now=clock.time, prefix=fresh), limit=100, offset=0)
    selection = ItemSelection(now=clock.time, prefix=fresh, conditions=(condition,))
    selected = {row.address.key for row in engine.select(selection, limit=100, offset=0)}
    assert selected == {row.address.key for row in everything if selects(selection, row)}
    assert len(everything) == len(values)
