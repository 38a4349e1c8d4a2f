"""A graph of LangGraph takes the store as its own."""

from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.config import get_store
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import InjectedStore, ToolNode
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore

from nearfar import MemoryStore, Origin, Source, writing_as

NOTES = ("notes",)


class State(TypedDict, total=False):
    """What goes through the graph."""

    said: str
    found: list[str]
    messages: list[Any]


def test_nodes_write_and_read_through_the_runtime(store: MemoryStore) -> None:
    def remember(state: State, runtime: Runtime[None]) -> State:
        assert runtime.store is not None
        runtime.store.put(NOTES, "said", {"text": state["said"]})
        return {}

    def recall(state: State, *, store: BaseStore) -> State:
        assert store is get_store()
        return {"found": [item.value["text"] for item in store.search(NOTES, query="tea")]}

    graph = StateGraph(State)
    graph.add_node(remember)
    graph.add_node(recall)
    graph.add_edge(START, "remember")
    graph.add_edge("remember", "recall")
    graph.add_edge("recall", END)
    with writing_as(Origin(agent="near", source=Source.MODEL)):
        assert graph.compile(store=store).invoke({"said": "green tea"})["found"] == ["green tea"]
    item = store.get(NOTES, "said")
    assert item is not None
    assert (item.agent, item.trust) == ("near", 0.6)


@pytest.mark.anyio
async def test_asynchronous_nodes_write_and_read(store: MemoryStore) -> None:
    async def remember(state: State, runtime: Runtime[None]) -> State:
        assert runtime.store is not None
        await runtime.store.aput(NOTES, "said", {"text": state["said"]})
        found = await runtime.store.asearch(NOTES, query="tea")
        return {"found": [item.value["text"] for item in found]}

    graph = StateGraph(State)
    graph.add_node(remember)
    graph.add_edge(START, "remember")
    compiled = graph.compile(store=store)
    assert (await compiled.ainvoke({"said": "green tea"}))["found"] == ["green tea"]


def test_tools_get_the_store_and_the_model_does_not_see_it(store: MemoryStore) -> None:
    @tool
    def note(text: str, store: Annotated[BaseStore, InjectedStore()]) -> str:
        """Keep a note."""
        store.put(NOTES, "note", {"text": text})
        return "kept"

    graph = StateGraph(State)
    graph.add_node("tools", ToolNode([note]))
    graph.add_edge(START, "tools")
    call = AIMessage("", tool_calls=[{"name": "note", "args": {"text": "tea"}, "id": "1", "type": "tool_call"}])
    result = graph.compile(store=store).invoke({"messages": [call]})
    assert isinstance(result["messages"][-1], ToolMessage)
    item = store.get(NOTES, "note")
    assert item is not None
    assert item.value == {"text": "tea"}
