"""Non-JSON values that a run of a task's graph is given in addition to its state."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from ...protocols import ToolSpec
from ..budgets.account import Account
from ..cache.plans import PlanCache
from ..memory.provenance import Recollection
from ..safety.privacy.run_privacy import RunPrivacy
from ..task.events import TaskEvent
from ..task.results import ToolOutcome
from ..task.tools import Tool
from ..tracing.recorder import RunTrace
from .tool_calls import ToolChecks

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver


class Keeping(Protocol):
    """Keeps the steps of a run's parts, each of which is a graph by itself, such that another process can go on with them."""

    @property
    def checkpointer(self) -> "BaseCheckpointSaver[Any]":
        """The checkpointer of the parts' graphs."""
        ...

    def thread(self, part: str) -> dict[str, object]:
        """Return the graph configuration that names the thread in which a part's steps are kept."""
        ...


@dataclass(frozen=True)
class TaskContext:
    """Non-JSON values that a run of a graph is given in addition to its state."""

    tools: Mapping[str, Tool]
    """Tools that the agents may call, by name."""
    turn_taking: anyio.Lock | None = None
    """Held while the tools of one message run, where several runs side by side must not race in one world."""
    account: Account | None = None
    """The task's budget account; None if the graph runs by itself in another app."""
    plans: PlanCache | None = None
    """Plans of earlier tasks; None: every plan is made from scratch."""
    recollection: Recollection | None = None
    """The memory items recalled for the task; None if the graph runs by itself in another app."""
    tool_checks: ToolChecks = ToolChecks()
    """The checks applied to tool calls."""
    privacy: RunPrivacy | None = None
    """The privacy rules applied to texts for far agents; None if the graph runs by itself in another app."""
    outcomes: list[ToolOutcome] | None = None
    """Collects the outcome of each tool call, also if the graph fails later; None: outcomes are not collected."""
    keeping: Keeping | None = None
    """Keeps the steps of parallel parts; None: they are not kept."""
    trace: RunTrace | None = None
    """Records what happens in the run; None: nothing is recorded."""
    listener: Callable[[TaskEvent], None] | None = None
    """Takes the events as they happen, those of a run being cancelled too; without one they go to LangGraph's custom stream."""

    @classmethod
    def of(cls, tools: Sequence[Tool]) -> "TaskContext":
        return cls({tool.spec.name: tool for tool in tools})

    @cached_property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as models see them."""
        return tuple(tool.spec for tool in self.tools.values())
