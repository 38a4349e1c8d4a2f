"""Nodes of a task's graph, which tell no callback that they begin and end unless one listens."""

import asyncio

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, StateGraph

from nearfar.orchestrator.strategies.calls import TaskGraph, TaskGraphBuilder, TaskRuntime, add_node
from nearfar.orchestrator.strategies.state import TaskContext, TaskState


def graph_of(update: TaskState, tasks: list[object]) -> TaskGraph:
    async def node(state: TaskState, runtime: TaskRuntime) -> TaskState:
        tasks.append(asyncio.current_task())
        return update

    graph: TaskGraphBuilder = StateGraph(TaskState, TaskContext)
    add_node(graph, "node", node, lambda state: END, [END])
    graph.add_edge(START, "node")
    return TaskGraph.compiled(graph)


@pytest.mark.anyio
async def test_a_node_runs_in_the_task_that_runs_the_graph() -> None:
    tasks: list[object] = []
    state = await graph_of({"position": 1}, tasks).ainvoke({"position": 0})
    assert state["position"] == 1
    assert tasks == [asyncio.current_task()]


@pytest.mark.anyio
async def test_an_app_that_listens_hears_of_the_messages_that_a_node_returns() -> None:
    graph = graph_of({"messages": [AIMessage("Mira Falk", id="1")]}, [])  # type: ignore[list-item]  # as a plugin's node may
    heard = [message.content async for message, _ in graph.astream({"position": 0}, stream_mode="messages")]
    assert heard == ["Mira Falk"]
