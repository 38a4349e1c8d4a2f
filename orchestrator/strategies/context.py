"""What a run of a task's graph is given beside its state: things that are no JSON."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from ...protocols import ToolSpec
from ..budgets.account import Account
from ..cache.plans import PlanCache
from ..memory.recollection import Recollection
from ..safety.privacy.run_privacy import RunPrivacy
from ..task.events import TaskEvent
from ..task.results import ToolOutcome
from ..task.tools import Tool
from ..tracing.recorder import RunTrace
from .tool_calls import Boundary

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver


class Keeping(Protocol):
    """Keeps the steps of a run's parts, each of which is a graph by itself, such that another process can go on with them."""

    @property
    def checkpointer(self) -> "BaseCheckpointSaver[Any]":
        """Of their graphs."""
        ...

    def thread(self, part: str) -> dict[str, object]:
        """Where the part's steps are kept, as the graph's configuration says it."""
        ...


@dataclass(frozen=True)
class TaskContext:
    """What a run of a graph is given beside its state: things that are no JSON."""

    tools: Mapping[str, Tool]
    """What the agents may call, by name."""
    turn_taking: anyio.Lock | None = None
    """Held while the tools of one message run, where several runs side by side must not race in one world."""
    account: Account | None = None
    """What the task may spend; None where a graph runs by itself in another app."""
    plans: PlanCache | None = None
    """Plans of earlier tasks; None: every plan is made anew."""
    recollection: Recollection | None = None
    """What was recalled for the task; None where a graph runs by itself in another app."""
    boundary: Boundary = Boundary()
    """What stands between the agents and their tools."""
    privacy: RunPrivacy | None = None
    """What stands between the run and agents far away; None where a graph runs by itself in another app."""
    outcomes: list[ToolOutcome] | None = None
    """Takes what came of each tool call, also where the graph then fails; None: nobody asks."""
    keeping: Keeping | None = None
    """Keeps the steps of parts that run beside others; None: nobody does."""
    trace: RunTrace | None = None
    """Takes note of what happens; None: nobody does."""
    listener: Callable[[TaskEvent], None] | None = None
    """Takes the events as they happen, those of a run being cancelled too; without one they go to LangGraph's custom stream."""

    @classmethod
    def of(cls, tools: Sequence[Tool]) -> "TaskContext":
        return cls({tool.spec.name: tool for tool in tools})

    @cached_property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as models see them."""
        return tuple(tool.spec for tool in self.tools.values())
