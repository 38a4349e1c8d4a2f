"""The graphs of the strategies, built from the shared nodes."""

from collections.abc import Callable, Mapping, Sequence

from langgraph.graph import END, START, StateGraph
from langgraph.store.base import BaseStore
from langgraph.types import Checkpointer

from ...protocols import ConfigError
from ..agents.pool import AgentPool
from ..routing.router import Router
from ..task.modes import Strategy
from ..task.tools import Tool
from .context import TaskContext
from .minions import build_minions
from .nodes import TaskNodes, after_step, is_accepted
from .runtime import TaskGraph, TaskGraphBuilder, add_node
from .state import TaskState
from .subtasks import build_subtasks
from .supervised import Oversight, SupervisorNodes, after_act, after_tools, after_verify

Builder = Callable[[TaskNodes], TaskGraphBuilder]


def build_single(nodes: TaskNodes) -> TaskGraphBuilder:
    """Return the graph of `device`, `cloud`, `route` and `cascade`.

    One agent acts and runs tools until it answers; the next takes over until an answer stands. The graph's input is
    `{"task": Task.model_dump(mode="json")}`.
    """
    graph: TaskGraphBuilder = StateGraph(TaskState, TaskContext)
    graph.add_node("route", nodes.route)
    add_node(graph, "act", nodes.act, after_step, ["act", "tools", "judge", END])
    graph.add_node("tools", nodes.run_tools)
    add_node(graph, "judge", nodes.judge, after_judge, ["act", END])
    graph.add_edge(START, "route")
    graph.add_edge("route", "act")
    graph.add_edge("tools", "act")
    return graph


def after_judge(state: TaskState) -> str:
    """Let the next agent act after a rejected draft."""
    return END if is_accepted(state) else "act"


def build_pevr(nodes: TaskNodes) -> TaskGraphBuilder:
    """Return the graph of Plan - Execute - Verify - Replan (PEVR, arXiv 2605.30102).

    After one plan, the executor takes turns, and a supervisor checks now and then whether they keep to it. A check is one call: the verdict
    and, with INTERVENE, the plan of what remains, from which the executor starts over. Beyond the paper, the plan may wait for a doubt:
    with `plan_below`, the executor begins alone, and is given a plan only where its first step is unsure.
    """
    supervisor = SupervisorNodes(nodes)
    graph: TaskGraphBuilder = StateGraph(TaskState, TaskContext)
    add_node(graph, "route", nodes.route, after_route, ["plan", "act"])
    add_node(graph, "plan", supervisor.plan, after_plan, ["act", "tools", "verify", "judge"])
    add_node(graph, "act", nodes.act, after_act_or_plan, ["act", "plan", "tools", "verify", "judge", END])
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
    return after_act(state) if len(state["messages"]) > len(state["task"]["messages"]) else "act"


def after_act_or_plan(state: TaskState) -> str:
    """Plan before a first step in doubt is carried out."""
    following = after_act(state)
    return "plan" if following in ("tools", "judge", "verify") and Oversight(state).doubt() is not None else following


def build_eva(nodes: TaskNodes) -> TaskGraphBuilder:
    """Return the graph of Execute - Verify - Advise (EVA, arXiv 2605.30102).

    The executor takes turns, and a supervisor checks its progress now and then. A check is one call: the verdict and, with INTERVENE, a
    summary and advice, from which the executor starts over. Unlike in the paper's pseudocode, the check also sees the last summary and
    advice: without it, a second reset would lose what the first one kept.
    """
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


BUILDERS: Mapping[Strategy, Builder] = {
    Strategy.DEVICE: build_single,
    Strategy.CLOUD: build_single,
    Strategy.ROUTE: build_single,
    Strategy.CASCADE: build_single,
    Strategy.PEVR: build_pevr,
    Strategy.EVA: build_eva,
    Strategy.MINIONS: build_minions,
    Strategy.SUBTASKS: build_subtasks,
}
"""The builder of each strategy's graph. Every graph takes `{"task": Task.model_dump(mode="json")}` and leaves the accepted attempt
behind."""


class Graphs:
    """The compiled graphs of a pool, each built when it is first asked for. Strategies of one shape share a graph."""

    def __init__(
        self, pool: AgentPool, tools: Sequence[Tool], router: Router, *, checkpointer: Checkpointer = None, store: BaseStore | None = None
    ) -> None:
        self._nodes = TaskNodes(pool, tools, router)
        self._checkpointer = checkpointer
        self._store = store
        self._compiled: dict[Builder, TaskGraph] = {}

    def __getitem__(self, strategy: Strategy) -> TaskGraph:
        """Return the graph of a strategy. Raises `ConfigError` for one that only chooses among the others."""
        build = BUILDERS.get(strategy)
        if build is None:
            raise ConfigError(f"strategy {strategy} has no graph of its own", hint="name one of " + ", ".join(BUILDERS))
        if build not in self._compiled:
            graph = build(self._nodes)
            self._compiled[build] = TaskGraph.compiled(graph, checkpointer=self._checkpointer, store=self._store, name="nearfar")
        return self._compiled[build]
