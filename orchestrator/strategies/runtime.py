"""The graph of a task as LangGraph runs it, and the events that its nodes tell of.

Loading LangGraph takes longer than all the rest, so that nothing above the graphs imports this module before a task is served.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, closing
from typing import Any, Self

from langchain_core.runnables import RunnableConfig
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command

from ..task.events import AgentText, TaskEvent
from ..util.untraced import is_untraced, untraced, without_callbacks
from .context import TaskContext
from .state import TaskState

TaskRuntime = Runtime[TaskContext]
TaskGraphBuilder = StateGraph[TaskState, TaskContext, TaskState, TaskState]


class TaskGraph(CompiledStateGraph[TaskState, TaskContext, TaskState, TaskState]):
    """The compiled graph of a task. It is never traced, whatever app invokes it, and in whatever graph it is a node."""

    @classmethod
    def compiled(cls, builder: TaskGraphBuilder, **options: Any) -> Self:  # noqa: ANN401 - those of LangGraph's `compile`
        """Compile a graph with LangGraph's options."""
        return cls(**vars(builder.compile(**options)))  # as LangGraph's own `copy` makes one

    def astream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> AsyncIterator[Any]:  # noqa: ANN401 - as LangGraph has it
        """Run the graph as LangGraph does, without the callbacks of `config`."""
        parts = super().astream(input, without_callbacks(config), **options)
        return parts if is_untraced() else self._untraced(parts)

    async def _untraced(self, parts: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async with aclosing(parts):  # type: ignore[type-var]  # as LangGraph has it, it is a generator
            ended = object()
            while True:
                with untraced():  # around each part, as between two of them the caller's own code runs in the same context
                    part = await anext(parts, ended)
                if part is ended:
                    return
                yield part

    def stream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Iterator[Any]:  # noqa: ANN401 - as LangGraph has it
        """Run the graph as `astream` does. LangGraph refuses it, as the nodes are asynchronous, but would show the input to tracers
        first."""
        with closing(super().stream(input, without_callbacks(config), **options)) as parts:  # type: ignore[type-var]
            ended = object()
            while True:
                with untraced():
                    part = next(parts, ended)
                if part is ended:
                    return
                yield part


def emit(runtime: TaskRuntime, event: TaskEvent) -> None:
    """Record and show what happens."""
    given: TaskContext | None = runtime.context  # none where a graph runs by itself in another app
    if given is not None and given.trace is not None:
        given.trace.record_event(event)
    show(runtime, event)


def show(runtime: TaskRuntime, event: TaskEvent) -> None:
    """Pass an event on to the listener, or else to LangGraph's custom stream."""
    given: TaskContext | None = runtime.context
    listener = given.listener if given is not None else None
    is_piece = isinstance(event, AgentText)  # placeholders in it were filled in already, as in a part of the whole text
    if given is not None and given.privacy is not None and not is_piece:
        event = given.privacy.fill_event(event)
    (listener or runtime.stream_writer)(event)


def is_heard(runtime: TaskRuntime) -> bool:
    """Return whether the agents' text is shown while it streams. True if the graph runs by itself in another app, which may show it."""
    given: TaskContext | None = runtime.context
    return given is None or given.listener is not None


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
