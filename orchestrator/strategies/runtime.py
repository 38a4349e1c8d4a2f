"""The graph of a task as LangGraph runs it, and the events that its nodes tell of.

Loading LangGraph takes longer than all the rest, so that nothing above the graphs imports this module before a task is served.
"""

from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime

from ..events import AgentText, TaskEvent
from .context import TaskContext
from .state import TaskState

TaskRuntime = Runtime[TaskContext]
TaskGraphBuilder = StateGraph[TaskState, TaskContext, TaskState, TaskState]
TaskGraph = CompiledStateGraph[TaskState, TaskContext, TaskState, TaskState]


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
