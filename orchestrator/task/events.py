"""Events that a running task streams, and turns: single answers of a routed model whose tools the caller runs, with their events."""

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, FiniteFloat, field_validator, model_validator

from ...protocols import ApprovalRequest, FinishReason, Message, Side, TokenLogprob, ToolCall, ToolChoice, ToolResult, ToolSpec, Usage
from ...protocols.items import Source
from ...protocols.steps import Value
from .decisions import RouteDecision
from .modes import Strategy
from .policy import Cause, Verdict
from .results import Attempt, Call, Dollars, Result
from .tools import Tool, ToolDeclaration


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


class CallerTools(Value):
    """The tools that the caller of a turn runs itself, and how they may be called."""

    specs: tuple[ToolSpec, ...] = ()
    """The tools; none: the turn can only be answered in text."""
    choice: ToolChoice = ToolChoice.AUTO
    """Leave calls to the model, forbid them, or demand one: those of the `Hybrid`'s own tools, too."""
    only: str = ""
    """Name of the tool that has to be called; empty: any."""
    parallel: bool = True
    """A turn may end with several calls; False: with one at most."""

    @model_validator(mode="after")
    def _can_be_kept(self) -> Self:
        names = [spec.name for spec in self.specs]
        if twice := sorted(name for name, times in Counter(names).items() if times > 1):
            raise ValueError(f"two tools are called {twice[0]!r}")
        if self.only and self.only not in names:
            raise ValueError(f"tool_choice names {self.only!r}, which is none of the tools")
        if self.choice is ToolChoice.REQUIRED and not names:
            raise ValueError("tool_choice demands a call, and no tools are given")
        return self

    @property
    def tools(self) -> dict[str, Tool]:
        """Return the tools by name, as a task's own tools are kept."""
        return {spec.name: CallerTool(spec) for spec in self.specs}

    def has(self, name: str) -> bool:
        """Return whether the caller runs the tool called `name`."""
        return name in self._names

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(spec.name for spec in self.specs)

    def offered(self, tools: Sequence[ToolSpec], *, has_acted: bool) -> tuple[tuple[ToolSpec, ...], ToolChoice]:
        """Return those of all `tools` that a step is shown, and its choice. `has_acted`: a tool was called as demanded."""
        if self.choice is not ToolChoice.REQUIRED or has_acted:
            return tuple(tools), ToolChoice.AUTO if has_acted and self.choice is ToolChoice.REQUIRED else self.choice
        return tuple(tool for tool in tools if self.only in ("", tool.name)), self.choice

    def returned(self, said: Message) -> Message:
        """Return the message `said` with the caller's calls alone, if it makes any of them: these end the turn, and nothing else runs."""
        mine = [call for call in said.tool_calls if self.has(call.name)]
        kept = tuple(mine if self.parallel else mine[:1])
        return said if not kept or kept == said.tool_calls else Message.assistant(said.text, kept)


class CallerTool(Tool):
    """A tool that the caller of a turn runs: a schema without a function. Its results count as untrusted content."""

    def __init__(self, spec: ToolSpec) -> None:
        """Make the tool that `spec` describes."""
        self.name, self.spec = spec.name, spec
        self.declared = ToolDeclaration(source=Source.EXTERNAL_TOOL)
        self._context = None

    @property
    def settles(self) -> frozenset[str]:
        """Return the arguments that decide what is done: nothing is declared of them, so it may be any."""
        return frozenset(self.spec.parameters["properties"])

    def arguments(self, call: ToolCall) -> dict[str, object]:
        """Return the arguments of a `call` as the model wrote them."""
        return dict(call.arguments)


class Speaker(Value):
    """The agent whose attempt stands."""

    agent: str
    """Its name."""
    side: Side
    """Its side."""
    model: str
    """Name of its model."""
    strategy: Strategy
    """The strategy that chose it."""


class Turn(Value):
    """One routed turn of a model whose tools the caller runs: an answer, or calls of the caller's tools."""

    id: str
    """The run's id, which is the task's idempotency key."""
    text: str
    """The words of the model; empty where it only calls. Several steps, between which the `Hybrid`'s own tools ran, are joined by empty
    lines."""
    calls: tuple[ToolCall, ...] = ()
    """Calls of the caller's tools, whose results belong into the next turn's prompt; none: the turn is an answer."""
    finish_reason: FinishReason
    """Why the model stopped."""
    stop: str | None = None
    """The stop sequence that ended the text; None: none did, or the agent does not tell."""
    output: Any = None
    """The answer of a turn with `output`, as in `Result.output`; None where it ends with calls."""
    agent: str
    """Name of the agent whose attempt stands."""
    side: Side
    """Its side."""
    model: str
    """The model that really answered."""
    usage: Usage
    """Tokens of the answer as the caller would replay it: the last step of the attempt that stands."""
    confidence: float | None
    """Confidence of the attempt, 0 to 1; None: the model states none."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Tokens of the last step's text with their log-probabilities, if the sampling set `top_logprobs`."""
    dollars: Dollars
    """US dollars of all attempts together; None: a price is unknown."""
    saved: Decimal | None
    """Estimate of the US dollars that the far agent alone would have taken more; None: unknown. Below 0, it would have been cheaper."""
    result: Result
    """All that is known of the turn: attempts, calls, decisions, reasons, label."""

    @property
    def speaker(self) -> Speaker:
        """Return the agent that answered."""
        return Speaker(agent=self.agent, side=self.side, model=self.model, strategy=self.result.decision.strategy)

    @property
    def message(self) -> Message:
        """Return the assistant's message for the prompt of the next turn: text, calls, and the provider's state."""
        last = self.result.messages[-1] if self.result.messages else Message.assistant(self.text, self.calls)
        return last if (last.text, last.tool_calls) == (self.text, self.calls) else Message.assistant(self.text, self.calls)


class TurnText(Value):
    """A piece of the text of an attempt that stands: nothing of a draft that another agent may replace."""

    type: Literal["text"] = "text"
    text: str
    """The piece."""
    by: Speaker
    """The agent that says it: the same for all pieces of a turn."""


class TurnCall(Value):
    """A call of one of the caller's tools, complete."""

    type: Literal["call"] = "call"
    call: ToolCall
    """The call."""


class TurnFinished(Value):
    """The last event of a turn that did not fail."""

    type: Literal["turn_finished"] = "turn_finished"
    turn: Turn
    """The turn, as `Hybrid.turn` returns it."""


TurnEvent = Annotated[TurnText | TurnCall | TurnFinished, Field(discriminator="type")]
