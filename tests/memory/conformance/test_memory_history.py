"""What was true once, and what lost against something else, is kept until somebody decides."""

from datetime import UTC, datetime

import pytest
from memory_bench import DAY, Clock, MakeStore, concurrent, patched_elsewhere, write_elsewhere

from nearfar import ItemAddress, MemoryStore, Principal, SearchMode, Source, Tier
from nearfar.orchestrator.memory.changes import read_conflict
from nearfar.orchestrator.memory.engine import Engine
from nearfar.orchestrator.memory.operation import Meta, tick
from nearfar.protocols import InvalidRequest, NotFound, VersionConflict

NOTES = ("notes",)
TEA = ItemAddress(NOTES, "tea")


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def test_what_is_superseded_is_history(store: MemoryStore, clock: Clock) -> None:
    store.put(NOTES, "job", {"text": "works in Bonn"})
    clock.advance(DAY)
    store.supersede(NOTES, "job", {"text": "works in Berlin"})
    clock.advance(DAY)
    store.supersede(NOTES, "job", {"text": "works in Paris"})
    history = store.history(NOTES, "job")
    assert [item.value["text"] for item in history] == ["works in Paris", "works in Berlin", "works in Bonn"]
    now, then = moment(clock.time), moment(clock.time - DAY)
    assert [(item.valid_from, item.invalid_from) for item in history] == [(now, None), (then, now), (None, then)]
    assert history[0].created_at == history[1].created_at == history[2].created_at


def test_a_search_finds_what_is_true_now_and_can_look_back(store: MemoryStore, clock: Clock) -> None:
    store.put(NOTES, "job", {"text": "works in Bonn"})
    clock.advance(DAY)
    store.supersede(NOTES, "job", {"text": "works in Berlin"})
    for mode in SearchMode:
        assert [item.key for item in store.search(NOTES, query="works in bonn", mode=mode)] == ["job"]
    assert [item.value["text"] for item in store.search(NOTES)] == ["works in Berlin"]
    assert [item.value["text"] for item in store.search(NOTES, valid_at=moment(clock.time - 1))] == ["works in Bonn"]
    assert len(store.search(NOTES, query="works", include_superseded=True)) == 2
    assert len(store.search(NOTES, include_superseded=True)) == 2


def test_a_fact_can_be_superseded_from_a_moment_on(store: MemoryStore, clock: Clock) -> None:
    store.put(NOTES, "job", {"text": "works in Bonn"})
    store.supersede(NOTES, "job", {"text": "works in Berlin"}, valid_from=moment(clock.time - DAY))
    present, past = store.history(NOTES, "job")
    assert present.valid_from == past.invalid_from == moment(clock.time - DAY)
    assert [item.value["text"] for item in store.search(NOTES, valid_at=moment(clock.time - 2 * DAY))] == ["works in Bonn"]


def test_superseding_what_is_not_there_puts_it(store: MemoryStore) -> None:
    store.supersede(NOTES, "job", {"text": "works in Berlin"})
    assert len(store.history(NOTES, "job")) == 1
    assert store.history(NOTES, "nothing") == []


def test_history_keeps_what_was_stamped(store: MemoryStore) -> None:
    store.bound(agent="near", source=Source.EXTERNAL_TOOL).put(NOTES, "job", {"text": "a"}, tier=Tier.USER, subject="ann")
    store.bound(source=Source.USER).supersede(NOTES, "job", {"text": "b"})
    present, past = store.history(NOTES, "job")
    assert (past.agent, past.source, past.trust, past.tier, past.subject) == ("near", Source.EXTERNAL_TOOL, 0.2, Tier.USER, "ann")
    assert (present.agent, present.source, present.trust, present.tier, present.subject) == ("", Source.USER, 1.0, Tier.DEVICE, "ann")


def test_history_is_of_one_item_only(store: MemoryStore) -> None:
    for key in ("a", "a@b.com", "a@1f", "ab"):
        for number in range(3):
            store.supersede(NOTES, key, {"of": key, "n": number})
        store.supersede(("notes", "below"), key, {"of": "below"})
    for key in ("a", "a@b.com", "a@1f", "ab"):
        assert [item.value for item in store.history(NOTES, key)] == [{"of": key, "n": number} for number in (2, 1, 0)]


def test_history_outlives_the_item(store: MemoryStore) -> None:
    store.put(NOTES, "job", {"text": "a"})
    store.supersede(NOTES, "job", {"text": "b"})
    store.delete(NOTES, "job")
    assert [item.value["text"] for item in store.history(NOTES, "job")] == ["a"]
    store.erase(prefix=NOTES)
    assert store.history(NOTES, "job") == []


def test_a_long_history_is_told_in_full(store: MemoryStore, clock: Clock) -> None:
    for number in range(250):
        clock.advance(1)
        store.supersede(NOTES, "job", {"n": number})
    assert [item.value["n"] for item in store.history(NOTES, "job")] == list(reversed(range(250)))


@pytest.fixture
def quarrel(store: MemoryStore, engine: Engine, clock: Clock) -> MemoryStore:
    """A store whose value lost against one of the phone, which did not know of it."""
    store.put(NOTES, "tea", {"text": "green"}, tier=Tier.USER)
    clock.advance(10)
    meta = Meta(user="ann", agent="far", source=Source.EXTERNAL_TOOL, trust=0.2, tier=Tier.USER, created_at=clock.time)
    operation = concurrent(TEA, {"text": "black"}, device="phone", sequence=1, clock=tick(0, clock.time), meta=meta)
    write_elsewhere(engine, operation, now=clock.time)
    return store


def test_a_value_that_lost_is_shown_beside_the_one_that_won(quarrel: MemoryStore, engine: Engine) -> None:
    item = quarrel.get(NOTES, "tea")
    assert item is not None
    assert (item.value, item.conflicts, item.device) == ({"text": "black"}, 1, "phone")
    (conflict,) = quarrel.conflicts()
    assert conflict.address == TEA
    assert conflict.item is not None
    assert conflict.item.value == {"text": "black"}
    (lost,) = conflict.lost
    assert (lost.value, lost.device, lost.user, lost.trust, lost.tier) == ({"text": "green"}, engine.device, "ann", 0.8, Tier.USER)


def test_a_conflict_stays_until_it_is_decided(quarrel: MemoryStore) -> None:
    quarrel.patch(NOTES, "tea", {"cups": 2})
    quarrel.put(NOTES, "tea", {"text": "white"})
    (conflict,) = quarrel.conflicts()
    assert [lost.value for lost in conflict.lost] == [{"text": "green"}]


@pytest.mark.parametrize("keep", ["present", "lost", {"text": "both"}])
def test_a_conflict_is_decided_for_the_present_value_a_lost_one_or_a_new_one(quarrel: MemoryStore, keep: str | dict[str, str]) -> None:
    (conflict,) = quarrel.conflicts()
    kept = conflict.lost[0].name if keep == "lost" else keep
    quarrel.resolve(NOTES, "tea", kept)
    item = quarrel.get(NOTES, "tea")
    assert item is not None
    assert item.value["text"] == {"present": "black", "lost": "green"}.get(str(keep), "both")
    assert (item.conflicts, quarrel.conflicts()) == (0, [])
    assert item.trust == 0.2
    with pytest.raises(NotFound):
        quarrel.resolve(NOTES, "tea")


def test_a_decision_names_a_value_that_lost(quarrel: MemoryStore) -> None:
    with pytest.raises(NotFound, match="present"):
        quarrel.resolve(NOTES, "tea", "laptop:7")
    with pytest.raises(InvalidRequest):
        quarrel.resolve(NOTES, "tea", {"text": {1}})
    with pytest.raises(NotFound, match="no conflict"):
        quarrel.resolve(NOTES, "milk")
    assert len(quarrel.conflicts()) == 1


def test_a_decision_about_what_was_written_meanwhile_is_refused(
    quarrel: MemoryStore, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> object:
        found = read_conflict(*arguments)  # type: ignore[arg-type]  # whatever it takes
        quarrel.patch(NOTES, "tea", {"cups": 3})
        return found

    monkeypatch.setattr("nearfar.orchestrator.memory.store.read_conflict", interrupted)
    with pytest.raises(VersionConflict):
        quarrel.resolve(NOTES, "tea")


def test_a_deleted_item_keeps_what_the_deletion_did_not_know(store: MemoryStore, engine: Engine, clock: Clock) -> None:
    store.put(NOTES, "tea", {"text": "green"}, tier=Tier.USER)
    clock.advance(10)
    meta = Meta(user="ann", tier=Tier.USER, created_at=clock.time)
    write_elsewhere(engine, concurrent(TEA, None, device="phone", sequence=1, clock=tick(0, clock.time), meta=meta), now=clock.time)
    assert store.get(NOTES, "tea") is None
    (conflict,) = store.conflicts()
    assert (conflict.item, conflict.lost[0].value) == (None, {"text": "green"})
    store.resolve(NOTES, "tea", conflict.lost[0].name)
    item = store.get(NOTES, "tea")
    assert item is not None
    assert (item.value, store.conflicts()) == ({"text": "green"}, [])


def test_a_deletion_can_be_confirmed(store: MemoryStore, engine: Engine, clock: Clock) -> None:
    store.put(NOTES, "tea", {"text": "green"}, tier=Tier.USER)
    clock.advance(10)
    meta = Meta(user="ann", tier=Tier.USER, created_at=clock.time)
    write_elsewhere(engine, concurrent(TEA, None, device="phone", sequence=1, clock=tick(0, clock.time), meta=meta), now=clock.time)
    store.resolve(NOTES, "tea")
    assert store.get(NOTES, "tea") is None
    assert store.conflicts() == []


def test_writes_to_different_fields_are_no_conflict(store: MemoryStore, engine: Engine, clock: Clock) -> None:
    store.put(NOTES, "tea", {"text": "green"}, tier=Tier.USER)
    clock.advance(10)
    meta = Meta(user="ann", tier=Tier.SHARED, created_at=clock.time)
    patch = patched_elsewhere(engine, TEA, {"cups": 2}, device="phone", clock=tick(0, clock.time), meta=meta)
    store.patch(NOTES, "tea", {"text": "white"}, tier=Tier.USER)
    write_elsewhere(engine, patch, now=clock.time)
    item = store.get(NOTES, "tea")
    assert item is not None
    assert (item.value, item.tier, item.conflicts) == ({"text": "white", "cups": 2}, Tier.USER, 0)
    assert store.conflicts() == []
    assert "+" in item.version


def test_of_two_patches_the_field_that_lost_can_be_read_and_taken_back(store: MemoryStore, engine: Engine, clock: Clock) -> None:
    store.put(NOTES, "tea", {"text": "green", "cups": 1}, tier=Tier.USER)
    meta = Meta(user="ann", tier=Tier.USER, created_at=clock.time)
    store.patch(NOTES, "tea", {"sugar": True})
    clock.advance(10)
    patch = patched_elsewhere(engine, TEA, {"cups": 3}, device="phone", clock=tick(0, clock.time), meta=meta)
    store.patch(NOTES, "tea", {"text": "white", "cups": 2})
    store.patch(NOTES, "tea", {"milk": False})  # what loses below was not in the last write of its device
    clock.advance(10)
    write_elsewhere(engine, patch._replace(clock=tick(0, clock.time)), now=clock.time)
    item = store.get(NOTES, "tea")
    assert item is not None
    assert item.value == {"text": "white", "cups": 3, "sugar": True, "milk": False}
    ((lost,),) = [conflict.lost for conflict in store.conflicts()]
    assert (lost.value["cups"], lost.fields) == (2, ("cups",))
    store.resolve(NOTES, "tea", {**item.value, "cups": lost.value["cups"]})
    assert store.conflicts() == []


def test_a_put_wins_or_loses_as_a_whole(store: MemoryStore, engine: Engine, clock: Clock) -> None:
    store.put(NOTES, "tea", {"name": "Ann", "says": "I like green tea"}, tier=Tier.USER)
    clock.advance(10)
    meta = Meta(user="ann", tier=Tier.USER, created_at=clock.time)
    value: dict[str, object] = {"says": "I like coffee"}
    write_elsewhere(engine, concurrent(TEA, value, device="phone", sequence=1, clock=tick(0, clock.time), meta=meta), now=clock.time)
    item = store.get(NOTES, "tea")
    assert item is not None
    assert item.value == value
    ((lost,),) = [conflict.lost for conflict in store.conflicts()]
    assert (lost.value, lost.fields) == ({"name": "Ann", "says": "I like green tea"}, ("name", "says"))


def test_conflicts_come_in_pages(store: MemoryStore, engine: Engine, clock: Clock) -> None:
    for number in range(5):
        store.put(NOTES, str(number), {"text": "a"}, tier=Tier.USER)
    clock.advance(10)
    meta = Meta(user="ann", tier=Tier.USER, created_at=clock.time)
    for number in range(5):
        operation = concurrent(
            ItemAddress(NOTES, str(number)), {"text": "b"}, device="phone", sequence=number + 1, clock=tick(0, clock.time), meta=meta
        )
        write_elsewhere(engine, operation, now=clock.time)
    assert [one.address.key for one in store.conflicts()] == list("01234")
    assert [one.address.key for one in store.conflicts(limit=2, offset=3)] == list("34")
    assert store.stats()["conflicts"] == 5


def test_nobody_sees_or_decides_a_conflict_that_is_not_theirs(quarrel: MemoryStore, make_store: MakeStore) -> None:
    theirs = quarrel.view(Principal("bob", "phone"))
    assert theirs.conflicts() == []
    with pytest.raises(NotFound):
        theirs.resolve(NOTES, "tea")
    assert len(quarrel.view(Principal("ann", "phone")).conflicts()) == 1
