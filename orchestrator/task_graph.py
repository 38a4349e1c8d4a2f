"""The graph that serves one task: route, act, run tools, judge; from agent to agent until an answer stands."""

from collections.abc import Sequence
from typing import Any

from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.store.base import BaseStore
from langgraph.types import Checkpointer

from .nodes import TaskNodes
from .team import Team
from .tools import Tool
from .turn import TaskState


def build_task_graph(
    team: Team, tools: Sequence[Tool], *, checkpointer: Checkpointer = None, store: BaseStore | None = None
) -> CompiledStateGraph[TaskState, None, TaskState, TaskState]:
    """Compile the graph. Its input is `{"task": Task.model_dump(mode="json")}`; its state is plain JSON, so any checkpointer takes it."""
    nodes = TaskNodes(team, tools)
    graph: StateGraph[TaskState, None, TaskState, TaskState] = StateGraph(TaskState)
    graph.add_node("route", nodes.route)
    graph.add_node("act", nodes.act)
    graph.add_node("tools", nodes.run_tools)
    graph.add_node("judge", nodes.judge)
    graph.add_edge(START, "route")
    graph.add_edge("route", "act")
    graph.add_conditional_edges("act", after_act, ["act", "tools", "judge", END])
    graph.add_edge("tools", "act")
    graph.add_conditional_edges("judge", after_judge, ["act", END])
    return graph.compile(checkpointer=checkpointer, store=store, name="nearfar")


def after_act(state: TaskState) -> str:
    """A failed or corrected attempt acts again, calls go to the tools, an answer to the judge; a draft that was reinstated ends it."""
    if _is_accepted(state):
        return END
    last: dict[str, Any] = state["messages"][-1]
    if state["draft"] is None or last["role"] != "assistant":
        return "act"
    return "tools" if last["tool_calls"] else "judge"


def after_judge(state: TaskState) -> str:
    """A rejected draft hands over to the next agent."""
    return END if _is_accepted(state) else "act"


def _is_accepted(state: TaskState) -> bool:
    return any(attempt["outcome"] == "accepted" for attempt in state["attempts"])
