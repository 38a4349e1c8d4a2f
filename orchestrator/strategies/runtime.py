"""The graph of a task as LangGraph runs it, and the events that its nodes tell of.

Loading LangGraph takes longer than all the rest, so that nothing above the graphs imports this module before a task is served.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, closing
from typing import Any, Self

from langchain_core.runnables import RunnableConfig
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime

from ..task.events import AgentText, TaskEvent
from ..util.untraced import is_untraced, untraced, without_callbacks
from .context import TaskContext
from .state import TaskState

TaskRuntime = Runtime[TaskContext]
TaskGraphBuilder = StateGraph[TaskState, TaskContext, TaskState, TaskState]


class TaskGraph(CompiledStateGraph[TaskState, TaskContext, TaskState, TaskState]):
    """The compiled graph of a task. Nobody traces it, whoever invokes it, and in whatever graph it is a node."""

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
        """As `astream`; LangGraph refuses it, since the nodes are asynchronous, but would have shown the input to tracers before."""
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
        given.trace.hear(event)
    show(runtime, event)


def show(runtime: TaskRuntime, event: TaskEvent) -> None:
    """Let whoever listens see an event."""
    given: TaskContext | None = runtime.context
    listener = given.listener if given is not None else None
    is_piece = isinstance(event, AgentText)  # placeholders in it were filled in already, as in a part of the whole text
    if given is not None and given.privacy is not None and not is_piece:
        event = given.privacy.filled_event(event)
    (listener or runtime.stream_writer)(event)


def is_heard(runtime: TaskRuntime) -> bool:
    """Whether what agents say is shown as they say it; nobody knows what becomes of it where a graph runs by itself in another app."""
    given: TaskContext | None = runtime.context
    return given is None or given.listener is not None
