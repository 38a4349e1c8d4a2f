"""Traces: tasks with what several agents came to on them, which the router is trained, calibrated and simulated on."""

from collections.abc import Mapping, Sequence

from pydantic import Field

from ...protocols.messages import Value


class AgentOutcome(Value):
    """The outcome of one agent on one task."""

    score: float | None = Field(default=None, ge=0, le=1)
    """1 for a task well done, 0 for one that failed; None: unknown, and nothing is learned from it."""
    answer: str | None = None
    """Its final answer, by which agents are said to agree; None: not recorded, or it gave none."""
    is_valid: bool | None = None
    """The draft kept to its schema, or its tool calls to theirs; None: there was none, or it was not checked."""
    is_grounded: bool | None = None
    """Its claims occur in a tool result or the prompt; None: not checked."""
    confidence: float | None = Field(default=None, ge=0, le=1)
    """The lowest of its steps' confidences; None where unknown."""
    input_tokens: int | None = Field(default=None, ge=0)
    output_tokens: int | None = Field(default=None, ge=0)
    dollars: float | None = Field(default=None, ge=0)
    seconds: float | None = Field(default=None, ge=0)
    joules: float | None = Field(default=None, ge=0)


class Trace(Value):
    """One task, and what came of it."""

    id: str = ""
    prompt: str = Field(min_length=1)
    task_class: str = ""
    """From coarse to fine: `search/hops`. Empty: unknown."""
    tools: tuple[str, ...] = ()
    """Names of the tools that it could call."""
    outcomes: Mapping[str, AgentOutcome] = Field(min_length=1)
    """By the agent's name."""


def agents_of(traces: Sequence[Trace]) -> tuple[str, ...]:
    """Return the agents that the traces tell of, in the order in which they are first met."""
    return tuple(dict.fromkeys(agent for trace in traces for agent in trace.outcomes))
