"""A task, the tool `recall` and `MemoryStore.search` find the same turns for the same question and budget."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar import Hybrid, TaskMemory
from nearfar.orchestrator.memory.agent_memory import AgentMemory
from nearfar.orchestrator.memory.episodic import MemoryTurn
from nearfar.orchestrator.memory.in_tasks import memory_tools, render
from nearfar.orchestrator.memory.ranking import Granularity, episodic
from nearfar.orchestrator.memory.reading import MemoryItem
from nearfar.orchestrator.memory.store import MemoryStore
from nearfar.orchestrator.task.stores import RecallConfig
from nearfar.protocols import ScriptedAgent, ToolCall

WORDS = ("badger", "potato", "shed", "roof", "harbour", "sedum", "kettle", "violin", "June", "Gdynia", "lamp", "?")
TURNS = episodic(("chat",), Granularity.TURN)
lines = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=12).map(" ".join), min_size=1, max_size=8)
questions = st.lists(st.sampled_from(WORDS[:-1]), min_size=1, max_size=4).map(lambda words: f"What about {' '.join(words)} then?")


class WordEmbedder:
    """Texts with the same words mean the same."""

    name = "words/1"
    width = len(WORDS)

    def embed_all(self, texts: Sequence[str]) -> list[list[float]]:
        return [[float(Counter(text.split())[word]) for word in WORDS] for text in texts]


def remembered(sessions: Sequence[Sequence[str]]) -> MemoryStore:
    store = MemoryStore.open(":memory:", embedder=WordEmbedder())
    memory = AgentMemory(store, ("chat",))
    for number, said in enumerate(sessions):
        for place, text in enumerate(said):
            memory.remember(MemoryTurn(speaker=("Ann", "Ben")[place % 2], text=text), str(number))
        memory.episodes.close(str(number))
    return store


async def told_to_a_task(store: MemoryStore, question: str, config: RecallConfig) -> list[str]:
    async with Hybrid(near=ScriptedAgent(["Yes."], name="near"), memory=TaskMemory(store, recall=config)) as hybrid:
        return [item.key for item in (await hybrid.run(question)).recalled]


async def told_by_the_tool(store: MemoryStore, question: str, config: RecallConfig) -> list[str]:
    near = ScriptedAgent([ToolCall(id="1", name="recall", arguments={"query": question}), "Yes."], name="near")
    memory = TaskMemory(store, recall=None, tools=memory_tools(store, recall=config))
    async with Hybrid(near=near, memory=memory) as hybrid:
        return [item.key for item in (await hybrid.run("Look it up.")).recalled]


def searched(store: MemoryStore, question: str) -> list[MemoryItem]:
    return store.search(TURNS, query=question, limit=1000)


@settings(max_examples=15, deadline=None)
@given(st.lists(lines, min_size=1, max_size=4), questions, st.integers(120, 1500))
def test_three_doors_return_the_same_turns(sessions: list[list[str]], question: str, tokens: int) -> None:
    config = RecallConfig(tokens=tokens, minimum_similarity=-1)
    with remembered(sessions) as store:
        expected = [item.key for item in render(searched(store, question), tokens).items]
        assert asyncio.run(told_to_a_task(store, question, config)) == expected
        assert asyncio.run(told_by_the_tool(store, question, config)) == expected
        assert [item.key for item in AgentMemory(store, ("chat",)).recall(question, tokens).items] == expected


@given(st.lists(lines, min_size=1, max_size=3), questions, st.integers(1, 7))
@settings(max_examples=15, deadline=None)
def test_pages_of_turns_fit_together(sessions: list[list[str]], question: str, size: int) -> None:
    with remembered(sessions) as store:
        everything = searched(store, question)
        pages = [store.search(TURNS, query=question, limit=size, offset=offset) for offset in range(0, len(everything), size)]
        assert [item.key for page in pages for item in page] == [item.key for item in everything]
        scores = [item.score or 0.0 for item in everything]
        assert scores == sorted(scores, reverse=True)


def test_a_task_recalls_as_many_turns_as_its_budget_has_room_for() -> None:
    sessions = [[f"The badger ate potato number {number}." for number in range(20)]]
    with remembered(sessions) as store:
        recalled = asyncio.run(told_to_a_task(store, "Which potato did the badger eat?", RecallConfig()))
    assert len(recalled) == 20


@pytest.mark.parametrize("options", [{"filter": {"speaker": "Ann"}}, {"key_prefix": "0:"}])
def test_a_search_that_is_narrowed_finds_nothing_else(options: dict[str, object]) -> None:
    with remembered([["badger shed", "badger roof"], ["badger lamp", "shed"]]) as store:
        found = store.search(TURNS, query="badger", **options)  # type: ignore[arg-type]  # options of several types
    assert found
    assert all(item.value["speaker"] == "Ann" or item.key.startswith("0:") for item in found)
