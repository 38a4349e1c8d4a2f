"""What ranking is given by the store: matches with the engine's own measures."""

import pytest

from nearfar.orchestrator.memory.provenance import Origin, writing_as
from nearfar.orchestrator.memory.store import MemoryStore
from nearfar.protocols.items import ItemAddress, Source, Tier


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore.open(embedder=None)
    store.put(("pets", "dogs"), "a:1", {"text": "Rex chases the red ball"})
    store.put(("pets", "dogs"), "b:1", {"text": "Bella sleeps beside the red ball and a red shoe"})
    store.put(("plants",), "a:1", {"text": "The red tulip"})
    return store


def test_matches_are_those_of_each_prefix_with_scores_by_words(store: MemoryStore) -> None:
    pets, plants = store.matches([("pets",), ("plants",)], keywords="red", text="red", limit=10)
    assert set(pets.keyword) == {ItemAddress(("pets", "dogs"), "a:1"), ItemAddress(("pets", "dogs"), "b:1")}
    assert set(plants.items) == {ItemAddress(("plants",), "a:1")}
    assert all(score > 0 for score in pets.keyword.values())
    assert pets.semantic == {}


def test_a_search_may_be_limited_to_keys_that_begin_alike(store: MemoryStore) -> None:
    selected = [item.key for item in store.search(("pets",), key_prefix="a:")]
    assert selected == ["a:1"]


def test_a_store_says_as_whom_it_would_stamp_a_write(store: MemoryStore) -> None:
    with writing_as(Origin(subject="ann", tier=Tier.USER)):
        origin = store.bound(source=Source.DOCUMENT).origin
    assert (origin.subject, origin.source) == ("ann", Source.DOCUMENT)
