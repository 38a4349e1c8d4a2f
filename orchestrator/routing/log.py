"""The log of decisions: what was decided for each task, what came of it, and later how good that was. The router is trained on it."""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ...protocols import ConfigError, Sensitivity
from ...protocols.messages import Value
from ..json_lines import append_line
from ..results import Result
from ..selection.profile import last_words
from ..task import Task
from .decision import RouteDecision
from .traces import AgentOutcome, Trace


class LoggedAttempt(Value):
    """What one agent's try at a task came to."""

    agent: str
    outcome: Literal["accepted", "rejected", "failed"]
    confidence: float | None
    input_tokens: int
    output_tokens: int
    dollars: float | None
    seconds: float


class LoggedTask(Value):
    """One task that was served."""

    type: Literal["task"] = "task"
    id: str
    """Its idempotency key."""
    time: datetime
    prompt: str
    """Empty where the task is private: its words are not written."""
    task_class: str
    tools: tuple[str, ...]
    decision: RouteDecision
    attempts: tuple[LoggedAttempt, ...]


class LoggedScore(Value):
    """How good the answer to a task was, as the app reported later."""

    type: Literal["score"] = "score"
    id: str
    agent: str
    score: float = Field(ge=0, le=1)


LogLine = Annotated[LoggedTask | LoggedScore, Field(discriminator="type")]


def log_task(path: Path, task: Task, result: Result, *, tools: Iterable[str], time: datetime) -> None:
    """Append what was decided and done. Raises `ConfigError` where the file cannot be written."""
    is_public = task.policy.sensitivity is Sensitivity.PUBLIC
    attempts = (
        LoggedAttempt(
            agent=attempt.agent,
            outcome=attempt.outcome,
            confidence=attempt.confidence,
            input_tokens=attempt.usage.input_tokens,
            output_tokens=attempt.usage.output_tokens,
            dollars=None if attempt.dollars is None else float(attempt.dollars),
            seconds=attempt.seconds,
        )
        for attempt in result.attempts
        if attempt.outcome != "running"
    )
    line = LoggedTask(
        id=task.idempotency_key,
        time=time,
        prompt=last_words(task.messages) if is_public else "",
        task_class=task.task_class,
        tools=tuple(sorted(tools)),
        decision=result.decision,
        attempts=tuple(attempts),
    )
    _append(path, line)


def log_score(path: Path, result: Result, score: float) -> None:
    """Append how good an answer was. Raises `ConfigError` where the file cannot be written."""
    _append(path, LoggedScore(id=result.id, agent=result.agent, score=score))


def trace_of(task: LoggedTask, scores: dict[tuple[str, str], float]) -> Trace | None:
    """The task as a trace; `scores` are by task and agent. None where its words were not written.

    An attempt that nobody judged has an unknown outcome, also where the evidence spoke against it: the evidence may be wrong.
    """
    if not task.prompt:
        return None
    outcomes = {
        attempt.agent: AgentOutcome(
            score=scores.get((task.id, attempt.agent)),
            confidence=attempt.confidence,
            input_tokens=attempt.input_tokens,
            output_tokens=attempt.output_tokens,
            dollars=attempt.dollars,
            seconds=attempt.seconds,
        )
        for attempt in task.attempts
    }
    return Trace(id=task.id, prompt=task.prompt, task_class=task.task_class, tools=task.tools, outcomes=outcomes) if outcomes else None


def _append(path: Path, line: LoggedTask | LoggedScore) -> None:
    try:
        append_line(path, line.model_dump_json().encode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}", hint="[policy.router] log names it") from error
