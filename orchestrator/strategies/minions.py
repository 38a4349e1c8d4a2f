"""MinionS (arXiv 2502.15964): a long context stays on this device. The far side, which never sees it, writes jobs; the near side does each
of them on every chunk; what it found goes to the far side, which answers or writes the jobs of another round.

The paper's far model writes Python that makes the jobs. Here it writes them as JSON, and this module applies them to the chunks, so that
nothing that a model wrote is executed.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel, ConfigDict, TypeAdapter

from ...protocols import (
    Agent,
    BudgetExceeded,
    InvalidOutput,
    InvalidRequest,
    JsonSchema,
    Message,
    NearfarError,
    Sensitivity,
    Side,
    StepRequest,
)
from ...protocols.steps import Value
from ..agents import AgentHandle
from ..task import Task, read_output, task_text
from ..task.events import AgentText, AttemptEnded, AttemptStarted
from ..task.policy import MinionsConfig
from ..task.results import Attempt, Call
from .attempts import Answered, Panel, Question, attempt_with
from .calls import CallLog, TaskGraphBuilder, TaskRuntime, add_node, emit
from .prompts import (
    ASSESSMENT_SCHEMA,
    FINDING_SCHEMA,
    JOBS_SCHEMA,
    Extent,
    Job,
    answer_form,
    findings_request,
    jobs_request,
    read_json_reply,
    read_request,
)
from .state import TaskContext, TaskState, as_json, step_request, value_of

if TYPE_CHECKING:
    from .graphs import TaskNodes


_BORDERS = (re.compile(r"\n\s*\n"), re.compile(r"\n"), re.compile(r"[.!?]['\")\]]*\s|[。！？]"), re.compile(r"\s"))
"""Places where a chunk may end, best first: a paragraph, a line, a sentence, a word."""


def cut_into_chunks(text: str, *, characters: int, overlap: int) -> tuple[str, ...]:
    """Cut `text` into pieces of at most `characters`, which end at a border where the second half of a piece holds one.

    Each piece but the first begins with the last `overlap` characters of the one before, so that what a cut goes through is whole in one
    of the two. Without these, the pieces are the text. `overlap` is at most half of `characters`.
    """
    chunks: list[str] = []
    start = end = 0
    while end < len(text):
        least = start + max(characters // 2, overlap + 1)
        end = start + characters
        if end < len(text):
            end = _last_border(text, least, end) or end
        chunks.append(text[start:end])
        start = max(end - overlap, 0)
    return tuple(chunks)


def _last_border(text: str, start: int, end: int) -> int | None:
    """Return the end of the last border of the best kind between two places."""
    for border in _BORDERS:
        ends = [match.end() for match in border.finditer(text, start, end)]
        if ends:
            return ends[-1]
    return None


_JOBS_OF_REPLY = TypeAdapter(tuple[Job, ...], config=ConfigDict(defer_build=True))
_ABSTENTIONS = frozenset({"", "none", "null", "n/a"})
"""How models that should have answered null write it."""
_QUOTES = "\"'“”‘’«» "


class ChunkAnswer(Value):
    """The answer of a small model to one job on one chunk."""

    explanation: str
    citation: str
    """Words of the chunk."""
    answer: str


class Assessment(Value):
    """The far side's decision after a round: an answer, or jobs for another round."""

    answer: str | None
    scratchpad: str
    jobs: tuple[Job, ...]


def read_jobs(reply: str) -> tuple[Job, ...]:
    """Return the jobs of the first round. Raises `InvalidOutput`, whose message tells the model what to mend."""
    value = read_json_reply(reply, JOBS_SCHEMA)
    jobs = _jobs(value)
    if not jobs:
        raise InvalidOutput("it holds no jobs")
    return jobs


def read_assessment(
    reply: str, *, is_last: bool, output_schema: JsonSchema | None, output_model: type[BaseModel] | None = None
) -> Assessment:
    """Return the answer, which fits `output_schema` and its model where there is one, or the jobs of another round.

    Raises `InvalidOutput` for anything else, and for more jobs where this was the last round.
    """
    assessment = Assessment.model_validate(read_json_reply(reply, ASSESSMENT_SCHEMA))
    assessment = assessment.model_copy(update={"jobs": _asked(assessment.jobs)})
    if assessment.answer is None or not assessment.answer.strip():
        if is_last:
            raise InvalidOutput("no rounds are left, and it holds no answer", hint="raise minions.maximum_rounds, or ask a stronger model")
        if not assessment.jobs:
            raise InvalidOutput("it holds neither an answer nor jobs")
        return assessment.model_copy(update={"answer": None})
    if output_schema is not None:
        read_output(assessment.answer, output_schema, output_model)
    return assessment


def read_finding(reply: str, chunk: str) -> ChunkAnswer | None:
    """Read a finding from a reply. Return None if the model abstained or cites words that the chunk does not hold. Raises
    `InvalidOutput`."""
    value = read_json_reply(reply, FINDING_SCHEMA)
    assert isinstance(value, dict), "the schema asks for an object"
    explanation, citation, answer = (str(value[name] or "").strip() for name in ("explanation", "citation", "answer"))
    if answer.casefold() in _ABSTENTIONS or not occurs(citation, chunk):
        return None
    return ChunkAnswer(explanation=explanation, citation=citation, answer=answer)


def occurs(citation: str, chunk: str) -> bool:
    """Return whether a chunk holds a citation. Case, spacing, Unicode form and quotation marks around the citation are ignored."""
    cited = _plain(citation.strip(_QUOTES))
    return bool(cited) and cited in _plain(chunk)


def show(jobs: Sequence[Job], findings: Mapping[tuple[int, int], ChunkAnswer], *, characters: int) -> str:
    """Return the findings by job, then by chunk, in at most about `characters`, evenly among the jobs; what is left out is counted.

    Args:
        findings: by the indices of job and chunk.
    """
    found = {index: [(chunk, findings[index, chunk]) for job, chunk in sorted(findings) if job == index] for index in range(len(jobs))}
    lines: list[str] = []
    for index, job in enumerate(jobs):
        left = characters - sum(map(len, lines))
        lines.append(f"Job {index + 1}: {job.instruction}")
        lines.extend(_shown(found[index], left // (len(jobs) - index)))
    return "\n".join(lines)


def _shown(found: Sequence[tuple[int, ChunkAnswer]], characters: int) -> list[str]:
    if not found:
        return ["- nothing was found"]
    lines: list[str] = []
    for chunk, finding in found:
        line = f'- chunk {chunk + 1}: {finding.answer} ("{finding.citation}"; {finding.explanation})'
        if sum(map(len, lines)) + len(line) > characters:
            return [*lines, f"- {len(found) - len(lines)} more are left out"]
        lines.append(line)
    return lines


def _jobs(value: object) -> tuple[Job, ...]:
    assert isinstance(value, dict), "the schema asks for an object"
    return _asked(_JOBS_OF_REPLY.validate_python(value["jobs"]))


def _asked(jobs: Sequence[Job]) -> tuple[Job, ...]:
    """Return the jobs without empty and repeated ones."""
    return tuple(dict.fromkeys(job for job in jobs if job.instruction.strip()))


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


class Round(Value):
    """The state of a task that `minions` serves."""

    number: int
    """1 is the first."""
    jobs: tuple[Job, ...]
    scratchpad: str = ""
    """The far side's notes from the rounds before."""
    findings: str = ""
    """The findings of the jobs, as text for the far side."""
    found: int = 0
    """How many findings that are."""


class Material:
    """A task's context in chunks. Raises `InvalidRequest` where there is nothing to read, or more than the policy allows."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.policy: MinionsConfig = task.policy.minions
        context = task.context or ""
        if not context.strip():
            raise InvalidRequest("strategy minions needs a context to read", hint='run(prompt, context="...", strategy="minions")')
        cuts = cut_into_chunks(context, characters=self.policy.chunk_characters, overlap=self.policy.overlap_characters)
        self.chunks = [chunk for chunk in cuts if chunk.strip()]
        self.extent = Extent(characters=len(context), chunks=len(self.chunks))
        if len(self.chunks) > self.policy.maximum_readings:
            problem = f"the context has {len(self.chunks)} chunks, and a round may have {self.policy.maximum_readings} readings"
            raise InvalidRequest(problem, hint="raise minions.chunk_characters or minions.maximum_readings")

    @property
    def maximum_jobs(self) -> int:
        """Per round."""
        return min(self.policy.maximum_jobs, self.policy.maximum_readings // len(self.chunks))


@dataclass
class Readings:
    """One round's readings: each job on each chunk.

    They start chunk by chunk, so that the agent's prefix cache serves all jobs on a chunk. One that fails counts as an abstention.
    """

    reader: AgentHandle
    material: Material
    now: Round
    log: CallLog
    findings: dict[tuple[int, int], ChunkAnswer] = field(default_factory=dict)
    """Findings by the indices of job and chunk."""
    errors: list[NearfarError] = field(default_factory=list)
    """Errors of the readings that failed."""

    async def run(self) -> None:
        """Do them all. Raises what opening the agent raises, and the first error where every reading failed."""
        agent = await self.reader.open()
        slots = anyio.Semaphore(min(self.material.policy.parallel, agent.card.limits.concurrency))
        async with anyio.create_task_group() as running:
            for chunk in range(len(self.material.chunks)):
                for job in range(len(self.now.jobs)):
                    await slots.acquire()
                    running.start_soon(self._read, agent, job, chunk, slots)
        if len(self.errors) == self._total:
            self.errors[0].add_note(f"all {self._total} readings of the context failed; this is the first error")
            raise self.errors[0]

    @property
    def reasons(self) -> list[str]:
        """A summary of the readings, and the reasons why some failed."""
        summary = f"round {self.now.number}: {len(self.now.jobs)} jobs on {len(self.material.chunks)} chunks, {len(self.findings)} findings"
        problems = Counter(f"{type(error).__name__}: {error}" for error in self.errors)
        return [summary, *(f"{count} of {self._total} readings failed: {problem}" for problem, count in problems.most_common())]

    @property
    def _total(self) -> int:
        return len(self.material.chunks) * len(self.now.jobs)

    async def _read(self, agent: Agent, job: int, chunk: int, slots: anyio.Semaphore) -> None:
        text = self.material.chunks[chunk]
        try:
            reply = await self.log.ask(self.reader, self._request(agent, job, chunk), role="extract", turn=self.now.number - 1)
            finding = read_finding(reply.text, text)
        except NearfarError as error:
            self.errors.append(error)
        else:
            if finding is not None:
                self.findings[job, chunk] = finding
        finally:
            slots.release()

    def _request(self, agent: Agent, job: int, chunk: int) -> StepRequest:
        policy = self.material.task.policy
        most = self.material.policy.finding_tokens
        return step_request(
            self.material.task,
            read_request(self.now.jobs[job], self.material.chunks[chunk]),
            f"{self.now.number}/{job}/{chunk}",
            output_schema=FINDING_SCHEMA if agent.card.capabilities.json_schema else None,
            max_output_tokens=most if policy.maximum_output_tokens is None else min(most, policy.maximum_output_tokens),
            sensitivity=Sensitivity.PRIVATE,  # whatever the task is: no far agent would take this
        )


def build_minions(nodes: "TaskNodes") -> TaskGraphBuilder:
    """Return the graph of minions."""
    minions = MinionsNodes(nodes)
    graph: TaskGraphBuilder = StateGraph(TaskState, TaskContext)
    graph.add_node("route", nodes.route)
    graph.add_node("write_jobs", minions.write_jobs)
    graph.add_node("read_chunks", minions.read_chunks)
    add_node(graph, "aggregate", minions.aggregate, after_aggregate, ["read_chunks", END])
    graph.add_edge(START, "route")
    graph.add_edge("route", "write_jobs")
    graph.add_edge("write_jobs", "read_chunks")
    graph.add_edge("read_chunks", "aggregate")
    return graph


def after_aggregate(state: TaskState) -> str:
    """End the task after an answer; else read the chunks for the next jobs."""
    return END if state["attempts"] else "read_chunks"


class MinionsNodes:
    """The nodes of minions, bound to the shared ones."""

    def __init__(self, nodes: "TaskNodes") -> None:
        self._pool = nodes.pool

    async def write_jobs(self, state: TaskState, runtime: TaskRuntime) -> TaskState:
        """Have the far side write the first jobs. Where its replies hold none, the task itself is the only job, so nothing is lost."""
        material = Material(value_of(Task, state["task"]))
        log = CallLog(state, runtime)
        panel = Panel(state, runtime, self._pool, log)
        text = task_text(material.task)
        messages = jobs_request(text, material.extent, maximum_jobs=material.maximum_jobs)
        try:
            jobs = (await panel.ask(Question("jobs", messages, read_jobs, key="jobs", schema=JOBS_SCHEMA))).value
        except InvalidOutput as error:
            panel.reasons.append(f"no jobs could be read ({error.message}), so the task itself is the only one")
            jobs = (Job(instruction=text),)
        first = Round(number=1, jobs=_capped(jobs, material, panel.reasons))
        return {"minions": as_json(first), "calls": log.as_json, "reasons": [*state["reasons"], *panel.reasons]}

    async def read_chunks(self, state: TaskState, runtime: TaskRuntime) -> TaskState:
        """Have the near side do each job on each chunk."""
        material = Material(value_of(Task, state["task"]))
        now = Round.model_validate(state["minions"])
        log = CallLog(state, runtime)
        readings = Readings(self._reader, material, now, log)
        await readings.run()
        findings = show(now.jobs, readings.findings, characters=material.policy.findings_characters)
        read = now.model_copy(update={"findings": findings, "found": len(readings.findings)})
        return {"minions": as_json(read), "calls": log.as_json, "reasons": [*state["reasons"], *readings.reasons]}

    async def aggregate(self, state: TaskState, runtime: TaskRuntime) -> TaskState:
        """Have the far side answer from what was found, or write the jobs of another round."""
        material = Material(value_of(Task, state["task"]))
        now = Round.model_validate(state["minions"])
        log = CallLog(state, runtime)
        panel = Panel(state, runtime, self._pool, log)
        try:
            answered = await panel.ask(_whether_it_is_enough(material, now, runtime))
        except BudgetExceeded as error:
            answered = self._as_found(error, material, now, state)
        assessment = answered.value
        if assessment.answer is not None:
            ended = _answer(state, assessment.answer, answered.attempts, runtime)
        else:
            jobs = _capped(assessment.jobs, material, panel.reasons)
            ended = {"minions": as_json(Round(number=now.number + 1, jobs=jobs, scratchpad=assessment.scratchpad))}
        return {**ended, "calls": log.as_json, "reasons": [*state["reasons"], *panel.reasons]}

    @property
    def _reader(self) -> AgentHandle:
        return next(handle for handle in self._pool if handle.side is Side.NEAR)

    def _as_found(self, error: BudgetExceeded, material: Material, now: Round, state: TaskState) -> Answered[Assessment]:
        """Return the findings as the answer if the budget ended before one was written. Raises the error if they cannot be an answer."""
        if not now.found or material.task.output_schema is not None:
            raise error
        read = [call for call in map(Call.model_validate, state["calls"]) if call.role == "extract" and call.error is None]
        attempt = attempt_with(self._reader, read, error, "the findings stand")
        return Answered(Assessment(answer=now.findings, scratchpad="", jobs=()), (attempt,))


def _whether_it_is_enough(material: Material, now: Round, runtime: TaskRuntime) -> Question[Assessment]:
    task = material.task
    given: TaskContext | None = runtime.context
    model = None if given is None else given.output_model
    rounds_left = material.policy.maximum_rounds - now.number
    form = answer_form(task.output_schema) if task.output_schema is not None else ""
    messages = findings_request(
        task_text(task) + form,
        material.extent,
        now.findings,
        scratchpad=now.scratchpad,
        rounds_left=rounds_left,
        maximum_jobs=material.maximum_jobs,
    )

    def read(reply: str) -> Assessment:
        return read_assessment(reply, is_last=rounds_left == 0, output_schema=task.output_schema, output_model=model)

    return Question("aggregate", messages, read, key=f"aggregate/{now.number}", schema=ASSESSMENT_SCHEMA, turn=now.number)


def _capped(jobs: Sequence[Job], material: Material, reasons: list[str]) -> tuple[Job, ...]:
    most = material.maximum_jobs
    if len(jobs) > most:
        reasons.append(f"{len(jobs)} jobs were written; the first {most} are done")
    return tuple(jobs[:most])


def _answer(state: TaskState, answer: str, attempts: Sequence[Attempt], runtime: TaskRuntime) -> TaskState:
    """Return the final state. The answer stood inside JSON, so it can be streamed only now."""
    accepted = attempts[-1]
    emit(runtime, AttemptStarted(agent=accepted.agent, side=accepted.side, model=accepted.model or accepted.agent))
    given: TaskContext | None = runtime.context
    privacy = None if given is None else given.privacy
    emit(runtime, AgentText(text=answer if privacy is None else privacy.placeholders.fill_for_display(answer)))
    emit(runtime, AttemptEnded(attempt=accepted))
    return {
        "messages": [*state["messages"], as_json(Message.assistant(answer))],
        "attempts": [as_json(attempt) for attempt in attempts],
    }
