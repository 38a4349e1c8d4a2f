"""`subtasks`: a task is cut into a directed acyclic graph of subtasks; independent ones run in parallel, each routed on its own (after
HybridFlow, arXiv 2512.22137, whose learned router is the choice of a strategy here)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING

import anyio
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.errors import GraphInterrupt
from langgraph.graph import END, START, StateGraph
from langgraph.types import Interrupt
from pydantic import BaseModel

from ...protocols import BudgetExceeded, DeadlineExceeded, InvalidOutput, JsonSchema, Message, NearfarError
from ...protocols.steps import Value
from ..budgets import Spent
from ..budgets.account import Account
from ..safety.privacy import PrivateResult
from ..task import Task, read_output, task_text
from ..task.events import (
    AgentText,
    AttemptEnded,
    AttemptStarted,
    CallEnded,
    Routed,
    Subtask,
    SubtaskEnded,
    SubtaskOutcome,
    SubtasksPlanned,
    SupervisorSpoke,
    TaskEvent,
    ToolFinished,
    ToolStarted,
)
from ..task.labels import OPEN, Chosen, Integrity, Label, join_labels
from ..task.policy import Policy, SubtasksConfig
from ..task.results import Attempt, Call, ToolOutcome
from ..task.routing_policy import FALLBACK_ERRORS, AmountsConfig, LimitsConfig
from ..util.runtime import run_cancellable
from .attempts import Answered, Panel, Question, attempt_with
from .calls import CallLog, TaskGraph, TaskGraphBuilder, TaskRuntime, add_node, emit, show
from .prompts import SUBTASKS_SCHEMA, SubtaskResult, aggregate_request, json_answer_note, plan_subtasks_request, with_results
from .state import Json, TaskContext, TaskState, as_json, chosen_by_plan, label_of, recursion_limit, value_of
from .subtasks_plan import Shares, SubtaskPlan, read_plan, run_as_ready
from .tool_calls import told_of

if TYPE_CHECKING:
    from .graphs import TaskNodes

_KEEPS_NOTHING = {"__pregel_durability": "async"}
"""Else LangGraph has a part wait, as the whole does, for checkpoints to be kept that a part has none of, and fails."""
_ANSWERING = (AttemptStarted, AgentText, SupervisorSpoke, AttemptEnded)
"""Events of the one subtask that answers the task; of others that run side by side they would make no sense together."""


class SubtasksWork(Value):
    """The subtasks of a task, and their results."""

    plan: SubtaskPlan | None
    """None: the task is served whole."""
    results: Mapping[str, SubtaskResult] = {}
    """By the subtasks' ids."""


@dataclass
class RunningParts:
    """The parts of one task while they run."""

    task: Task
    graph: TaskGraph
    context: TaskContext
    label: Label
    """The label of the task's own input."""
    planned: Chosen
    """Tools that the plan names, where it was made before the run had read untrusted content."""
    agents: int
    """In the pool."""
    log: CallLog
    runtime: TaskRuntime
    shows_routes: bool = False
    """Their routes are shown, as the whole has none."""
    reasons: list[str] = field(default_factory=list)
    """Lines about which agent answered which part, and which failed."""
    outcomes: dict[str, list[ToolOutcome]] = field(default_factory=dict)
    """By the parts' names: of their tool calls so far."""
    told: dict[str, Label] = field(default_factory=dict)
    """By the parts' names: of what tools told them so far."""

    async def run(self, part: Task, *, account: Account | None, seconds: float | None, is_heard: bool, name: str) -> Json:
        """Serve one part and return the final state of its graph.

        Raises what the part's strategy raises, and `DeadlineExceeded` after `seconds`.

        Args:
            account: its budget account; None: its spending is not counted.
            is_heard: its answer is the task's, so it is streamed.
            name: the part's name in `reasons`.
        """
        try:
            with _time_limit(seconds, name):
                final = await run_cancellable(self._served(part, account, is_heard=is_heard, name=name))
        finally:
            if self.context.outcomes is not None:
                self.context.outcomes.extend(self.outcomes.get(name, ()))
        label = Label.model_validate(final["label"])
        if label.integrity is Integrity.UNTRUSTED:  # by the words of an agent of other people's, too
            self.told[name] = self.told.get(name, OPEN).joined(label.model_copy(update={"tier": OPEN.tier}))
        # The attempts at the task's own answer are told by the result itself.
        attempts = [Attempt.model_validate(attempt) for attempt in final["attempts"]] if not is_heard else []
        self.reasons.extend(f"{name}: {attempt.agent} {attempt.outcome}: {attempt.reason}" for attempt in attempts)
        self.reasons.extend(f"{name}: {reason}" for reason in final["reasons"])
        return final

    async def _served(self, part: Task, account: Account | None, *, is_heard: bool, name: str) -> Json:
        """Return the final state of the part's graph."""
        listener = partial(self._pass_on, is_heard=is_heard, name=name)
        trace = None if self.context.trace is None else self.context.trace.within(name)
        outcomes = self.outcomes[name] = []
        tool_checks = self.context.tool_checks.within(name)
        keeping = self.context.keeping
        context = replace(
            self.context,
            account=account,
            tool_checks=tool_checks,
            listener=listener,
            trace=trace,
            outcomes=outcomes,
            keeping=None if keeping is None else keeping.within(name),
        )
        config: RunnableConfig = {"recursion_limit": recursion_limit(part.policy, agents=self.agents), "configurable": _KEEPS_NOTHING}
        given: TaskState = {"task": part.model_dump(mode="json")}
        if keeping is not None:
            return await self._resume(given, {**config, "configurable": keeping.thread(name)}, context, name)
        final: Json = await self.graph.ainvoke(given, config, context=context)
        return final

    async def _resume(self, given: TaskState, config: RunnableConfig, context: TaskContext, name: str) -> Json:
        """Continue a part where an earlier process stopped, and return its final state. Raises `GraphInterrupt` if it stops for an
        approval."""
        # To LangGraph it is no graph within the task's, whose parts would share one thread, but one by itself.
        var_child_runnable_config.set(None)
        kept: Json = (await self.graph.aget_state(config)).values
        self._restore(kept, name)
        final: Json = await self.graph.ainvoke(None if kept else given, config, context=context, durability="sync")
        if "__interrupt__" in final:
            raise GraphInterrupt(final["__interrupt__"])
        return final

    def _restore(self, kept: Json, name: str) -> None:
        """Take in what this process has to know of the steps that others have taken."""
        context = self.context
        self.log.made.extend(Call.model_validate(call) for call in kept.get("calls", ()))
        self.outcomes[name].extend(ToolOutcome.model_validate(outcome) for outcome in kept.get("tool_calls", ()))
        if "label" in kept:
            self.told[name] = Label.model_validate(kept["label"])
        if context.recollection is not None:
            context.recollection.restore(kept.get("recalled", ()))
        if context.privacy is not None:
            messages = [Message.model_validate(message) for message in kept.get("messages", ())]
            context.privacy.add_private_results(messages, [PrivateResult.model_validate(result) for result in kept.get("private", ())])

    def _pass_on(self, event: TaskEvent, *, is_heard: bool, name: str) -> None:
        if isinstance(event, ToolStarted) and (tool := self.context.tools.get(event.call.name)) is not None:
            self.told[name] = self.told.get(name, OPEN).joined(tool.declared.label(tool.name))
        if isinstance(event, ToolFinished) and (tool := self.context.tools.get(event.result.name)) is not None:
            self.told[name] = self.told.get(name, OPEN).joined(tool.label_of(event.result))
        if (isinstance(event, Routed) and not self.shows_routes) or (isinstance(event, _ANSWERING) and not is_heard):
            return
        if isinstance(event, CallEnded):
            self.log.made.append(event.call)
        show(self.runtime, event)


@contextmanager
def _time_limit(seconds: float | None, name: str) -> Iterator[None]:
    with anyio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise DeadlineExceeded(f"{name} took longer than its share of the timeout, {seconds:.1f} s", hint="raise the task's timeout")


class PlanRun:
    """One plan being carried out. Make it, `run` it, then look at what came of it."""

    def __init__(self, plan: SubtaskPlan, parts: RunningParts) -> None:
        self.results: dict[str, SubtaskResult] = {}
        self.answer: Json | None = None
        """The final state of the subtask whose answer is the task's, where there is one."""
        self.errors: list[NearfarError] = []
        self._asking: list[Interrupt] = []
        """LangGraph's interrupts: what subtasks wait to be told."""
        self._plan = plan
        self._left_out: frozenset[str] = frozenset()
        """Subtasks that will be skipped."""
        self._parts = parts
        self._task = parts.task
        self._answering = answering_subtask(plan, self._task.policy.subtasks)
        self._weights = plan.weights()
        self._steps = plan.shares_to_the_end(self._weights)
        spent = sum(call["seconds"] for call in parts.log.as_json)
        seconds = None if self._task.timeout is None else self._task.timeout - spent
        self._account = parts.context.account
        self._shares = self._divided(seconds)

    @property
    def label(self) -> Label:
        """The label of all that any agent was told for the task."""
        return join_labels((self._parts.label, *(result.label for result in self.results.values())))

    async def run(self) -> None:
        """Run all subtasks. Raises the first error if all of them failed, and at once an error that only the user can fix.

        If a subtask stops for an approval, the others continue as far as they can; then LangGraph's interrupt is raised.
        """
        outcomes = await run_as_ready(self._plan.needs, self._work, parallel=self._task.policy.subtasks.parallel)
        if self._asking:
            raise GraphInterrupt(tuple(self._asking))
        for identifier, outcome in outcomes.items():
            if outcome is SubtaskOutcome.SKIPPED:
                lacking = [need for need in self._plan[identifier].needs if outcomes[need] is not SubtaskOutcome.DONE]
                self._fail(self._plan[identifier], outcome, f"it needs {', '.join(lacking)}, which came to nothing")
        if SubtaskOutcome.DONE not in outcomes.values():
            for error in self.errors[1:]:
                self.errors[0].add_note(f"and another subtask failed: {type(error).__name__}: {error}")
            raise self.errors[0]

    async def _work(self, identifier: str) -> bool:
        subtask = self._plan[identifier]
        weight = self._weights[identifier]
        turns = self._shares.take_turns(weight)
        is_answer = identifier == self._answering
        limits = self._limits(weight)
        account = None if self._account is None else self._account.part(limits)
        part = self._part(subtask, turns=turns, limits=limits, is_answer=is_answer)
        to_aggregate = 1 / weight if self._answering is None else 0.0  # as long as the average subtask
        seconds = self._shares.seconds(steps_to_the_end=self._steps[identifier] + to_aggregate)
        try:
            final = await self._parts.run(part, account=account, seconds=seconds, is_heard=is_answer, name=_name(subtask))
        except GraphInterrupt as stopped:
            self._asking += stopped.args[0]
            return False
        except FALLBACK_ERRORS as error:
            self._give_back(0, limits.task, account)
            self.errors.append(error)
            self._fail(subtask, SubtaskOutcome.FAILED, f"{type(error).__name__}: {error}")
            self._leave_out(self._plan.downstream(identifier))
            return False
        self._give_back(turns - _turns_used(final), limits.task, account)
        if is_answer:
            self.answer = final
        self._end(subtask, SubtaskOutcome.DONE, final["messages"][-1]["text"], Label.model_validate(final["label"]))
        return True

    def _divided(self, seconds: float | None) -> Shares:
        """Return the shares of all subtasks. If a final call combines their results, it gets as much as the average subtask."""
        count = len(self._plan.subtasks)
        left = AmountsConfig() if self._account is None else self._account.left_of_task()
        portion = count / (count + 1) if self._answering is None else 1.0
        return Shares(
            turns=self._task.policy.maximum_turns,
            seconds=seconds,
            subtasks=count,
            dollars=None if left.dollars is None else portion * left.dollars,
            tokens=None if left.tokens is None else int(portion * left.tokens),
        )

    def _limits(self, weight: float) -> LimitsConfig:
        """Return the task's limits, with the share of the starting subtask as the limit for the task."""
        limits = self._task.policy.limits
        share = {"dollars": self._shares.take_dollars(weight), "tokens": self._shares.take_tokens(weight)}
        return limits.model_copy(update={"task": limits.task.model_copy(update=share)})

    def _give_back(self, turns: int, share: AmountsConfig, account: Account | None) -> None:
        """Let those that start later have what a subtask did not use."""
        spent = account.spent if account is not None else Spent()
        dollars = 0.0 if share.dollars is None or spent.dollars is None else share.dollars - spent.dollars
        tokens = 0 if share.tokens is None else share.tokens - spent.tokens
        self._shares.give_back(turns, dollars=dollars, tokens=tokens)

    def _part(self, subtask: Subtask, *, turns: int, limits: LimitsConfig, is_answer: bool) -> Task:
        """Return the subtask as a task. Its sensitivity and mode are the whole's; its prompt holds the results of those that it needs."""
        prompt = with_results(subtask.task, [self.results[need] for need in subtask.needs])
        rules = tuple(message for message in self._task.messages if message.role == "system")
        changes = {
            "messages": (*rules, Message.user(prompt)),
            "output_schema": self._task.output_schema if is_answer else None,
            "idempotency_key": part_key(self._task.idempotency_key, _name(subtask)),
            "policy": part_policy(self._task, turns=turns).model_copy(update={"limits": limits}),
            "caller": None,
            "label": self._label(subtask),
            "planned": self._parts.planned,
            "ruling": None,
            "reasons": (),
            "unstick": True,  # each part is routed by itself; the session is that of the whole
        }
        return self._task.model_copy(update=changes).with_context_in_prompt().with_memory_in_prompt()

    def _fail(self, subtask: Subtask, outcome: SubtaskOutcome, problem: str) -> None:
        self._parts.reasons.append(f"subtask {subtask.id} {outcome}: {problem}")
        label = self._parts.told.get(_name(subtask), OPEN)
        done = told_of(self._parts.outcomes.get(_name(subtask), ()), label)
        self._end(subtask, outcome, f"{problem}\nIts tool calls stay done:\n{done}" if done else problem, label)

    def _leave_out(self, skipped: frozenset[str]) -> None:
        """Others have the turns of those that something failed before."""
        for identifier in skipped - self._left_out:
            self._shares.leave_out(self._weights[identifier])
        self._left_out |= skipped

    def _label(self, subtask: Subtask) -> Label:
        """Return the label of a subtask's input: the whole task, and the results that it is shown."""
        return join_labels((self._parts.label, *(self.results[need].label for need in subtask.needs)))

    def _end(self, subtask: Subtask, outcome: SubtaskOutcome, answer: str, label: Label) -> None:
        failed = outcome is not SubtaskOutcome.DONE
        self.results[subtask.id] = SubtaskResult(task=subtask.task, answer=answer, is_failed=failed, label=label)
        emit(self._parts.runtime, SubtaskEnded(id=subtask.id, outcome=outcome, answer=answer))


def answering_subtask(plan: SubtaskPlan, policy: SubtasksConfig) -> str | None:
    """Return the subtask whose answer is the task's: the one that all others lead to, unless the results are to be put together in any
    case."""
    return plan.sinks[0] if len(plan.sinks) == 1 and policy.aggregate == "when_needed" else None


def _name(subtask: Subtask) -> str:
    return f"subtask {subtask.id}"


def part_key(whole: str, name: str) -> str:
    """Return the idempotency key of a part of a task; empty: of the whole."""
    return sha256(f"{whole}/{name}".encode()).hexdigest() if name else whole


def part_policy(task: Task, *, turns: int) -> Policy:
    """Return the policy of a part: the task's, with the strategy that its parts are served by."""
    return task.policy.model_copy(update={"strategy": task.policy.subtasks.strategy, "maximum_turns": turns})


def _turns_used(final: Json) -> int:
    """Return the number of steps of the agent that took the most."""
    taken = Counter(call["agent"] for call in final["calls"] if call["role"] == "execute")
    return max(taken.values(), default=0)


def build_subtasks(nodes: "TaskNodes") -> TaskGraphBuilder:
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

    def __init__(self, nodes: "TaskNodes") -> None:
        self._nodes = nodes

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
            return None  # What this task names does not fit into JSON as it stands, so the plan is made again.

    async def run(self, state: TaskState, runtime: TaskRuntime) -> TaskState:
        """Run the subtasks; where one of them answers the task, or the task is served whole, that ends it."""
        work = SubtasksWork.model_validate(state["subtasks"])
        parts = self._parts(state, runtime)
        if work.plan is None:
            whole = parts.task.model_copy(update={"policy": part_policy(parts.task, turns=parts.task.policy.maximum_turns), "caller": None})
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
        question = Question(
            "aggregate",
            aggregate_request(task_text(task) + (json_answer_note(task.output_schema) if task.output_schema is not None else ""), results),
            partial(_read_answer, output_schema=task.output_schema, output_model=self._nodes.context(runtime).output_model),
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
        """Return the results side by side where the budget ended before the answer. Raises the error if they cannot be one."""
        calls = [value_of(Call, call) for call in state["calls"]]
        done = [result for result in results if not result.is_failed]
        worked = [call for call in calls if call.role == "execute" and call.error is None]
        if not done or not worked or state["task"]["output_schema"] is not None:
            raise error
        handle = self._nodes.pool[worked[-1].agent]
        attempt = attempt_with(handle, [call for call in worked if call.agent == handle.name], error, "the results of the subtasks stand")
        return Answered("\n\n".join(result.answer for result in done), (attempt,))

    def _parts(self, state: TaskState, runtime: TaskRuntime) -> RunningParts:
        task = value_of(Task, state["task"])
        context = self._nodes.context(runtime)
        return RunningParts(
            task=task,
            graph=self._nodes.part_graph(task.policy.subtasks.strategy, context.keeping),
            label=label_of(state),
            planned=value_of(Chosen, state["chosen"]),
            context=replace(context, turn_taking=anyio.Lock()) if task.policy.subtasks.exclusive_tools else context,
            agents=len(self._nodes.pool),
            log=CallLog(state, runtime),
            runtime=runtime,
        )


def _read_answer(reply: str, *, output_schema: JsonSchema | None, output_model: type[BaseModel] | None) -> str:
    if output_schema is not None:
        read_output(reply, output_schema, output_model)
    elif not reply.strip():
        raise InvalidOutput("it is empty")
    return reply
