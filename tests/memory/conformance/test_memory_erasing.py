"""What is erased is gone, with its past and with all that was made of it."""

import pytest
from langgraph.store.base import PutOp
from memory_bench import Clock, concurrent, write_elsewhere

from nearfar import ItemAddress, MemoryStore, Principal, SearchMode, Tier
from nearfar.orchestrator.memory.engine import Engine
from nearfar.orchestrator.memory.operation import Meta, tick
from nearfar.protocols import InvalidRequest, PermissionDenied

NOTES = ("notes",)


@pytest.fixture
def filled(store: MemoryStore) -> MemoryStore:
    store.put(NOTES, "bob", {"text": "bob likes tea"}, subject="bob")
    store.supersede(NOTES, "bob", {"text": "bob likes coffee"})
    store.put(("friends", "eve"), "card", {"text": "eve's card"}, subject="eve")
    store.put(NOTES, "deleted", {"text": "bob was here"}, subject="bob")
    store.delete(NOTES, "deleted")
    store.bound(lineage=[ItemAddress(NOTES, "bob")]).put(("summaries",), "first", {"text": "somebody likes coffee"})
    store.bound(lineage=[ItemAddress(("summaries",), "first")]).put(("summaries",), "second", {"text": "coffee"})
    store.put(("summaries",), "other", {"text": "weather"})
    return store


def keys(store: MemoryStore) -> set[str]:
    return {item.key for item in store.search((), limit=100, include_superseded=True)}


def test_all_about_somebody_is_erased(filled: MemoryStore, engine: Engine) -> None:
    erased = filled.erase(subject="bob")
    assert {address.key.partition("@")[0] for address in erased} == {"bob", "deleted", "first", "second"}
    assert keys(filled) == {"card", "other"}
    assert filled.history(NOTES, "bob") == []
    assert engine.traces(subject="bob") == engine.traces(prefix=NOTES) == []
    assert {operation.address.key for _, operation, _ in engine.operations(0, limit=100)} == {"card", "other"}
    for mode in SearchMode:
        assert "bob" not in {item.key for item in filled.search((), query="bob likes coffee", mode=mode)}


@pytest.mark.parametrize("erased", ["carl", "dora", "eve"])
def test_an_item_of_parts_about_several_people_is_erased_with_any_of_them(erased: str, store: MemoryStore, engine: Engine) -> None:
    store.put(NOTES, "dinner", {"guest": "Carl eats no fish"}, subject="carl")
    store.bound(subject="dora").patch(NOTES, "dinner", {"host": "Dora cooks"})
    store.bound(subject="eve").append(NOTES, "dinner", "said", ["Eve brings wine"])
    store.patch(NOTES, "dinner", {"day": "Monday"})
    item = store.get(NOTES, "dinner")
    assert item is not None
    assert {item.subject, *item.others} == {"carl", "dora", "eve"}
    assert store.erase(subject=erased) == [ItemAddress(NOTES, "dinner")]
    assert [engine.traces(subject=name) for name in ("carl", "dora", "eve")] == [[], [], []]


def test_what_is_put_in_the_place_of_an_item_is_about_whom_it_says(store: MemoryStore) -> None:
    store.put(NOTES, "guest", {"text": "Carl"}, subject="carl")
    store.put(NOTES, "guest", {"text": "Dora"}, subject="dora")
    assert store.erase(subject="carl") == []
    store.put(NOTES, "guest", {"text": "still of her"})
    assert store.erase(subject="dora") == [ItemAddress(NOTES, "guest")]


def test_a_namespace_is_erased_with_all_below_it(filled: MemoryStore, engine: Engine) -> None:
    filled.put(("friends",), "list", {})
    filled.put(("friendship",), "list", {})
    assert len(filled.erase(prefix=("friends",))) == 2
    assert engine.traces(prefix=("friends",)) == []
    assert engine.traces(prefix=("friendship",)) == [ItemAddress(("friendship",), "list")]


def test_everything_can_be_erased(filled: MemoryStore, engine: Engine) -> None:
    filled.erase(prefix=())
    assert (engine.operations(0, limit=10), engine.changes(0, limit=10), engine.traces(prefix=())) == ([], [], [])
    assert filled.stats()["items"] == filled.stats()["vectors"] == 0


def test_nothing_is_there_to_erase(store: MemoryStore) -> None:
    assert store.erase(subject="nobody") == store.erase(prefix=("nowhere",)) == []


def test_what_lost_against_something_else_is_erased_from_beside_it(store: MemoryStore, engine: Engine, clock: Clock) -> None:
    store.put(NOTES, "tea", {"text": "bob's"}, subject="bob", tier=Tier.USER)
    clock.advance(10)
    meta = Meta(user="ann", tier=Tier.USER, subject="eve", created_at=clock.time)
    operation = concurrent(ItemAddress(NOTES, "tea"), {"text": "eve's"}, device="phone", sequence=1, clock=tick(0, clock.time), meta=meta)
    write_elsewhere(engine, operation, now=clock.time)
    store.patch(NOTES, "tea", {"cups": 2})
    assert len(store.conflicts()) == 1
    assert store.erase(subject="bob") == []
    assert store.conflicts() == []
    assert engine.traces(subject="bob") == []
    assert store.erase(subject="eve") == [ItemAddress(NOTES, "tea")]


def test_an_erased_item_can_be_written_anew(filled: MemoryStore) -> None:
    filled.erase(subject="bob")
    filled.put(NOTES, "bob", {"text": "new"}, if_version="absent")
    item = filled.get(NOTES, "bob")
    assert item is not None
    assert (item.value, item.subject) == ({"text": "new"}, "")


def test_an_erased_replica_counts_its_writes_on(filled: MemoryStore, engine: Engine) -> None:
    with engine.transaction() as transaction:
        before = transaction.known()
    filled.erase(prefix=())
    filled.put(NOTES, "tea", {})
    with engine.transaction() as transaction:
        assert transaction.known()[engine.device] == before[engine.device] + 1


@pytest.mark.parametrize("what", [{}, {"subject": "bob", "prefix": ()}, {"subject": ""}, {"prefix": ("a.b",)}])
def test_what_to_erase_has_to_be_clear(filled: MemoryStore, what: dict[str, str]) -> None:
    before = keys(filled)
    with pytest.raises(InvalidRequest):
        filled.erase(**what)  # type: ignore[arg-type]  # what is tested
    assert keys(filled) == before


def test_people_erase_what_is_their_own(filled: MemoryStore, engine: Engine) -> None:
    theirs = filled.view(Principal("bob", "phone"))
    theirs.put(NOTES, "by bob", {"text": "tea"}, subject="bob")
    filled.batch([PutOp(NOTES, "by ann", {"text": "tea"})])
    filled.put(NOTES, "shared", {"text": "tea"}, tier=Tier.SHARED, subject="bob")
    assert theirs.erase(subject="bob") == [ItemAddress(NOTES, "by bob")]
    assert {"by ann", "shared", "bob", "first"} <= keys(filled)
    theirs.put(NOTES, "by bob", {"text": "tea"})
    elsewhere = filled.view(Principal("bob", "phone", prefixes=(("elsewhere",),)))
    assert elsewhere.erase(prefix=("elsewhere",)) == []
    for place in ((), NOTES):
        with pytest.raises(PermissionDenied):
            elsewhere.erase(prefix=place)
    assert theirs.erase(prefix=NOTES) == [ItemAddress(NOTES, "by bob")]


def test_a_view_tells_of_no_traces_of_what_it_may_not_see(filled: MemoryStore, engine: Engine) -> None:
    filled.put(("friends",), "shared", {}, tier=Tier.SHARED, subject="bob")
    seen = filled.view(Principal("eve", "phone"))
    assert seen.traces(subject="bob") == seen.traces(prefix=()) == [ItemAddress(("friends",), "shared")]
    assert len(filled.view(Principal("ann", engine.device)).traces(prefix=())) == len(filled.traces(prefix=()))


def test_what_names_somebody_in_its_text_is_erased_with_what_is_stamped(store: MemoryStore, engine: Engine) -> None:
    store.put(NOTES, "plain", {"text": "Dinner with ANN  Smith's sister"})
    store.put(NOTES, "nested", {"guests": [{"name": "Ann Smith"}]}, subject="party")
    store.put(NOTES, "deleted", {"text": "ann smith"})
    store.supersede(NOTES, "plain", {"text": "Dinner alone"})
    store.bound(lineage=[ItemAddress(NOTES, "nested")]).put(("summaries",), "party", {"text": "a guest came"})
    store.put(NOTES, "other", {"text": "Joann Smithers"})
    found = store.traces(subject="Ann Smith")
    assert {address.key.partition("@")[0] for address in found} == {"plain", "nested", "deleted", "party"}
    assert set(store.erase(subject="Ann Smith")) == set(found)
    assert keys(store) == {"plain", "other"}
    assert store.erase(subject="Ann Smith") == engine.traces(subject="Ann Smith") == []


@pytest.mark.parametrize(("subject", "text"), [("42", "42 apples"), ("x", "x marks it"), ("ann", "Hannah"), ("an(n", "ann")])
def test_a_number_a_letter_and_a_part_of_a_word_name_nobody(store: MemoryStore, subject: str, text: str) -> None:
    store.put(NOTES, "kept", {"text": text})
    assert store.erase(subject=subject) == []


@pytest.mark.parametrize(("subject", "text"), [("李明", "我喜欢李明的茶"), ("José", "Jose\u0301 came"), ("O'Neil", "call O'Neil: now")])
def test_names_are_found_in_other_scripts_and_forms(store: MemoryStore, subject: str, text: str) -> None:
    store.put(NOTES, "gone", {"text": text})
    assert store.erase(subject=subject) == [ItemAddress(NOTES, "gone")]


def test_people_erase_by_name_what_is_their_own(store: MemoryStore) -> None:
    theirs = store.view(Principal("bob", "phone"))
    theirs.put(NOTES, "by bob", {"text": "about Carl"})
    store.put(NOTES, "by the app", {"text": "about Carl"}, tier=Tier.SHARED)
    assert theirs.erase(subject="carl") == [ItemAddress(NOTES, "by bob")]
    assert keys(store) == {"by the app"}
