"""Execute - Verify - Advise (EVA, arXiv 2605.30102): turns of the executor, and a check now and then of their progress. A check is one
call: the verdict and, with INTERVENE, a summary and advice, from which the executor starts anew.

Unlike the paper's pseudocode, the check also sees the last summary and advice: without it, a second reset would lose what the first one
kept."""

from langgraph.graph import END, START, StateGraph

from .nodes import TaskNodes
from .state import TaskContext, TaskGraphBuilder, TaskState
from .supervised import SupervisorNodes, after_act, after_tools, after_verify


def build(nodes: TaskNodes) -> TaskGraphBuilder:
    """The graph of eva."""
    supervisor = SupervisorNodes(nodes)
    graph: TaskGraphBuilder = StateGraph(TaskState, TaskContext)
    graph.add_node("route", nodes.route)
    graph.add_node("act", nodes.act)
    graph.add_node("tools", nodes.run_tools)
    graph.add_node("verify", supervisor.verify)
    graph.add_node("judge", nodes.judge)
    graph.add_edge(START, "route")
    graph.add_edge("route", "act")
    graph.add_conditional_edges("act", after_act, ["act", "tools", "verify", "judge", END])
    graph.add_conditional_edges("tools", after_tools, ["verify", "act"])
    graph.add_conditional_edges("verify", after_verify, ["act", "judge"])
    graph.add_edge("judge", END)
    return graph
