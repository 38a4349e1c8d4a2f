"""Pages fit together: nothing is told twice, nothing is left out, however deep one reads."""

from itertools import count

import pytest
from langgraph.store.base import PutOp
from memory_bench import Clock

from nearfar import MemoryStore, Ranking, SearchMode
from nearfar.protocols import InvalidRequest
from nearfar.protocols.items import Tier

NOTES = ("notes",)
COUNT = 230
"""More than two windows of what is fused at a time."""


@pytest.fixture
def filled(store: MemoryStore) -> MemoryStore:
    numbers = range(COUNT)
    values = [{"text": f"tea number {number} " + "abc"[number % 3] * (number % 7), "n": number % 10} for number in numbers]
    store.batch([PutOp(("notes", "odd" if number % 2 else "even"), f"{number:03}", values[number]) for number in numbers])
    return store


def pages(store: MemoryStore, prefix: tuple[str, ...], size: int, **options: object) -> list[str]:
    keys: list[str] = []
    for offset in count(0, size):
        found = store.search(prefix, limit=size, offset=offset, **options)  # type: ignore[arg-type]  # options of any method
        keys += [item.key for item in found]
        if len(found) < size:
            return keys
    raise AssertionError


def test_pages_without_a_query_begin_with_what_was_updated_last(store: MemoryStore, clock: Clock) -> None:
    for number in range(10):
        clock.advance(1)
        store.put(NOTES, str(number), {})
    clock.advance(1)
    store.put(NOTES, "3", {"again": True})
    assert pages(store, NOTES, 4) == ["3", "9", "8", "7", "6", "5", "4", "2", "1", "0"]


def test_items_of_the_same_moment_are_in_order_of_namespace_and_key(store: MemoryStore) -> None:
    for namespace, key in [(("b",), "x"), (("a", "z"), "y"), (("a",), "y"), (("a",), "x"), (("ab",), "x"), (("a", "é"), "x")]:
        store.put(namespace, key, {})
    found = [(item.namespace, item.key) for item in store.search(())]
    assert found == [(("a",), "x"), (("a",), "y"), (("a", "z"), "y"), (("a", "é"), "x"), (("ab",), "x"), (("b",), "x")]


@pytest.mark.parametrize("mode", SearchMode)
@pytest.mark.parametrize("size", [7, 100])
def test_pages_of_a_query_hold_everything_once(filled: MemoryStore, mode: SearchMode, size: int) -> None:
    keys = pages(filled, NOTES, size, query="tea number 7", mode=mode)
    assert len(keys) == len(set(keys)) == COUNT


def test_pages_are_the_same_whatever_their_size(filled: MemoryStore) -> None:
    whole = pages(filled, NOTES, 1000, query="tea number 17")
    assert len(set(whole)) == COUNT
    for size in (23, 150):
        assert pages(filled, NOTES, size, query="tea number 17") == whole


def test_pages_by_age_and_trust_fit_together(filled: MemoryStore, clock: Clock) -> None:
    clock.advance(1000)
    filled.put(("notes", "odd"), "017", {"text": "tea number 17", "n": 7})
    ranking = Ranking(recency=0.5, half_life=100, trust=0.5)
    whole = pages(filled, NOTES, 1000, query="tea number", ranking=ranking)
    assert len(set(whole)) == COUNT
    assert pages(filled, NOTES, 31, query="tea number", ranking=ranking) == whole


def test_scores_never_rise_from_one_item_to_the_next(filled: MemoryStore) -> None:
    scores = [item.score for item in filled.search(NOTES, query="tea number 17", limit=1000)]
    assert None not in scores
    assert scores == sorted(scores, key=lambda score: -(score or 0))


@pytest.mark.parametrize("mode", SearchMode)
def test_a_narrow_search_is_as_full_as_a_wide_one(filled: MemoryStore, mode: SearchMode) -> None:
    filled.put(("notes", "rare"), "a", {"text": "tea abc"})
    filled.put(("notes", "rare"), "b", {"text": "tea"})
    found = filled.search(("notes", "rare"), query="tea", limit=10, mode=mode)
    assert {item.key for item in found} == {"a", "b"}
    assert len(filled.search(NOTES, query="tea", filter={"n": 3}, limit=100, mode=mode)) == COUNT // 10


@pytest.mark.parametrize("mode", SearchMode)
def test_an_offset_behind_the_end_finds_nothing(filled: MemoryStore, mode: SearchMode) -> None:
    assert filled.search(NOTES, query="tea", offset=COUNT, mode=mode) == []
    assert len(filled.search(NOTES, query="tea", offset=COUNT - 1, mode=mode)) == 1
    assert filled.search(NOTES, offset=10**9) == []


def test_a_limit_of_none_finds_none(filled: MemoryStore) -> None:
    assert filled.search(NOTES, limit=0) == filled.search(NOTES, query="tea", limit=0) == []


@pytest.mark.parametrize("part", [{"limit": -1}, {"offset": -1}, {"limit": 1.5}, {"offset": True}, {"limit": None}])
def test_a_page_that_makes_no_sense_is_refused(store: MemoryStore, part: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest):
        store.search(NOTES, **part)  # type: ignore[arg-type]  # what is tested


def test_what_is_not_for_somebody_takes_no_place_on_their_pages(filled: MemoryStore) -> None:
    from nearfar import Principal

    for number in range(5):
        filled.put(NOTES, f"shared {number}", {"text": "tea number 17"}, tier=Tier.SHARED)
    theirs = filled.view(Principal("bob", "phone"))
    assert len(theirs.search(NOTES, query="tea", limit=3)) == 3
    assert len(theirs.search(NOTES, query="tea", limit=10)) == 5
    assert len(theirs.search(NOTES, limit=3, offset=3)) == 2
