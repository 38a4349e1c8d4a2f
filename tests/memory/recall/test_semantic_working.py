"""What is known, and what a run notes down."""

from contextlib import suppress
from datetime import UTC, datetime

from nearfar.orchestrator.memory.agent_memory import Fact, Learned, SemanticMemory, WorkingMemory
from nearfar.orchestrator.memory.store import MemoryStore
from nearfar.protocols.items import ItemAddress, Source, Tier


def lives_in(town: str, source: Source = Source.USER, since: datetime | None = None) -> Fact:
    return Fact(about="Ann", attribute="home", statement=f"Ann lives in {town}.", source=source, since=since)


def texts(items: object) -> list[str]:
    return [item.value["text"] for item in items]  # type: ignore[attr-defined]  # lists of items


def test_a_contradiction_supersedes_and_the_past_stays_in_history(store: MemoryStore) -> None:
    memory = SemanticMemory(store)
    assert memory.learn(lives_in("Oslo", since=datetime(2025, 1, 1, tzinfo=UTC))) is Learned.FACT
    assert memory.learn(lives_in("Rome", since=datetime(2025, 6, 1, tzinfo=UTC))) is Learned.FACT
    assert texts(memory.facts("ann")) == texts(memory.found("Where does Ann live?", limit=5)) == ["Ann lives in Rome."]
    assert texts(memory.history("Ann", "HOME")) == ["Ann lives in Rome.", "Ann lives in Oslo."]
    assert memory.history("Ann", "home")[1].invalid_from == datetime(2025, 6, 1, tzinfo=UTC)


def test_what_is_known_already_is_not_learned_again(store: MemoryStore) -> None:
    memory = SemanticMemory(store)
    memory.learn(lives_in("Oslo"))
    assert memory.learn(lives_in("Oslo", Source.MODEL)) is Learned.NOTHING
    assert len(memory.history("Ann", "home")) == 1


def test_what_a_stranger_claims_does_not_change_what_the_user_said(store: MemoryStore) -> None:
    memory = SemanticMemory(store)
    memory.learn(lives_in("Oslo"))
    assert memory.learn(lives_in("Rome", Source.EXTERNAL_TOOL)) is Learned.CLAIM
    known = memory.fact("Ann", "home")
    assert known is not None
    assert known.value["text"] == "Ann lives in Oslo."
    found = {item.value["text"]: item.trust for item in memory.found("Ann lives", limit=5)}
    assert found == {"Ann lives in Oslo.": 1.0, "Ann lives in Rome.": 0.2}


def test_a_fact_is_no_more_trusted_than_what_it_was_derived_from(store: MemoryStore) -> None:
    store.bound(source=Source.DOCUMENT).put(("notes",), "1", {"text": "Ann moved"}, tier=Tier.USER)
    memory = SemanticMemory(store)
    memory.learn(
        Fact(
            about="Ann",
            attribute="home",
            statement="Ann moved.",
            source=Source.USER,
            sources=[ItemAddress(("notes",), "1")],
            tier=Tier.SHARED,
        )
    )
    known = memory.fact("Ann", "home")
    assert known is not None
    assert (known.trust, known.tier) == (0.4, Tier.USER)
    assert memory.learn(lives_in("Oslo")) is Learned.FACT


def test_notes_of_a_run_are_gone_when_it_ends(store: MemoryStore) -> None:
    notes = WorkingMemory(store, "run-1")
    with suppress(InterruptedError), notes:
        notes.note("plan", {"steps": ["search"]})
        notes.add("seen", [1, 2])
        notes.add("seen", [3])
        assert notes.notes() == {"seen": {"entries": [1, 2, 3]}, "plan": {"steps": ["search"]}}
        raise InterruptedError
    assert notes.get("plan") is None
    assert store.stats()["operations"] == 0


def test_notes_stay_on_the_device_and_apart_from_other_runs(store: MemoryStore) -> None:
    shared = store.bound(tier=Tier.SHARED)
    notes = WorkingMemory(shared, "run-1")
    notes.note("a", {"text": "kite"})
    notes.add("b", ["kite"])
    assert {item.tier for item in store.search(())} == {Tier.DEVICE}
    assert store.search((), query="kite") == []
    assert WorkingMemory(shared, "run-2").notes() == {}
