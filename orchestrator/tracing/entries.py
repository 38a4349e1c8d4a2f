"""Entries of a trace. Their order is the order in which they were recorded, not that of a clock."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from ...protocols import Message, Sensitivity, Side, ToolCall, ToolResult, ToolSpec
from ...protocols.messages import Value
from ..task.events import ApprovalAsked, AttemptEnded, AttemptStarted, Routed, SubtaskEnded, SubtasksPlanned, SupervisorSpoke
from ..task.labels import Label, RecalledItem
from ..task.results import Call, SideUsage
from ..task.task import Task
from ..task.tools import Effect, ToolDeclaration


class Entry(Value):
    """Fields of every entry."""

    at: float
    """Seconds since this process began to work on the run; for showing durations, not for ordering."""
    scope: str = ""
    """The part of the run that it belongs to, such as `subtask 2`; empty: the whole."""


class TracedTool(Value):
    """A tool that the agents could call."""

    spec: ToolSpec
    declared: ToolDeclaration


class RunBegan(Entry):
    """A process began to work on the run, or resumed it."""

    type: Literal["began"] = "began"
    clock: float
    """Seconds since 1970 by this device's clock."""
    task: Task
    tools: tuple[TracedTool, ...]
    agents: Mapping[str, Side]
    """Agents that the task could be given to."""
    recalled: tuple[RecalledItem, ...] = ()
    """Items of the memory that it quotes, by which an erasure finds the trace."""


class AgentStepped(Entry):
    """An agent was asked once, and replied or failed."""

    type: Literal["step"] = "step"
    call: Call
    kept: int
    """Number of leading messages of the request that equal those of the agent's last request in this role."""
    messages: tuple[Message, ...]
    """The further messages of the request."""
    reply: Message
    """The reply, as far as it was received."""
    label: Label
    """Label of the request's content."""
    sensitivity: Sensitivity
    """Sensitivity of the request itself: a part of a long context is for near agents alone, whatever its label."""
    reserved_tokens: int | None = None
    """Tokens reserved in the budget before the step; None: no budget was kept."""
    reserved_dollars: float | None = None
    """US dollars reserved; None: no budget was kept, or the price is unknown."""


class ToolRan(Entry):
    """A tool was called. Its effect is recorded, and no replay calls it again."""

    type: Literal["tool"] = "tool"
    call: ToolCall
    result: ToolResult
    seconds: float
    label: Label
    """Label of the result."""
    effect: Effect


class Labelled(Entry):
    """The run's label has become more private, or less trusted."""

    type: Literal["label"] = "label"
    label: Label


class Happened(Entry):
    """A decision, or the outcome of an attempt or a part."""

    type: Literal["event"] = "event"
    event: Annotated[
        Routed | AttemptStarted | AttemptEnded | SupervisorSpoke | SubtasksPlanned | SubtaskEnded | ApprovalAsked,
        Field(discriminator="type"),
    ]


class RunEnded(Entry):
    """The process stopped working on the run."""

    type: Literal["ended"] = "ended"
    outcome: Literal["done", "failed", "waiting", "stopped"]
    """`waiting` for approval; `stopped`: cancelled, or out of time."""
    text: str = ""
    """The answer, or why there is none."""
    error: str | None = None
    """Name of the error's class."""
    agent: str | None = None
    """The agent that gave the answer."""
    side: Side | None = None
    reasons: tuple[str, ...] = ()
    recalled: tuple[RecalledItem, ...] = ()
    """Items of the memory that it was told, including those that its tools looked up."""
    near: SideUsage = SideUsage()
    far: SideUsage = SideUsage()
    label: Label = Label()

    @property
    def dollars(self) -> Decimal | None:
        """Return the US dollars of both sides; None if a price is unknown."""
        return None if self.near.dollars is None or self.far.dollars is None else self.near.dollars + self.far.dollars


class EntriesLost(Entry):
    """A number of entries could not be stored."""

    type: Literal["lost"] = "lost"
    count: int


AnyEntry = Annotated[
    RunBegan | AgentStepped | ToolRan | Labelled | Happened | RunEnded | EntriesLost,
    Field(discriminator="type"),
]
ENTRY: TypeAdapter[AnyEntry] = TypeAdapter(AnyEntry)
