"""Running the subtasks of a plan: each is a task of its own, served through the graph of another strategy."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256

import anyio
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.errors import GraphInterrupt
from langgraph.types import Interrupt

from ...protocols import DeadlineExceeded, Message, NearfarError
from ...protocols.messages import Value
from ..budgets.account import Account
from ..budgets.book import Spent
from ..safety.privacy.run_privacy import PrivateResult
from ..task.events import (
    AgentText,
    AttemptEnded,
    AttemptStarted,
    CallEnded,
    Routed,
    Subtask,
    SubtaskEnded,
    SubtaskOutcome,
    SupervisorSpoke,
    TaskEvent,
    ToolFinished,
    ToolStarted,
)
from ..task.labels import OPEN, Chosen, Label, join_labels
from ..task.policy import Policy, SubtasksConfig
from ..task.results import Attempt, Call, ToolOutcome
from ..task.routing_policy import FALLBACK_ERRORS, AmountsConfig, LimitsConfig
from ..task.task import Task
from ..util.runtime import run_cancellable
from .calls import CallLog
from .context import TaskContext
from .runtime import TaskGraph, TaskRuntime, emit, show
from .state import Json, TaskState, recursion_limit, told_of
from .subtasks_plan import SubtaskPlan
from .subtasks_prompts import SubtaskResult, with_results
from .subtasks_schedule import Shares, run_as_ready

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
class Parts:
    """The parts of one task while they run."""

    task: Task
    graph: TaskGraph
    context: TaskContext
    label: Label
    """The label of the task's own input."""
    planned: Chosen
    """Tools that the plan names, where it was made before the run had read what strangers wrote."""
    agents: int
    """In the pool."""
    log: CallLog
    runtime: TaskRuntime
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
        context = replace(self.context, account=account, tool_checks=tool_checks, listener=listener, trace=trace, outcomes=outcomes)
        config: RunnableConfig = {"recursion_limit": recursion_limit(part.policy, agents=self.agents), "configurable": _KEEPS_NOTHING}
        given: TaskState = {"task": part.model_dump(mode="json")}
        if context.keeping is not None:
            return await self._gone_on_with(given, {**config, "configurable": context.keeping.thread(name)}, context, name)
        final: Json = await self.graph.ainvoke(given, config, context=context)
        return final

    async def _gone_on_with(self, given: TaskState, config: RunnableConfig, context: TaskContext, name: str) -> Json:
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
            context.privacy.saw_in(messages, [PrivateResult.model_validate(result) for result in kept.get("private", ())])

    def _pass_on(self, event: TaskEvent, *, is_heard: bool, name: str) -> None:
        if isinstance(event, ToolStarted) and (tool := self.context.tools.get(event.call.name)) is not None:
            self.told[name] = self.told.get(name, OPEN).joined(tool.declared.label(tool.name))
        if isinstance(event, ToolFinished) and (tool := self.context.tools.get(event.result.name)) is not None:
            self.told[name] = self.told.get(name, OPEN).joined(tool.label_of(event.result))
        if isinstance(event, Routed) or (isinstance(event, _ANSWERING) and not is_heard):
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

    def __init__(self, plan: SubtaskPlan, parts: Parts) -> None:
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
            "label": self._label(subtask),
            "planned": self._parts.planned,
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
