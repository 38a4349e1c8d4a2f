"""Traces: tasks with the outcomes of several agents, which the router is trained, calibrated and simulated on.

They are read from files of traces, from the router's own log of decisions, or from the runs of a sweep.
"""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, ValidationError

from ...protocols import ConfigError, Sensitivity, Side, ToolSpec
from ...protocols.steps import Value
from ..task import Task, last_words
from ..task.decisions import Arbitration, ExtractedAnswer, RouteDecision, VerifiedDraft, WeighedDraft
from ..task.results import JudgedProposal, Result
from ..util.text import append_line, read_lines
from .habits import ReasonedStep, reasoned_steps
from .outcome_records import EscalatedDraft, Outcome, ReportedFault, RunRecord, ScoredDraft, escalated_drafts, outcomes_of, reported_drafts


class AgentOutcome(Value):
    """The outcome of one agent on one task."""

    score: float | None = Field(default=None, ge=0, le=1)
    """1 for a task well done, 0 for one that failed; None: unknown, and nothing is learned from it."""
    answer: str | None = None
    """Its final answer, or the JSON list of its tool calls, by which agents are said to agree; None: not recorded, or it gave none."""
    output_characters: int | None = Field(default=None, ge=0)
    """Length of all that it wrote; None: no more than the answer."""
    has_prose: bool | None = None
    """It wrote words beside its tool calls; None: unknown."""
    extracted: ExtractedAnswer | None = None
    """The part of it that was compared; None: it is looked for in the answer."""
    is_valid: bool | None = None
    """The draft kept to its schema, or its tool calls to theirs; None: there was none, or it was not checked."""
    is_grounded: bool | None = None
    """Its claims occur in a tool result or the prompt; None: not checked."""
    confidence: float | None = Field(default=None, ge=0, le=1)
    """The lowest of its steps' confidences; None where unknown."""
    verified: Mapping[str, VerifiedDraft] = {}
    """Verdicts of judges on it, by verifier."""
    input_tokens: int | None = Field(default=None, ge=0)
    output_tokens: int | None = Field(default=None, ge=0)
    dollars: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    joules: float | None = Field(default=None, ge=0, allow_inf_nan=False)


class Trace(Value):
    """One task, and what came of it."""

    id: str = ""
    prompt: str = Field(min_length=1)
    task_class: str = ""
    """From coarse to fine: `search/hops`. Empty: unknown."""
    tools: tuple[str, ...] = ()
    """Names of the tools that it could call."""
    specs: tuple[ToolSpec, ...] = ()
    """The tools as agents see them, by which answers that are tool calls are looked at; empty: not recorded."""
    outcomes: Mapping[str, AgentOutcome] = Field(min_length=1)
    """By the agent's name."""


def agents_of(traces: Sequence[Trace]) -> tuple[str, ...]:
    """Return the agents that the traces tell of, in the order in which they are first met."""
    return tuple(dict.fromkeys(agent for trace in traces for agent in trace.outcomes))


class LoggedAttempt(Value):
    """One agent's attempt at a task."""

    agent: str
    outcome: Literal["accepted", "rejected", "failed"]
    confidence: float | None
    input_tokens: int
    output_tokens: int
    dollars: float | None
    seconds: float
    joules: float | None = None
    """Energy of this device."""
    is_grounded: bool | None = None
    weighed: WeighedDraft | None = None
    arbitration: Arbitration | None = None
    verified: Mapping[str, VerifiedDraft] = {}
    answer: str | None = None
    """None where the task is private, or was told anything private; here and below."""
    opinions: Mapping[str, str] = {}
    extracted: ExtractedAnswer | None = None
    extracted_opinions: Mapping[str, ExtractedAnswer] = {}


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
    specs: tuple[ToolSpec, ...] = ()
    """Empty there, too, and where no call of a tool was looked at before it ran."""
    decision: RouteDecision
    head: Path | None = None
    """Folder of the head that made the predictions."""
    attempts: tuple[LoggedAttempt, ...]
    proposals: tuple[JudgedProposal, ...] = ()
    """Near's proposals in `speculate`, as far judged them."""
    reasoned: tuple[ReasonedStep, ...] = ()
    """How long its steps have reasoned, from which is known what is usual."""


class LoggedScore(Value):
    """How good the answer to a task was, as the app reported later."""

    type: Literal["score"] = "score"
    id: str
    agent: str
    task_class: str = ""
    """Class that the app reported with the score; empty: unchanged."""
    score: float = Field(ge=0, le=1)
    source: Literal["report", "arbitration"] = "report"
    """`arbitration`: it follows from a far agent's answer to an escalated task, and a report takes its place."""
    weight: float = Field(default=1.0, ge=0, le=1)
    """Probability that the score is right, as far as known."""
    because: str = ""
    """The reason that the app gave; empty where the task is private, or was told anything private."""


def log_task(path: Path, task: Task, result: Result, *, tools: Sequence[ToolSpec], time: datetime) -> None:
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
            weighed=attempt.weighed,
            arbitration=attempt.arbitration,
            verified={name: each.model_copy(update={"because": ""}) for name, each in attempt.verified.items()},
            answer=attempt.answer if is_public else None,
            opinions=attempt.opinions if is_public else {},
            extracted=attempt.extracted if is_public else None,
            extracted_opinions=attempt.extracted_opinions if is_public else {},
        )
        for attempt in result.attempts
        if attempt.outcome != "running"
    )
    line = LoggedTask(
        id=task.idempotency_key,
        time=time,
        prompt=last_words(task.messages) if is_public else "",
        task_class=task.task_class,
        tools=tuple(sorted(tool.name for tool in tools)),
        specs=tuple(tools) if is_public and any(attempt.acts for attempt in result.attempts) else (),
        decision=result.decision,
        head=task.policy.router.head,
        attempts=tuple(attempts),
        proposals=() if result.speculation is None else result.speculation.judged,
        reasoned=tuple(reasoned_steps(task, result.calls)),
    )
    append_outcome(path, line, setting="[policy.router] log")


def log_arbitration(path: Path, result: Result) -> None:
    """Append the labels that follow from a far agent's answer. Raises `ConfigError` where the file cannot be written."""
    for attempt in result.attempts:
        if attempt.arbitration is None:
            continue
        ruling = attempt.arbitration
        right, weight = float(ruling.confirmed), ruling.draft_weight
        labels = [(attempt.agent, right, weight), (ruling.by, right, ruling.far_weight)]
        labels += [(agent, float(agrees), weight) for agent, agrees in ruling.opinions.items() if agent != attempt.agent]
        for agent, score, sure in labels:
            line = LoggedScore(id=result.id, agent=agent, score=score, source="arbitration", weight=sure)
            append_outcome(path, line, setting="[policy.router] log")


def log_score(path: Path, result: Result, score: float, *, task_class: str, because: str = "") -> None:
    """Append how good an answer was, and the reason for it, if it may be written. Raises `ConfigError` where the file cannot be written."""
    line = LoggedScore(id=result.id, agent=result.agent, task_class=task_class, score=score, because=because)
    append_outcome(path, line, setting="[policy.router] log")


@dataclass(frozen=True, slots=True)
class ScoredAnswer:
    """An agent's answer with its score."""

    decision: RouteDecision
    """By which the task was served, with what was predicted."""
    agent: str
    score: float
    head: Path | None = None
    """Folder of the policy's head."""
    task_class: str = ""
    """The class as it is known by now; empty: as it was known when the task was served."""


def trace_of(task: LoggedTask, scores: dict[tuple[str, str], float]) -> Trace | None:
    """Convert a logged task to a trace; `scores` are keyed by task and agent. None if the words of the task were not logged.

    An attempt without a score has an unknown outcome, even if the evidence rejected it: the evidence may be wrong.
    """
    if not task.prompt:
        return None
    opinions = {
        agent: AgentOutcome(answer=answer, extracted=attempt.extracted_opinions.get(agent))
        for attempt in task.attempts
        for agent, answer in attempt.opinions.items()
    }
    outcomes = opinions | {
        attempt.agent: AgentOutcome(
            score=scores.get((task.id, attempt.agent)),
            **attempt.model_dump(exclude={"agent", "outcome", "opinions", "extracted_opinions", "weighed", "arbitration"}),
        )
        for attempt in task.attempts
    }
    if not outcomes:
        return None
    return Trace(id=task.id, prompt=task.prompt, task_class=task.task_class, tools=task.tools, specs=task.specs, outcomes=outcomes)


Known = Outcome | ScoredAnswer | ScoredDraft | EscalatedDraft | JudgedProposal | ReasonedStep | ReportedFault
"""One thing that is learned of a task."""


def read_outcomes(path: Path) -> list[Known]:
    """Return what a file tells of how well tasks went, in the order in which it was written. A last line that was cut off is left out.

    Lines may be runs of a sweep, reports on `auto`, and a router's log. Raises `ConfigError` that names the line which is none of them.
    """
    try:
        lines = read_lines(path)
    except OSError as error:
        hint = "`nearfar sweep` writes runs.jsonl; [policy.auto] and [policy.router] name such files"
        raise ConfigError(f"the outcomes in {path} cannot be read: {error.strerror}", hint=hint) from error
    found: list[Known] = []
    tasks: dict[str, LoggedTask] = {}
    for number, line in enumerate(lines, start=1):
        try:
            known = _parsed(line, otherwise=RunRecord) if line.strip() else None
            found += outcomes_of([known]) if isinstance(known, RunRecord) else [known] if isinstance(known, Outcome) else []
        except (ValueError, RecursionError, ConfigError) as error:
            raise ConfigError(f"{path}, line {number} is no outcome: {_problem(error)}", hint="mend or delete that line") from error
        if isinstance(known, LoggedTask):
            tasks[known.id] = known
            found += (*escalated_drafts(known.attempts), *known.proposals, *known.reasoned)
        elif isinstance(known, LoggedScore) and known.source == "report" and (task := tasks.get(known.id)) is not None:
            found += reported_drafts(task.attempts, known.agent, known.score, known.task_class or task.task_class)
            found.append(ScoredAnswer(task.decision, known.agent, known.score, task.head, known.task_class))
            if known.because:
                found.append(ReportedFault(known.task_class or task.task_class, known.because))
    return found


def append_outcome(path: Path, line: LoggedTask | LoggedScore | Outcome, *, setting: str) -> None:
    """Append a line at once and under a lock, so that several processes can share a file.

    Raises `ConfigError` where the file cannot be written. `setting` names it.
    """
    try:
        append_line(path, line.model_dump_json().encode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}", hint=f"{setting} names it") from error


Line = Trace | LoggedTask | LoggedScore | Outcome | RunRecord
_KINDS: Final[Mapping[object, type[Line]]] = {"task": LoggedTask, "score": LoggedScore, "outcome": Outcome}


def _parsed(line: bytes | str, *, otherwise: type[Trace | RunRecord]) -> Line:
    """Parse a line by its type. Raises `ValueError` for a line that is none of these, `RecursionError` for one that is nested too deeply.

    `otherwise`: what a line without a type should be; the runs of a sweep have a configuration.
    """
    fields = json.loads(line)
    if not isinstance(fields, dict):
        return otherwise.model_validate_json(line)
    kind = _KINDS.get(fields.get("type")) or (RunRecord if "configuration" in fields else otherwise)
    decision = fields.get("decision")
    if kind is LoggedTask and isinstance(decision, dict) and "impression" in decision:
        _restore_earlier(decision)
        line = json.dumps(fields)
    return kind.model_validate_json(line)


def _restore_earlier(decision: dict[str, Any]) -> None:
    """Bring the decision of an earlier version into today's form.

    Predictions that it had adapted to outcomes are replaced by those of its prior, as the outcomes are learned from again. Raises
    `ValueError` where that cannot be done.
    """
    try:
        impression = decision.pop("impression")
        decision["predictor"] = {"prior": "length", "nobody": "none"}.get(decision["predictor"], "head")
        for each in decision["considered"] if impression is not None else ():
            if each["estimate"] is not None:
                gain = impression["gain"] if each["side"] == Side.FAR else -impression["gain"]
                each["estimate"]["predicted"] = (1 + gain) / 2
    except (KeyError, TypeError) as error:
        raise ValueError("its decision is damaged") from error


_MOST_PROBLEMS: Final = 5
_HINT: Final = "docs/routing.md shows what a trace is"
_AGENT_OF_RUN: Final = {"device": "near", "cloud": "far"}
"""Configurations of a sweep in which one agent works alone."""


def read_traces(path: Path) -> list[Trace]:
    """Read traces from a JSON Lines file, gzipped or not: traces as such, a router's log, or the runs of a sweep.

    In a log, tasks whose words were not written are left out; of a sweep, the runs of the two sides alone count.
    Raises `ConfigError` that names the lines which are none of these, and for a file without any trace.
    """
    reading = _Reading()
    problems = []
    for number, line in enumerate(_text_lines(path), start=1):
        try:
            reading.take(line)
        except (ValueError, RecursionError) as error:
            problems.append(f"{path}, line {number}: {_problem(error)}")
    if problems:
        more = f"\nand {len(problems) - _MOST_PROBLEMS} more lines" if len(problems) > _MOST_PROBLEMS else ""
        raise ConfigError("\n".join(problems[:_MOST_PROBLEMS]) + more, hint=_HINT)
    traces = reading.traces
    if not traces:
        raise ConfigError(f"{path} holds no traces", hint=_HINT)
    return traces


class _Reading:
    """The lines of a file so far. What came of a task may stand on several of them."""

    def __init__(self) -> None:
        self._traces: list[Trace] = []
        self._tasks: list[LoggedTask] = []
        self._scores: dict[tuple[str, str], float] = {}
        self._runs: dict[tuple[str, str, int], Trace] = {}

    def take(self, line: str) -> None:
        """Raises `ValueError` for a line that is nothing of all this."""
        match _parsed(line, otherwise=Trace):
            case LoggedTask() as task:
                self._tasks.append(task)
            case LoggedScore() as scored:
                if scored.source == "report":
                    self._scores[scored.id, scored.agent] = scored.score
                else:
                    self._scores.setdefault((scored.id, scored.agent), scored.weight * scored.score + (1 - scored.weight) / 2)
            case RunRecord() as run:
                self._take_run(run)
            case Trace() as trace:
                self._traces.append(trace)
            case Outcome():
                raise ValueError("a report on `auto` is no trace")

    @property
    def traces(self) -> list[Trace]:
        logged = (trace_of(task, self._scores) for task in self._tasks)
        return [*self._traces, *(trace for trace in logged if trace is not None), *self._runs.values()]

    def _take_run(self, run: RunRecord) -> None:
        agent = _AGENT_OF_RUN.get(run.configuration)
        if agent is None or run.near_calls + run.far_calls == 0:
            return
        outcome = AgentOutcome(score=run.score, dollars=run.dollars, seconds=run.seconds, joules=run.joules)
        key = (run.world, run.task, run.seed)
        known = self._runs.get(key)
        outcomes = {**(known.outcomes if known is not None else {}), agent: outcome}
        task_class = f"{run.world}/{run.kind}"
        self._runs[key] = Trace(id="/".join(map(str, key)), prompt=run.prompt, task_class=task_class, tools=run.tools, outcomes=outcomes)


def _problem(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'the line'}: {first['msg']}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return f"it is no JSON: {error}" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else str(error)


def _text_lines(path: Path) -> Iterator[str]:
    """Yield the lines that are not empty."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig") as file:  # editors on Windows mark the beginning
            yield from (line for line in file if line.strip())
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"the traces in {path} cannot be read: {error}", hint="--traces names a file of JSON lines") from error
