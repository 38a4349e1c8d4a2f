"""The shape of each strategy's graph: which of the shared nodes follows which."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

from langgraph.graph import END, START, StateGraph

from ...protocols import ConfigError
from ..task.modes import Strategy
from ..util.plugins import Plugin, find_plugin
from .act_looks import ActNodes
from .calls import TaskGraphBuilder, add_node
from .oversight import NavigatorNodes
from .state import TaskContext, TaskState
from .supervised import SupervisorNodes, after_act, after_act_or_plan, after_plan, after_route, after_tools, after_verify
from .turn import after_judge, after_step

if TYPE_CHECKING:
    from .graphs import TaskNodes

Builder: TypeAlias = Callable[["TaskNodes"], TaskGraphBuilder]


def build_single(nodes: "TaskNodes") -> TaskGraphBuilder:
    """Return the graph of `device`, `cloud`, `route`, `cascade` and `speculate`.

    One agent acts and runs tools until it answers; the next takes over until an answer stands. The graph's input is
    `{"task": Task.model_dump(mode="json")}`.
    """
    graph: TaskGraphBuilder = StateGraph(TaskState, TaskContext)
    graph.add_node("route", nodes.route)
    add_node(graph, "act", nodes.act, after_step, ["act", "look", "tools", "judge", END])
    add_node(graph, "look", ActNodes(nodes).look, after_step, ["act", "tools", "judge"])
    graph.add_node("tools", nodes.run_tools)
    add_node(graph, "judge", nodes.judge, after_judge, ["act", END])
    graph.add_edge(START, "route")
    graph.add_edge("route", "act")
    graph.add_edge("tools", "act")
    return graph


def build_pevr(nodes: "TaskNodes") -> TaskGraphBuilder:
    """Return the graph of Plan - Execute - Verify - Replan (PEVR, arXiv 2605.30102).

    After one plan, the executor takes turns, and a supervisor checks now and then whether they keep to it. A check is one call: the verdict
    and, with INTERVENE, the plan of what remains, from which the executor starts over. Beyond the paper, the plan may wait for a doubt:
    with `plan_below`, the executor begins alone, and is given a plan only where its first step is unsure.
    """
    supervisor = SupervisorNodes(nodes)
    graph: TaskGraphBuilder = StateGraph(TaskState, TaskContext)
    add_node(graph, "route", nodes.route, after_route, ["plan", "act"])
    add_node(graph, "plan", supervisor.plan, after_plan, ["act", "look", "tools", "verify", "judge"])
    add_node(graph, "act", NavigatorNodes(nodes).act, after_act_or_plan, ["act", "plan", "look", "tools", "verify", "judge", END])
    add_node(graph, "look", ActNodes(nodes).look, after_act, ["tools", "verify", "judge"])
    add_node(graph, "tools", nodes.run_tools, after_tools, ["verify", "act"])
    add_node(graph, "verify", supervisor.verify, after_verify, ["act", "tools", "judge"])
    graph.add_node("judge", supervisor.judge)
    graph.add_edge(START, "route")
    graph.add_edge("judge", END)
    return graph


def build_eva(nodes: "TaskNodes") -> TaskGraphBuilder:
    """Return the graph of Execute - Verify - Advise (EVA, arXiv 2605.30102).

    The executor takes turns, and a supervisor checks its progress now and then. A check is one call: the verdict and, with INTERVENE, a
    summary and advice, from which the executor starts over. Unlike in the paper's pseudocode, the check also sees the last summary and
    advice: without it, a second reset would lose what the first one kept.
    """
    supervisor = SupervisorNodes(nodes)
    graph: TaskGraphBuilder = StateGraph(TaskState, TaskContext)
    graph.add_node("route", nodes.route)
    add_node(graph, "act", nodes.act, after_act, ["act", "look", "tools", "verify", "judge", END])
    add_node(graph, "look", ActNodes(nodes).look, after_act, ["tools", "verify", "judge"])
    add_node(graph, "tools", nodes.run_tools, after_tools, ["verify", "act"])
    add_node(graph, "verify", supervisor.verify, after_verify, ["act", "tools", "judge"])
    graph.add_node("judge", nodes.judge)
    graph.add_edge(START, "route")
    graph.add_edge("route", "act")
    graph.add_edge("judge", END)
    return graph


def build_minions(nodes: "TaskNodes") -> TaskGraphBuilder:
    """Return the graph of `minions`, whose modules no other strategy needs."""
    from . import minions

    return minions.build_minions(nodes)


def build_subtasks(nodes: "TaskNodes") -> TaskGraphBuilder:
    """Return the graph of `subtasks`, whose modules no other strategy needs."""
    from . import subtasks

    return subtasks.build_subtasks(nodes)


BUILDERS: Mapping[Strategy, Builder] = {
    **dict.fromkeys((Strategy.DEVICE, Strategy.CLOUD, Strategy.ROUTE, Strategy.CASCADE, Strategy.SPECULATE), build_single),
    Strategy.PEVR: build_pevr,
    Strategy.EVA: build_eva,
    Strategy.MINIONS: build_minions,
    Strategy.SUBTASKS: build_subtasks,
}
"""The builder of each strategy's graph. Every graph takes `{"task": Task.model_dump(mode="json")}` and leaves the accepted attempt."""


def builder_of(strategy: Strategy) -> Builder:
    """Return the builder of a strategy's graph.

    Raises `ConfigError` for `auto`, which only chooses among the others, and for a plugin that cannot be used.
    """
    if strategy is Strategy.AUTO:
        raise ConfigError(f"strategy {strategy} has no graph of its own", hint="name one of " + ", ".join(BUILDERS))
    return BUILDERS.get(strategy) or plugin_builder(find_plugin("strategies", strategy))


@cache
def plugin_builder(plugin: Plugin) -> Builder:
    """Load a plugin and return its builder. Raises `ConfigError` where it fails, or is no function."""
    loaded = plugin.load()
    if not callable(loaded):
        raise plugin.misfit("a function from `TaskNodes` to a StateGraph", loaded)

    def build(nodes: "TaskNodes") -> TaskGraphBuilder:
        with plugin.blamed("has built no graph"):
            graph = loaded(nodes)
        if not isinstance(graph, StateGraph):
            raise plugin.misfit("a function from `TaskNodes` to a StateGraph", graph)
        return graph

    return build
