"""How much of what answers a question is found."""

from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="meanings are compared with the shipped embedder")
pytest.importorskip("tokenizers", reason="the shipped embedder needs it")

from allotment import QUESTIONS, SESSIONS

from benchmarks.memory_figures.locomo import figures
from nearfar.orchestrator.memory.agent_memory import AgentMemory
from nearfar.orchestrator.memory.episodic import MemoryTurn
from nearfar.orchestrator.memory.in_tasks import Rendered
from nearfar.orchestrator.memory.ranking import turn_key
from nearfar.orchestrator.memory.store import MemoryStore

DATA = Path(__file__).parents[4] / "shared" / "data"


def recall_of(evidence: set[str], recalled: Rendered) -> float:
    keys = {turn_key(session, int(number)) for session, _, number in (name.partition(":") for name in evidence)}
    return len(keys & {item.key for item in recalled.items}) / len(keys)


@pytest.fixture(scope="module")
def allotment(tmp_path_factory: pytest.TempPathFactory) -> AgentMemory:
    memory = AgentMemory(MemoryStore.open(tmp_path_factory.mktemp("memory") / "memory.db"))
    for session, turns in SESSIONS.items():
        for speaker, text in turns:
            memory.remember(MemoryTurn(speaker=speaker, text=text), session)
        memory.episodes.close(session)
    return memory


def test_the_turns_that_answer_a_question_are_among_few_that_are_recalled(allotment: AgentMemory) -> None:
    found = [recall_of(evidence, allotment.recall(question, limit=5)) for question, evidence in QUESTIONS.items()]
    assert sum(found) / len(found) >= 0.8


def test_a_small_budget_is_spent_on_what_answers_the_question(allotment: AgentMemory) -> None:
    recalled = allotment.recall("What is Tomasz's new job?", budget_tokens=200)
    assert recalled.tokens <= 200
    assert "shipyard" in recalled.text


@pytest.mark.anyio
async def test_recalling_does_not_hold_the_event_loop_up(allotment: AgentMemory) -> None:
    recalled = await allotment.arecall("Which animal destroyed the seed potatoes?", limit=5)
    assert "badger" in recalled.text


@pytest.mark.skipif(not list(DATA.glob("memory/locomo*.json.gz")), reason="the recorded conversations are not here")
def test_evidence_recall_on_recorded_conversations_stays_above_its_bound() -> None:
    found = figures(DATA, quick=True)
    assert found["locomo_recall_at_10"] >= 0.8
    assert found["locomo_recall_at_10"] > found["locomo_fts5_recall_at_10"] + 0.1
    assert found["tokens_per_query"] <= 1200
    assert found["locomo_task"] == found["locomo_tool"] >= 0.8
    assert found["locomo_search_turns"] == found["locomo_recall_at_10"]
    assert found["locomo_search"] > found["locomo_fts5_recall_at_10"]


def test_missing_recordings_are_named(tmp_path: Path) -> None:
    found = figures(tmp_path, quick=True)
    assert found["locomo_recall_at_10"] is None
    assert str(tmp_path) in found["locomo_missing"]
