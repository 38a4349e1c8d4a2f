"""Execute - Verify - Advise (EVA, arXiv 2605.30102): the executor takes turns, and a supervisor checks its progress now and then. A
check is one call: the verdict and, with INTERVENE, a summary and advice, from which the executor starts over.

Unlike the paper's pseudocode, the check also sees the last summary and advice: without it, a second reset would lose what the first one
kept.
"""

from langgraph.graph import END, START, StateGraph

from .context import TaskContext
from .edges import add_node
from .nodes import TaskNodes
from .runtime import TaskGraphBuilder
from .state import TaskState
from .supervised import SupervisorNodes, after_act, after_tools, after_verify


def build(nodes: TaskNodes) -> TaskGraphBuilder:
    """Return the graph of eva."""
    supervisor = SupervisorNodes(nodes)
    graph: TaskGraphBuilder = StateGraph(TaskState, TaskContext)
    graph.add_node("route", nodes.route)
    add_node(graph, "act", nodes.act, after_act, ["act", "tools", "verify", "judge", END])
    add_node(graph, "tools", nodes.run_tools, after_tools, ["verify", "act"])
    add_node(graph, "verify", supervisor.verify, after_verify, ["act", "tools", "judge"])
    graph.add_node("judge", nodes.judge)
    graph.add_edge(START, "route")
    graph.add_edge("route", "act")
    graph.add_edge("judge", END)
    return graph
