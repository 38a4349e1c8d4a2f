"""What an agent recalls, of what happened and what is known, and for whom."""

import pytest

from nearfar.orchestrator.memory.agent_memory import AgentMemory, Fact
from nearfar.orchestrator.memory.episodic import MemoryTurn
from nearfar.orchestrator.memory.operation import Principal
from nearfar.orchestrator.memory.store import MemoryStore
from nearfar.protocols import Sensitivity
from nearfar.protocols.items import Source, Tier


def test_facts_have_room_before_turns(store: MemoryStore) -> None:
    memory = AgentMemory(store)
    memory.remember(MemoryTurn(speaker="Ann", text="The harvest festival was loud."), "monday")
    memory.facts.learn(Fact(about="harvest festival", attribute="date", statement="The harvest festival is on the nineteenth."))
    assert "nineteenth" in memory.recall("When is the harvest festival?", limit=1).text
    assert "loud" in memory.recall("When is the harvest festival?").text


def test_notes_of_a_run_are_never_recalled(store: MemoryStore) -> None:
    memory = AgentMemory(store)
    memory.working("run-1").note("festival", {"text": "The harvest festival is a secret."})
    assert memory.recall("When is the harvest festival?").items == ()


def test_an_empty_memory_recalls_nothing(store: MemoryStore) -> None:
    recalled = AgentMemory(store).recall("When is the harvest festival?")
    assert (recalled.text, recalled.tokens, recalled.sensitivity) == ("", 0, Sensitivity.PUBLIC)


@pytest.mark.parametrize(("tier", "expected"), [(Tier.SHARED, Sensitivity.PUBLIC), (Tier.USER, Sensitivity.PRIVATE)])
def test_recalling_what_is_not_for_everybody_makes_a_task_private(store: MemoryStore, tier: Tier, expected: Sensitivity) -> None:
    memory = AgentMemory(store)
    memory.remember(MemoryTurn(speaker="Ann", text="The kite is red.", tier=tier), "monday")
    assert memory.recall("kite").sensitivity is expected


def test_what_is_recalled_is_trusted_no_more_than_its_least_trusted_part(store: MemoryStore) -> None:
    memory = AgentMemory(store)
    memory.remember(MemoryTurn(speaker="Ann", text="The kite is red.", source=Source.USER), "monday")
    memory.remember(MemoryTurn(speaker="web", text="The kite is blue.", source=Source.EXTERNAL_TOOL), "monday")
    assert memory.recall("kite").trust == 0.2


def test_nobody_recalls_what_is_not_meant_for_them(store: MemoryStore) -> None:
    memory = AgentMemory(store)
    memory.remember(MemoryTurn(speaker="Ann", text="The kite is in the attic.", tier=Tier.USER), "monday")
    memory.remember(MemoryTurn(speaker="Ann", text="The kite is red.", tier=Tier.SHARED), "monday")
    memory.episodes.close("monday")
    bens = AgentMemory(store.view(Principal(user="ben", device="ben's phone")))
    assert [item.value["text"] for item in bens.recall("kite").items] == ["The kite is red."]


@pytest.mark.parametrize("question", ["", "?!", "the", '" OR * NEAR(', "漢字"])
def test_any_question_may_be_asked(store: MemoryStore, question: str) -> None:
    memory = AgentMemory(store)
    memory.remember(MemoryTurn(speaker="Ann", text="The kite is red."), "monday")
    assert len(memory.recall(question).items) <= 1
