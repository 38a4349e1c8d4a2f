"""MinionS (arXiv 2502.15964): a long context stays on this device. The far side, which never sees it, writes jobs; the near side does each
of them on every chunk; what it found goes to the far side, which answers or writes the jobs of another round.

The paper's far model writes Python that makes the jobs. Here it writes them as JSON, and this module applies them to the chunks, so that
nothing that a model wrote is executed.
"""

from collections.abc import Sequence

from langgraph.graph import END, START, StateGraph

from ...protocols import BudgetExceeded, InvalidOutput, Message, Side
from ..agents.pool import AgentHandle
from ..task.events import AgentText, AttemptEnded, AttemptStarted
from ..task.results import Attempt, Call
from ..task.task import Task
from .calls import CallLog
from .context import TaskContext
from .minions_prompts import ASSESSMENT_SCHEMA, JOBS_SCHEMA, Job, answer_form, findings_request, jobs_request
from .minions_reading import Assessment, Material, Readings, Round, read_assessment, read_jobs, show
from .nodes import TaskNodes
from .panel import Answered, Panel, Question, attempt_with
from .runtime import TaskGraphBuilder, TaskRuntime, add_node, emit
from .state import TaskState, as_json, value_of
from .supervised import task_text


def build_minions(nodes: TaskNodes) -> TaskGraphBuilder:
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

    def __init__(self, nodes: TaskNodes) -> None:
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
            answered = await panel.ask(_whether_it_is_enough(material, now))
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


def _whether_it_is_enough(material: Material, now: Round) -> Question[Assessment]:
    task = material.task
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
        return read_assessment(reply, is_last=rounds_left == 0, output_schema=task.output_schema)

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
