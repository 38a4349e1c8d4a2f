"""Events that a running task streams, and the subtasks that they tell of."""

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field, FiniteFloat, field_validator

from ...protocols import ApprovalRequest, Side, ToolCall, ToolResult
from ...protocols.steps import Value
from .decisions import RouteDecision
from .policy import Cause, Verdict
from .results import Attempt, Call, Result


class Subtask(Value):
    """A part of a task that is worked on by itself."""

    id: str = Field(min_length=1, max_length=100)
    """Its name, by which other subtasks need it."""
    task: str = Field(min_length=1)
    """The request of the subtask."""
    needs: tuple[str, ...] = ()
    """Ids of the subtasks whose results it is shown; it starts when they are done."""

    @field_validator("needs")
    @classmethod
    def _each_once(cls, needs: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(needs))


class SubtaskOutcome(StrEnum):
    """Outcome of a subtask."""

    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    """A subtask that it needs failed or was skipped, so it never ran."""


class RoleStarted(Value):
    """A role begins to work on the task: the first one, or one that the role before it has handed the task to."""

    type: Literal["role_started"] = "role_started"
    role: str
    """Name of the role."""
    by: str = ""
    """The role that handed the task over; empty: the task began with this role."""
    task: str = ""
    """The work that it was asked to do; empty for the first role, whose work is the task itself."""


class Routed(Value):
    """The router has decided who tries first."""

    type: Literal["routed"] = "routed"
    decision: RouteDecision
    """The agents in order, and the reasons."""


class AttemptStarted(Value):
    """An agent begins without any earlier text: text streamed before belongs to an attempt that was given up."""

    type: Literal["attempt_started"] = "attempt_started"
    agent: str
    """Name of the agent."""
    side: Side
    """Its side."""
    model: str
    """Name of its model."""


class AgentText(Value):
    """A further piece of the current agent's text."""

    type: Literal["text"] = "text"
    text: str
    """A piece of the agent's text."""


class ApprovalAsked(Value):
    """Tool calls need approval, and none of them has run. In a durable run without an approver, the task ends here for now."""

    type: Literal["approval_asked"] = "approval_asked"
    requests: tuple[ApprovalRequest, ...]
    """The calls that wait for a decision."""


class ToolStarted(Value):
    """The current agent called a tool."""

    type: Literal["tool_started"] = "tool_started"
    call: ToolCall
    """The call."""


class ToolFinished(Value):
    """A tool returned."""

    type: Literal["tool_finished"] = "tool_finished"
    result: ToolResult
    """The result."""


class AttemptEnded(Value):
    """An attempt was accepted, rejected by the evidence, or failed."""

    type: Literal["attempt_ended"] = "attempt_ended"
    attempt: Attempt
    """The attempt, with its outcome and cost."""


class CallEnded(Value):
    """An agent's step has ended, well or not: what it cost is known even where the task fails in the end."""

    type: Literal["call_ended"] = "call_ended"
    call: Call
    """The step and its cost."""


class SupervisorSpoke(Value):
    """The supervisor gave a plan or a verdict. If it intervened, the executor starts over from this text."""

    type: Literal["supervisor"] = "supervisor"
    agent: str
    """Name of the supervising agent."""
    text: str
    """Its plan, or what it says about the draft."""
    verdict: Verdict | None = None
    """None: the text is a plan."""
    trigger: Cause | None = None
    """The cause of the verdict."""
    shadow: bool = False
    """The verdict changes nothing."""


class Move(StrEnum):
    """How a supervised task goes on after a step of its executor."""

    STEP = "step"
    """The step is carried out; an answer ends the task."""
    PLAN = "plan"
    """The step is dropped, and the executor starts over from a plan of the supervisor."""
    CHECK = "check"
    """The step is carried out, and the supervisor checks the work."""


EVIDENCE: Final = (
    "lowest confidence",
    "last confidence",
    "share of the prompt that is covered",
    "words of the prompt that are not",
    "grounded share of the step",
    "share of the turns",
    "turns",
    "repeated calls",
    "tool errors",
    "has a plan",
    "plan progress",
    "far calls",
    "answers",
    "may change something",
    "has changed something",
    "words of the prompt",
)
"""Figures that are known after each step, without a further call."""


class Navigated(Value):
    """A navigator, or chance, has chosen how to go on after a step of the executor."""

    type: Literal["navigated"] = "navigated"
    seen: tuple[FiniteFloat, ...] = Field(min_length=len(EVIDENCE), max_length=len(EVIDENCE))
    """The evidence, in the order of `EVIDENCE`."""
    move: Move
    """How it goes on."""
    probability: Annotated[float, Field(gt=0, le=1)]
    """Probability that it was chosen; 1 where nothing was left to chance."""


class SubtasksPlanned(Value):
    """The task was cut into subtasks."""

    type: Literal["subtasks_planned"] = "subtasks_planned"
    subtasks: tuple[Subtask, ...]
    """The subtasks."""


class SubtaskEnded(Value):
    """A subtask was answered, failed, or was skipped because one that it needs failed."""

    type: Literal["subtask_ended"] = "subtask_ended"
    id: str
    """Name of the subtask."""
    outcome: SubtaskOutcome
    """How it ended."""
    answer: str
    """Its answer, or why there is none."""


class TaskFinished(Value):
    """The last event of a task that did not fail."""

    type: Literal["task_finished"] = "task_finished"
    result: Result
    """The outcome, as `run` returns it."""


TaskEvent = Annotated[
    RoleStarted
    | Routed
    | AttemptStarted
    | AgentText
    | ApprovalAsked
    | ToolStarted
    | ToolFinished
    | CallEnded
    | SupervisorSpoke
    | Navigated
    | SubtasksPlanned
    | SubtaskEnded
    | AttemptEnded
    | TaskFinished,
    Field(discriminator="type"),
]
