"""`device`, `cloud`, `route`, `cascade`: one agent acts and runs tools until it answers; the next takes over until an answer stands."""

from typing import Any

from langgraph.graph import END, START, StateGraph

from .context import TaskContext
from .edges import add_node
from .nodes import TaskNodes
from .runtime import TaskGraphBuilder
from .state import TaskState


def build(nodes: TaskNodes) -> TaskGraphBuilder:
    """Return the graph of one agent after another. Its input is `{"task": Task.model_dump(mode="json")}`."""
    graph: TaskGraphBuilder = StateGraph(TaskState, TaskContext)
    graph.add_node("route", nodes.route)
    add_node(graph, "act", nodes.act, after_act, ["act", "tools", "judge", END])
    graph.add_node("tools", nodes.run_tools)
    add_node(graph, "judge", nodes.judge, after_judge, ["act", END])
    graph.add_edge(START, "route")
    graph.add_edge("route", "act")
    graph.add_edge("tools", "act")
    return graph


def after_act(state: TaskState) -> str:
    """Choose the node after a step: `act` after a failed or corrected attempt, `tools` for calls, `judge` for an answer, the end for a
    reinstated draft."""
    if _is_accepted(state):
        return END
    last: dict[str, Any] = state["messages"][-1]
    if state["draft"] is None or last["role"] != "assistant":
        return "act"
    return "tools" if last["tool_calls"] else "judge"


def after_judge(state: TaskState) -> str:
    """Let the next agent act after a rejected draft."""
    return END if _is_accepted(state) else "act"


def _is_accepted(state: TaskState) -> bool:
    return any(attempt["outcome"] == "accepted" for attempt in state["attempts"])
