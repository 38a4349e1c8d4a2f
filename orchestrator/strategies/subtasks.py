"""`subtasks`: a task is cut into a directed acyclic graph of subtasks; independent ones run in parallel, each routed on its own (after
HybridFlow, arXiv 2512.22137, whose learned router is the choice of a strategy here)."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import anyio
from langgraph.graph import END, START, StateGraph

from ...protocols import BudgetExceeded, InvalidOutput, JsonSchema, Message
from ...protocols.validation import parse_output
from ..task.events import AttemptEnded, SubtasksPlanned
from ..task.labels import Chosen
from ..task.modes import Strategy
from ..task.results import Call
from ..task.routing_policy import FALLBACK_ERRORS
from ..task.task import Task
from .calls import CallLog
from .context import Keeping, TaskContext
from .information_flow import chosen_by_plan
from .nodes import TaskNodes
from .panel import Answered, Panel, Question, attempt_with
from .runtime import TaskGraph, TaskGraphBuilder, TaskRuntime, add_node, emit
from .state import TaskState, as_json, label_of, value_of
from .subtasks_plan import SubtaskPlan, read_plan
from .subtasks_prompts import SUBTASKS_SCHEMA, SubtaskResult, aggregate_request, answer_form, plan_subtasks_request
from .subtasks_run import Parts, PlanRun, SubtasksWork, part_policy
from .supervised import task_text


def build_subtasks(nodes: TaskNodes) -> TaskGraphBuilder:
    """Return the graph of subtasks."""
    subtasks = SubtasksNodes(nodes)
    graph: TaskGraphBuilder = StateGraph(TaskState, TaskContext)
    graph.add_node("route", nodes.route)
    graph.add_node("plan_subtasks", subtasks.plan)
    add_node(graph, "run_subtasks", subtasks.run, after_run, ["aggregate", END])
    graph.add_node("aggregate", subtasks.aggregate)
    graph.add_edge(START, "route")
    graph.add_edge("route", "plan_subtasks")
    graph.add_edge("plan_subtasks", "run_subtasks")
    graph.add_edge("aggregate", END)
    return graph


def after_run(state: TaskState) -> str:
    """End the task if the last subtask has answered it."""
    return END if state["attempts"] else "aggregate"


class SubtasksNodes:
    """The nodes of subtasks, bound to the shared ones."""

    def __init__(self, nodes: TaskNodes) -> None:
        self._nodes = nodes
        self._compiled: dict[tuple[Strategy, bool], TaskGraph] = {}

    async def plan(self, state: TaskState, runtime: TaskRuntime) -> TaskState:
        """Have the task cut. Where no plan can be read, the task is served whole, so nothing is lost."""
        log = CallLog(state, runtime)
        panel = Panel(state, runtime, self._nodes.pool, log)
        most = panel.task.policy.subtasks.maximum_subtasks
        question = Question(
            "plan",
            plan_subtasks_request(task_text(panel.task.with_context_in_prompt()), maximum_subtasks=most),
            partial(read_plan, maximum_subtasks=most),
            key="subtasks",
            schema=SUBTASKS_SCHEMA,
            tools=self._nodes.context(runtime).specs,
        )
        plan: SubtaskPlan | None = None
        try:
            plan = await self._recalled(panel.task, runtime, maximum_subtasks=most) or (await panel.ask(question)).value
            panel.reasons.append(plan.summary)
        except FALLBACK_ERRORS as error:
            panel.reasons.append(f"no subtasks could be planned ({type(error).__name__}: {error.message}), so the task is served whole")
        if plan is not None and len(plan.subtasks) == 1:
            plan = None
        if plan is not None:
            emit(runtime, SubtasksPlanned(subtasks=plan.subtasks))
        work = SubtasksWork(plan=plan)
        chosen = state["chosen"]
        if plan is not None and log.made:  # one of an earlier task may have been made in worse company
            chosen = chosen_by_plan(state, "\n".join(part.task for part in plan.subtasks), self._nodes.context(runtime))
        return {"subtasks": as_json(work), "chosen": chosen, "calls": log.as_json, "reasons": [*state["reasons"], *panel.reasons]}

    async def _recalled(self, task: Task, runtime: TaskRuntime, *, maximum_subtasks: int) -> SubtaskPlan | None:
        """Return the plan of an earlier task of the same intent if it fits this task without changes."""
        context = self._nodes.context(runtime)
        found = None if context.plans is None else await context.plans.recall(task, context.tools)
        if found is None or not found.is_complete:
            return None
        try:
            return read_plan(found.plan, maximum_subtasks=maximum_subtasks)
        except InvalidOutput:
            return None  # What this task names does not fit into JSON as it stands, so the plan is made anew.

    async def run(self, state: TaskState, runtime: TaskRuntime) -> TaskState:
        """Run the subtasks; where one of them answers the task, or the task is served whole, that ends it."""
        work = SubtasksWork.model_validate(state["subtasks"])
        parts = self._parts(state, runtime)
        if work.plan is None:
            whole = parts.task.model_copy(update={"policy": part_policy(parts.task, turns=parts.task.policy.maximum_turns)})
            account = parts.context.account
            final = await parts.run(whole.with_context_in_prompt(), account=account, seconds=None, is_heard=True, name="the whole task")
            ended: TaskState = {"attempts": final["attempts"], "messages": final["messages"], "label": final["label"]}
        else:
            running = PlanRun(work.plan, parts)
            await running.run()
            done = work.model_copy(update={"results": running.results})
            ended = {"subtasks": as_json(done), "label": as_json(running.label)}
            if running.answer is not None:
                ended |= {"attempts": running.answer["attempts"], "messages": running.answer["messages"]}
        told = parts.context.recollection
        recalled = [] if told is None else [as_json(item) for item in told.items]
        made = [as_json(outcome) for outcomes in parts.outcomes.values() for outcome in outcomes]
        ended |= {"recalled": recalled, "tool_calls": made}
        return {**ended, "calls": parts.log.as_json, "reasons": [*state["reasons"], *parts.reasons]}

    async def aggregate(self, state: TaskState, runtime: TaskRuntime) -> TaskState:
        """Have the answer made from what the subtasks came to, failed ones included."""
        work = SubtasksWork.model_validate(state["subtasks"])
        assert work.plan is not None, "a task that is served whole is not aggregated"
        log = CallLog(state, runtime)
        panel = Panel(state, runtime, self._nodes.pool, log)
        task = panel.task
        results = [work.results[subtask.id] for subtask in work.plan.subtasks]
        form = answer_form(task.output_schema) if task.output_schema is not None else ""
        question = Question(
            "aggregate",
            aggregate_request(task_text(task) + form, results),
            partial(_read_answer, output_schema=task.output_schema),
            key="aggregate",
            schema=task.output_schema,
            is_heard=True,
        )
        try:
            answered = await panel.ask(question)
        except BudgetExceeded as error:
            answered = self._side_by_side(error, state, results)
            emit(runtime, AttemptEnded(attempt=answered.attempts[-1]))
        return {
            "messages": [*state["messages"], as_json(Message.assistant(answered.value))],
            "attempts": [as_json(attempt) for attempt in answered.attempts],
            "calls": log.as_json,
            "reasons": [*state["reasons"], *panel.reasons],
        }

    def _side_by_side(self, error: BudgetExceeded, state: TaskState, results: Sequence[SubtaskResult]) -> Answered[str]:
        """Return the results side by side if the budget ended before one answer was made of them. Raises the error if they cannot be an
        answer."""
        calls = [value_of(Call, call) for call in state["calls"]]
        done = [result for result in results if not result.is_failed]
        worked = [call for call in calls if call.role == "execute" and call.error is None]
        if not done or not worked or state["task"]["output_schema"] is not None:
            raise error
        handle = self._nodes.pool[worked[-1].agent]
        own = [call for call in worked if call.agent == handle.name]
        attempt = attempt_with(handle, own, error, "the results of the subtasks stand")
        return Answered("\n\n".join(result.answer for result in done), (attempt,))

    def _parts(self, state: TaskState, runtime: TaskRuntime) -> Parts:
        task = value_of(Task, state["task"])
        context = self._nodes.context(runtime)
        return Parts(
            task=task,
            graph=self._graph(task.policy.subtasks.strategy, context.keeping),
            label=label_of(state),
            planned=value_of(Chosen, state["chosen"]),
            context=replace(context, turn_taking=anyio.Lock()) if task.policy.subtasks.exclusive_tools else context,
            agents=len(self._nodes.pool),
            log=CallLog(state, runtime),
            runtime=runtime,
        )

    def _graph(self, strategy: Strategy, keeping: Keeping | None) -> TaskGraph:
        """Return the graph of the parts. Without a thread for each part it has no checkpointer: all parts would share the task's thread."""
        from .graphs import BUILDERS  # here, since that module needs this one

        kind = strategy, keeping is not None
        if kind not in self._compiled:
            checkpointer = False if keeping is None else keeping.checkpointer
            self._compiled[kind] = TaskGraph.compiled(BUILDERS[strategy](self._nodes), checkpointer=checkpointer, name="subtask")
        return self._compiled[kind]


def _read_answer(reply: str, *, output_schema: JsonSchema | None) -> str:
    if output_schema is not None:
        parse_output(reply, output_schema)
    elif not reply.strip():
        raise InvalidOutput("it is empty")
    return reply
