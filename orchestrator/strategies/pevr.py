"""Plan - Execute - Verify - Replan (PEVR, arXiv 2605.30102): one plan, then turns of the executor, and a check now and then of whether
they keep to it. A check is one call: the verdict and, with INTERVENE, the plan of what remains, from which the executor starts over.

Beyond the paper, the plan may wait for a doubt: with `plan_below`, the executor begins alone, and is given one only where its first step
is unsure.
"""

from langgraph.graph import END, START, StateGraph

from .context import TaskContext
from .edges import add_node
from .nodes import TaskNodes
from .runtime import TaskGraphBuilder
from .state import TaskState
from .supervised import Oversight, SupervisorNodes, after_tools, after_verify
from .supervised import after_act as supervised_after_act


def build(nodes: TaskNodes) -> TaskGraphBuilder:
    """Return the graph of pevr."""
    supervisor = SupervisorNodes(nodes)
    graph: TaskGraphBuilder = StateGraph(TaskState, TaskContext)
    add_node(graph, "route", nodes.route, after_route, ["plan", "act"])
    add_node(graph, "plan", supervisor.plan, after_plan, ["act", "tools", "verify", "judge"])
    add_node(graph, "act", nodes.act, after_act, ["act", "plan", "tools", "verify", "judge", END])
    add_node(graph, "tools", nodes.run_tools, after_tools, ["verify", "act"])
    add_node(graph, "verify", supervisor.verify, after_verify, ["act", "tools", "judge"])
    graph.add_node("judge", nodes.judge)
    graph.add_edge(START, "route")
    graph.add_edge("judge", END)
    return graph


def after_route(state: TaskState) -> str:
    """Plan first, unless there is no supervisor, or `plan_below` leaves the plan for later."""
    view = Oversight(state)
    return "plan" if view.is_on and view.policy.plan_below is None else "act"


def after_plan(state: TaskState) -> str:
    """Let the executor start from the plan; without one, continue from its first step."""
    return supervised_after_act(state) if len(state["messages"]) > len(state["task"]["messages"]) else "act"


def after_act(state: TaskState) -> str:
    """Plan before a first step in doubt is carried out."""
    following = supervised_after_act(state)
    return "plan" if following in ("tools", "judge", "verify") and Oversight(state).doubt() is not None else following
