"""The log of decisions: what was decided for each task, what came of it, and later how good that was. The router is trained on it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from ...protocols import ConfigError, Sensitivity, Side
from ...protocols.messages import Value
from ..task.conversation import last_words
from ..task.results import Result
from ..task.route_decision import RouteDecision
from ..task.task import Task
from ..util.json_lines import append_line, read_lines
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
    joules: float | None = None
    """Of this device's energy."""
    is_grounded: bool | None = None
    answer: str | None = None
    """None where the task is private, or was told anything private; here and below."""
    opinions: Mapping[str, str] = {}


class LoggedTask(Value):
    """One task that was served."""

    type: Literal["task"] = "task"
    id: str
    """Its idempotency key."""
    time: datetime
    prompt: str
    """Empty there, too: its words are not written."""
    task_class: str
    tools: tuple[str, ...]
    decision: RouteDecision
    head: Path | None = None
    """That made the predictions."""
    attempts: tuple[LoggedAttempt, ...]


class LoggedScore(Value):
    """How good the answer to a task was, as the app reported later."""

    type: Literal["score"] = "score"
    id: str
    agent: str
    task_class: str = ""
    """As the app named it with the score; empty: as it was known before."""
    score: float = Field(ge=0, le=1)


LogLine = Annotated[LoggedTask | LoggedScore, Field(discriminator="type")]
LOG_LINE: Final[TypeAdapter[LogLine]] = TypeAdapter(LogLine)


def log_task(path: Path, task: Task, result: Result, *, tools: Iterable[str], time: datetime) -> None:
    """Append what was decided and done. Raises `ConfigError` where the file cannot be written."""
    is_public = task.policy.sensitivity is Sensitivity.PUBLIC and result.label.sensitivity is Sensitivity.PUBLIC
    attempts = (
        LoggedAttempt(
            agent=attempt.agent,
            outcome=attempt.outcome,
            confidence=attempt.confidence,
            input_tokens=attempt.usage.input_tokens,
            output_tokens=attempt.usage.output_tokens,
            dollars=None if attempt.dollars is None else float(attempt.dollars),
            seconds=attempt.seconds,
            joules=attempt.energy.joules if attempt.side is Side.NEAR else None,
            is_grounded=attempt.is_grounded,
            answer=attempt.answer if is_public else None,
            opinions=attempt.opinions if is_public else {},
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
        head=task.policy.router.head,
        attempts=tuple(attempts),
    )
    _append(path, line)


def log_score(path: Path, result: Result, score: float, *, task_class: str) -> None:
    """Append how good an answer was. Raises `ConfigError` where the file cannot be written."""
    _append(path, LoggedScore(id=result.id, agent=result.agent, task_class=task_class, score=score))


@dataclass(frozen=True, slots=True)
class LoggedOutcome:
    """What is learned from a task whose answer was scored."""

    decision: RouteDecision
    agent: str
    task_class: str
    """As the app named it with the score; empty: as it was known before."""
    score: float
    head: Path | None


def logged_outcomes(path: Path) -> Iterator[LoggedOutcome]:
    """What a log tells of the agents, in the order in which it was reported; nothing where there is no file yet.

    Raises `ConfigError` that names the line which belongs to no log.
    """
    tasks: dict[str, LoggedTask] = {}
    for number, line in enumerate(_lines(path), start=1):
        try:
            entry = LOG_LINE.validate_json(line)
        except ValidationError as error:
            raise ConfigError(f"{path}, line {number} is no line of a router's log", hint="mend or delete that line") from error
        if isinstance(entry, LoggedTask):
            tasks[entry.id] = entry
        elif (task := tasks.get(entry.id)) is not None:
            yield LoggedOutcome(task.decision, entry.agent, entry.task_class, entry.score, task.head)


def trace_of(task: LoggedTask, scores: dict[tuple[str, str], float]) -> Trace | None:
    """The task as a trace; `scores` are by task and agent. None where its words were not written.

    An attempt that nobody judged has an unknown outcome, also where the evidence spoke against it: the evidence may be wrong.
    """
    if not task.prompt:
        return None
    opinions = {agent: AgentOutcome(answer=answer) for attempt in task.attempts for agent, answer in attempt.opinions.items()}
    outcomes = opinions | {
        attempt.agent: AgentOutcome(
            score=scores.get((task.id, attempt.agent)),
            answer=attempt.answer,
            is_grounded=attempt.is_grounded,
            confidence=attempt.confidence,
            input_tokens=attempt.input_tokens,
            output_tokens=attempt.output_tokens,
            dollars=attempt.dollars,
            seconds=attempt.seconds,
            joules=attempt.joules,
        )
        for attempt in task.attempts
    }
    return Trace(id=task.id, prompt=task.prompt, task_class=task.task_class, tools=task.tools, outcomes=outcomes) if outcomes else None


def _lines(path: Path) -> list[bytes]:
    try:
        return [line for line in read_lines(path) if line.strip()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="[policy.router] log names it") from error


def _append(path: Path, line: LoggedTask | LoggedScore) -> None:
    try:
        append_line(path, line.model_dump_json().encode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}", hint="[policy.router] log names it") from error
