"""Every consolidation can be taken back until it is confirmed."""

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory_engine import InMemoryEngine
from nights import CATS, TRAVELS, Clock, Night

from nearfar.orchestrator.memory.consolidation_journal import BatchState, JournalAction, JournalEntry
from nearfar.orchestrator.memory.ranking import TEXT
from nearfar.orchestrator.memory.store import MemoryStore
from nearfar.protocols import InvalidRequest, NotFound
from nearfar.protocols.items import ItemAddress, Source, Tier

STATEMENTS = st.sampled_from(
    ["Ann lives in Rome.", "Ann lives in Berlin.", "Ann likes tea.", "Ann does not like tea.", "Tom is 40.", "Tom is 41."]
)
FACTS = st.tuples(
    st.sampled_from(["home town", "home_town", "Home Town", "tea", "age"]),
    STATEMENTS,
    st.sampled_from([Source.USER, Source.MODEL, Source.DOCUMENT]),
    st.sampled_from(list(Tier)),
    st.sampled_from(["", "ann"]),
)
TALKS = st.tuples(st.lists(st.sampled_from([*TRAVELS, *CATS]), min_size=1, max_size=8), st.sampled_from(list(Tier)))


@given(st.lists(FACTS, max_size=8), st.lists(TALKS, max_size=3), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_taking_back_restores_everything(facts: list[tuple], talks: list[tuple], nights: int) -> None:  # type: ignore[type-arg]  # as drawn
    clock = Clock()
    with MemoryStore(InMemoryEngine(), user="ann", now=clock) as store:
        night = Night(store, clock)
        for attribute, statement, source, tier, subject in facts:
            night.learn(attribute, statement, source=source, tier=tier, subject=subject)
        for number, (texts, tier) in enumerate(talks):
            night.talk(f"session-{number}", texts, tier=tier)
        before = night.everything()
        sleeper = night.sleeper()
        for _ in range(nights):
            anyio.run(sleeper.run)
        for batch in sleeper.journal.batches():
            assert sleeper.journal.revert(batch.id).left == ()
        assert night.everything() == before


pytestmark = pytest.mark.anyio


async def slept(night: Night) -> str:
    """The batch of a night with something to do."""
    night.talk("trip", TRAVELS)
    night.learn("home town", "Ann lives in Rome.")
    night.learn("home_town", "Ann lives in Berlin.")
    batch = (await night.sleeper().run()).batch
    assert batch is not None
    return batch


async def test_a_batch_tells_what_it_did(night: Night) -> None:
    batch = await slept(night)
    (told,) = night.sleeper().journal.batches()
    assert (told.id, told.state, told.created, told.retired) == (batch, BatchState.OPEN, 2, 1)


async def test_what_was_taken_back_is_not_done_again(night: Night) -> None:
    batch = await slept(night)
    sleeper = night.sleeper()
    sleeper.journal.revert(batch)
    assert (await sleeper.run()).batch is None
    assert night.known() == {"Ann lives in Rome.", "Ann lives in Berlin."}
    assert night.summaries() == []


async def test_what_is_confirmed_cannot_be_taken_back_and_keeps_its_sources(night: Night) -> None:
    batch = await slept(night)
    before = night.everything()
    journal = night.sleeper().journal
    assert journal.confirm(batch).state is BatchState.CONFIRMED
    with pytest.raises(InvalidRequest, match="confirmed"):
        journal.revert(batch)
    assert night.everything() == before


async def test_what_somebody_changed_since_stays_and_is_told(night: Night) -> None:
    batch = await slept(night)
    (summary,) = night.summaries()
    night.store.patch(summary.namespace, summary.key, {TEXT: "My own words."})
    reverted = night.sleeper().journal.revert(batch)
    assert reverted.left == (summary.address,)
    assert [item.value[TEXT] for item in night.summaries()] == ["My own words."]


async def test_taking_back_twice_changes_nothing_more(night: Night) -> None:
    batch = await slept(night)
    journal = night.sleeper().journal
    journal.revert(batch)
    before = night.everything()
    assert journal.revert(batch).removed == 0
    assert night.everything() == before


async def test_a_batch_that_is_not_there_is_not_found(night: Night) -> None:
    with pytest.raises(NotFound):
        night.sleeper().journal.revert("20260101-000000-abcdef")


async def test_a_write_that_was_noted_and_never_made_is_nothing_to_undo(night: Night) -> None:
    journal = night.sleeper().journal
    batch = journal.begin()
    journal.note(batch, JournalEntry(JournalAction.CREATED, ItemAddress(("episodic", "summary"), "trip:000000-000003")), subject="")
    night.learn("home town", "Ann lives in Rome.")
    journal.note(batch, JournalEntry(JournalAction.RETIRED, ItemAddress(("semantic",), "ann/home town")), subject="")
    before = night.everything()
    assert journal.revert(batch).left == ()
    assert night.everything() == before
