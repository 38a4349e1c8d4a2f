"""What is stamped on an item comes from the framework, and decides who gets to see it."""

from collections.abc import Callable, Sequence

import pytest
from langgraph.store.base import PutOp
from memory_bench import MakeStore

from nearfar import ItemAddress, MemoryItem, MemoryStore, Origin, Principal, SearchMode, Source, Tier, writing_as
from nearfar.orchestrator.memory.engine import Engine, ItemRow
from nearfar.protocols import PermissionDenied, PrivacyViolation, VersionConflict

NOTES = ("notes",)
TEA = ItemAddress(NOTES, "tea")
INTRUSIONS: list[Callable[[MemoryStore], object]] = [
    lambda store: store.put(("notes", "ann"), "device", {"text": "eve"}),
    lambda store: store.patch(("notes", "ann"), "user", {"text": "eve"}),
    lambda store: store.append(("notes", "ann"), "user", "list", ["eve"]),
    lambda store: store.supersede(("notes", "ann"), "device", {"text": "eve"}),
    lambda store: store.delete(("notes", "ann"), "user"),
    lambda store: store.put(("diary",), "shared", {"text": "eve"}),
    lambda store: store.put(("diary",), "new", {"text": "eve"}),
    lambda store: store.batch([PutOp(NOTES, "web", {"text": "eve"}), PutOp(("notes", "ann"), "user", None)]),
]


def read(store: MemoryStore, key: str = "tea") -> MemoryItem:
    item = store.get(NOTES, key)
    assert item is not None
    return item


def test_an_item_is_private_to_its_device_unless_somebody_says_otherwise(store: MemoryStore, engine: Engine) -> None:
    store.put(NOTES, "tea", {"tier": "shared", "user": "eve", "trust": 1, "agent": "eve"})
    store.batch([PutOp(NOTES, "op", {})])
    item = read(store)
    assert (item.tier, item.user, item.agent, item.source, item.trust) == (Tier.DEVICE, "ann", "", Source.INTERNAL_TOOL, 0.8)
    assert (item.device, item.subject, item.lineage) == (engine.device, "", ())
    assert read(store, "op").tier is Tier.DEVICE


def test_a_store_stamps_what_it_is_bound_to(store: MemoryStore) -> None:
    bound = store.bound(agent="near", source=Source.MODEL, tier=Tier.USER, subject="bob")
    bound.put(NOTES, "tea", {})
    item = read(store)
    assert (item.agent, item.source, item.trust, item.tier, item.subject) == ("near", Source.MODEL, 0.6, Tier.USER, "bob")
    bound.bound(source=Source.EXTERNAL_TOOL).append(NOTES, "log", "entries", [1])
    log = read(store, "log")
    assert (log.agent, log.source, log.trust, log.tier) == ("near", Source.EXTERNAL_TOOL, 0.2, Tier.USER)
    store.put(NOTES, "plain", {})
    assert read(store, "plain").agent == ""


def test_a_running_task_stamps_what_it_writes(store: MemoryStore) -> None:
    with writing_as(Origin(agent="near", source=Source.MODEL, tier=Tier.USER)):
        store.put(NOTES, "tea", {})
        with writing_as(Origin(source=Source.EXTERNAL_TOOL, lineage=(ItemAddress(NOTES, "page"),))):
            store.put(NOTES, "web", {})
        store.bound(agent="judge").put(NOTES, "verdict", {})
    store.put(NOTES, "after", {})
    assert (read(store).agent, read(store).source, read(store).tier) == ("near", Source.MODEL, Tier.DEVICE)
    web = read(store, "web")
    assert (web.agent, web.source, web.lineage) == ("near", Source.EXTERNAL_TOOL, (ItemAddress(NOTES, "page"),))
    assert read(store, "verdict").agent == "judge"
    assert read(store, "after").agent == ""


def test_nothing_that_a_task_writes_goes_further_than_the_task_may(make_store: MakeStore) -> None:
    store = make_store(tier=Tier.SHARED)
    with writing_as(Origin(tier=Tier.DEVICE)):
        store.put(NOTES, "tea", {}, tier=Tier.SHARED)
        with writing_as(Origin(tier=Tier.SHARED)):
            store.put(NOTES, "inner", {})
    store.put(NOTES, "outside", {})
    assert read(store).tier is read(store, "inner").tier is Tier.DEVICE
    assert read(store, "outside").tier is Tier.SHARED


@pytest.mark.anyio
async def test_a_running_task_stamps_what_it_writes_asynchronously(store: MemoryStore) -> None:
    with writing_as(Origin(agent="near")):
        await store.aput(NOTES, "tea", {})
    assert read(store).agent == "near"


def test_what_is_derived_is_believed_no_more_and_goes_no_further_than_its_sources(make_store: MakeStore) -> None:
    store = make_store(tier=Tier.SHARED)
    store.bound(source=Source.EXTERNAL_TOOL).put(NOTES, "page", {"text": "a"})
    store.bound(source=Source.USER).put(NOTES, "said", {"text": "b"}, tier=Tier.USER)
    sources = (ItemAddress(NOTES, "page"), ItemAddress(NOTES, "said"))
    summary = store.bound(source=Source.MODEL, lineage=sources)
    summary.put(NOTES, "tea", {"text": "ab"}, tier=Tier.SHARED)
    assert (read(store).trust, read(store).tier, read(store).lineage) == (0.2, Tier.USER, sources)
    store.bound(source=Source.USER, lineage=[TEA]).put(NOTES, "further", {"text": "c"})
    assert (read(store, "further").trust, read(store, "further").tier) == (0.2, Tier.USER)


def test_a_source_that_is_gone_counts_as_the_worst(make_store: MakeStore) -> None:
    store = make_store(tier=Tier.SHARED)
    store.bound(source=Source.USER, lineage=[ItemAddress(NOTES, "never was")]).put(NOTES, "tea", {})
    assert (read(store).trust, read(store).tier) == (0.2, Tier.DEVICE)


def test_a_change_of_a_part_is_believed_no_more_than_the_rest(make_store: MakeStore) -> None:
    store = make_store(tier=Tier.SHARED)
    store.bound(source=Source.EXTERNAL_TOOL).put(NOTES, "tea", {"text": "a"}, tier=Tier.USER)
    store.bound(source=Source.USER).patch(NOTES, "tea", {"more": "b"})
    assert (read(store).trust, read(store).tier) == (0.2, Tier.USER)
    store.bound(source=Source.USER).append(NOTES, "tea", "list", ["c"])
    assert (read(store).trust, read(store).tier) == (0.2, Tier.USER)
    store.bound(source=Source.USER).put(NOTES, "tea", {"text": "all new"})
    assert (read(store).trust, read(store).tier) == (1.0, Tier.SHARED)


def test_a_person_can_let_an_item_go_further(store: MemoryStore) -> None:
    store.put(NOTES, "tea", {"text": "a"})
    store.patch(NOTES, "tea", {}, tier=Tier.SHARED)
    assert read(store).tier is Tier.SHARED
    store.patch(NOTES, "tea", {"text": "b"})
    assert read(store).tier is Tier.DEVICE


def test_an_item_stays_about_whom_it_is_about(store: MemoryStore) -> None:
    store.put(NOTES, "tea", {"text": "a"}, subject="bob")
    store.patch(NOTES, "tea", {"text": "b"})
    store.put(NOTES, "tea", {"text": "c"})
    assert read(store).subject == "bob"
    store.put(NOTES, "tea", {"text": "c"}, subject="eve")
    assert read(store).subject == "eve"


def test_provenance_is_told_as_plain_json(store: MemoryStore) -> None:
    store.bound(agent="near", lineage=[TEA]).put(NOTES, "tea", {}, ttl=1)
    told = read(store).dict()
    assert (told["agent"], told["tier"], told["lineage"], told["source"]) == ("near", "device", [[["notes"], "tea"]], "internal_tool")
    assert told["expires_at"].startswith("20")


@pytest.fixture
def filled(store: MemoryStore) -> MemoryStore:
    for tier in Tier:
        store.put(("notes", "ann"), tier.value, {"text": "tea"}, tier=tier)
    store.put(("diary",), "shared", {"text": "tea"}, tier=Tier.SHARED)
    store.bound(source=Source.EXTERNAL_TOOL).put(NOTES, "web", {"text": "tea"}, tier=Tier.SHARED)
    return store


def visible(store: MemoryStore) -> set[tuple[tuple[str, ...], str]]:
    return {(item.namespace, item.key) for item in store.search((), limit=100)}


def test_everybody_sees_what_is_meant_for_them(filled: MemoryStore, engine: Engine) -> None:
    device, user, shared = ((("notes", "ann"), tier.value) for tier in Tier)
    diary, web = (("diary",), "shared"), (NOTES, "web")
    assert visible(filled) == visible(filled.view(Principal("ann", engine.device))) == {device, user, shared, diary, web}
    assert visible(filled.view(Principal("ann", "phone"))) == {user, shared, diary, web}
    assert visible(filled.view(Principal("bob", engine.device))) == {shared, diary, web}
    assert visible(filled.view(Principal("bob", "phone", prefixes=(("notes", "ann"), ("nothing",))))) == {shared}
    assert visible(filled.view(Principal("bob", "phone", prefixes=()))) == set()
    assert visible(filled.view(Principal("bob", "phone", minimum_trust=0.5))) == set(), "they are ann's, and believed as strangers are"
    assert visible(filled.view(Principal("ann", "phone", minimum_trust=0.5))) == {user, shared, diary}


def test_no_way_to_read_shows_what_is_not_meant_for_somebody(filled: MemoryStore) -> None:
    theirs = filled.view(Principal("bob", "phone", prefixes=(("notes", "ann"),)))
    assert theirs.get(("notes", "ann"), "device") is theirs.get(("notes", "ann"), "user") is theirs.get(("diary",), "shared") is None
    for mode in SearchMode:
        assert [item.key for item in theirs.search((), query="tea", mode=mode)] == ["shared"]
    assert theirs.search((), filter={"text": "tea"}, offset=1) == []
    assert theirs.list_namespaces() == [("notes", "ann")]
    assert [change.address and change.address.key for change in theirs.changes()[0]] == ["shared"]
    assert theirs.history(("notes", "ann"), "device") == []
    assert theirs.stats() == {"items": 1, "deleted": 0, "bytes": len('{"text":"tea"}'), "conflicts": 0}
    assert list(theirs.export()) == list(filled.view(Principal("bob", "phone")).export(prefix=("notes", "ann")))


def test_a_view_counts_what_is_there_for_it_and_nothing_else(filled: MemoryStore) -> None:
    theirs = filled.view(Principal("bob", "phone"))
    before = theirs.stats()
    filled.put(("private",), "of ann", {"text": "x" * 1000})
    filled.delete(("private",), "of ann")
    assert theirs.stats() == before
    for key in ("kept", "deleted"):
        theirs.put(("bob",), key, {"n": 1})
    theirs.delete(("bob",), "deleted")
    after = theirs.stats()
    assert (after["items"], after["deleted"]) == (before["items"] + 1, before["deleted"] + 1)
    assert after["bytes"] == before["bytes"] + len('{"n":1}')
    assert after["items"] == len(theirs.search((), limit=100))
    assert filled.stats()["items"] >= after["items"]


def test_what_somebody_writes_through_a_view_is_theirs(filled: MemoryStore, engine: Engine) -> None:
    theirs = filled.view(Principal("bob", "phone"))
    theirs.put(NOTES, "bob's", {"text": "b"})
    item = filled.get(NOTES, "bob's")
    assert item is not None
    assert (item.user, item.tier) == ("bob", Tier.USER)
    assert theirs.get(NOTES, "bob's") is not None
    here = filled.view(Principal("ann", engine.device))
    here.put(NOTES, "ann's", {})
    assert read(filled, "ann's").tier is Tier.DEVICE


def test_nobody_keeps_what_must_not_leave_their_device_on_another_one(filled: MemoryStore) -> None:
    theirs = filled.view(Principal("bob", "phone"))
    with pytest.raises(PrivacyViolation, match="bob"):
        theirs.put(NOTES, "secret", {"text": "b"}, tier=Tier.DEVICE)
    assert filled.get(NOTES, "secret") is None


def test_nobody_writes_over_what_they_may_not_see(filled: MemoryStore) -> None:
    theirs = filled.view(Principal("eve", "phone", prefixes=(NOTES,)))
    for write in INTRUSIONS:
        with pytest.raises(PermissionDenied):
            write(theirs)
    assert len(visible(filled)) == 5
    assert all(item.value["text"] == "tea" for item in filled.search(()))


def test_a_version_cannot_be_guessed_at_through_a_view(filled: MemoryStore) -> None:
    theirs = filled.view(Principal("eve", "phone"))
    with pytest.raises(PermissionDenied):
        theirs.put(("notes", "ann"), "device", {}, if_version="1f@device")
    with pytest.raises(VersionConflict) as refused:
        theirs.put(("notes", "ann"), "unknown", {}, if_version="1f@device")
    assert "absent" in str(refused.value)


def test_a_view_of_a_bound_store_keeps_what_it_is_bound_to(store: MemoryStore) -> None:
    store.bound(agent="near").view(Principal("bob", "phone")).bound(source=Source.MODEL).put(NOTES, "tea", {})
    item = read(store)
    assert (item.user, item.agent, item.source) == ("bob", "near", Source.MODEL)


@pytest.mark.parametrize("mode", SearchMode)
def test_what_becomes_private_during_a_search_is_not_shown(
    store: MemoryStore, engine: Engine, mode: SearchMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(NOTES, "tea", {"text": "green tea"}, tier=Tier.SHARED)
    numbered = engine.numbered

    def after_a_write(numbers: Sequence[int]) -> dict[int, ItemRow]:
        store.put(NOTES, "tea", {"text": "my tea"}, tier=Tier.DEVICE)
        return numbered(numbers)

    monkeypatch.setattr(engine, "numbered", after_a_write)
    seen = store.view(Principal("eve", "phone"))
    assert seen.search(NOTES, query="tea", mode=mode) == []
    store.put(NOTES, "tea", {"text": "green tea"}, tier=Tier.SHARED)
    (found,) = seen.matches([NOTES], keywords="tea", text="tea", limit=10)
    assert found == ({}, {}, {})


def test_what_one_user_shared_no_other_changes_and_the_app_may(filled: MemoryStore) -> None:
    place = ("diary",), "shared"
    theirs = filled.view(Principal("bob", "phone"))
    for write in (lambda: theirs.put(*place, {"text": "eve"}), lambda: theirs.delete(*place), lambda: theirs.patch(*place, {"n": 1})):
        with pytest.raises(PermissionDenied, match="shared by user 'ann'"):
            write()
    item = theirs.get(*place)
    assert item is not None
    assert (item.value, item.user, item.trust, item.conflicts) == ({"text": "tea"}, "ann", 0.2, 0)
    filled.put(*place, {"text": "green tea"}, tier=Tier.SHARED)
    again = theirs.get(*place)
    assert again is not None
    assert again.value == {"text": "green tea"}
