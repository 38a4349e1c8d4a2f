"""Nodes that say themselves which node follows."""

from collections.abc import Awaitable, Callable, Sequence

from langgraph.types import Command

from .runtime import TaskGraphBuilder, TaskRuntime
from .state import TaskState

Node = Callable[[TaskState, TaskRuntime], Awaitable[TaskState]]
Edge = Callable[[TaskState], str]


def add_node(graph: TaskGraphBuilder, name: str, node: Node, edge: Edge, following: Sequence[str]) -> None:
    """Add a node; `edge` chooses among `following` by the state that the node leaves behind.

    A conditional edge of LangGraph would do the same in a runnable of its own, in a thread where it is a plain function, and on a state
    that is read once more: about a tenth of what a node of the graph costs.
    """

    async def node_and_edge(state: TaskState, runtime: TaskRuntime) -> Command[str]:
        update = await node(state, runtime)
        left: TaskState = {**state, **update}
        return Command(update=update, goto=edge(left))

    graph.add_node(name, node_and_edge, destinations=tuple(following))
