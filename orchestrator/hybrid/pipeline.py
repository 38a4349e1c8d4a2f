"""The way of a task through a `Hybrid`: prepare, route, serve, settle, record."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
from pydantic import BaseModel

from ...protocols import (
    ConfigError,
    DeadlineExceeded,
    InternalError,
    InvalidOutput,
    InvalidRequest,
    Message,
    NearfarError,
    Side,
    StoreError,
)
from ..agents import AgentPool
from ..routing import Router
from ..routing.eligibility import unknown_prices
from ..runs.sessions import SessionStore
from ..strategies.durable import DurableRuns, Work
from ..strategies.state import TaskContext, graph_input, recursion_limit, said_since, timed, value_of
from ..strategies.tool_calls import told_of
from ..task import Prompt, Task, read_output, scope_of, within_scope
from ..task.decisions import RouteDecision
from ..task.events import CallerTools, TaskEvent, TaskFinished
from ..task.labels import OPEN, Label
from ..task.modes import Strategy
from ..task.policy import Policy, Verdict
from ..task.results import Attempt, Call, Result, Speculation, ToolOutcome, budget_exceeded, told_of_effort, usage_of_side
from ..task.roles import RolesWork
from ..util.plugins import find_plugin
from ..util.runtime import TasksUnderWay, cancel_task, in_thread, run_cancellable, untraced
from .arguments import TaskOptions, output_model_of, output_schema_of
from .parts import Parts, plan_cache
from .preparation import Preparation

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from ..strategies.calls import TaskGraph
    from ..strategies.graphs import Graphs


@contextmanager
def deadline(task: Task, started: float, context: TaskContext | None = None) -> Iterator[None]:
    """Enforce the task's time limit as a `DeadlineExceeded`, with a note about the tool calls in the context."""
    if task.timeout is None:
        yield
        return
    with anyio.move_on_after(task.timeout - (time.monotonic() - started)) as scope:
        yield
    if scope.cancelled_caught:
        error = DeadlineExceeded(f"the task took longer than its {task.timeout:g} s", hint="raise its timeout")
        if context is not None:
            note_tool_calls(error, context)
        raise error


@contextmanager
def billed(task: Task, context: TaskContext, router: Router) -> Iterator[None]:
    """Tell the router in the end what the task has cost, also if it failed or was abandoned."""
    account = context.account
    assert account is not None, "every task is prepared with one"
    before = account.spent.dollars
    try:
        yield
    finally:
        after = account.spent.dollars
        bill = None if before is None or after is None else max(after - before, 0.0)
        router.settle(task, account.commitments, bill)
        account.commitments.clear()


def naming_plugin(task: Task) -> AbstractContextManager[None]:
    """Raise `ConfigError` that names the plugin for whatever the graph of a plugin raises within the block."""
    name = task.policy.strategy
    return nullcontext() if name in _OWN_STRATEGIES else find_plugin("strategies", name).blamed("has failed")


def observed(work: Work) -> AbstractContextManager[None]:
    """Let the observers of the work know in the end that it has ended, whatever became of it."""
    trace = work.context.trace
    return nullcontext() if trace is None else trace.observed_to_its_end()


def note_tool_calls(error: NearfarError, context: TaskContext) -> None:
    """Let the error tell which tool calls stay done."""
    if done := told_of(context.outcomes or (), OPEN):
        error.add_note(f"its tool calls stay done:\n{done}")


async def next_event(events: "asyncio.Queue[TaskEvent | None]", task: Task, started: float) -> TaskEvent | None:
    """Return the next event; None at the end. The limit is around each wait, since a cancel scope must not be left open by a yield."""
    if not events.empty():
        return events.get_nowait()
    with deadline(task, started):
        event = await events.get()
    return event  # noqa: RET504 - inside of the block, mypy would miss a return behind it


def queued_events(events: "asyncio.Queue[TaskEvent | None]") -> Iterator[TaskEvent]:
    """Yield the events that are queued already."""
    while not events.empty():
        event = events.get_nowait()
        if event is not None:
            yield event


def result_of(task: Task, state: dict[str, Any], seconds: float, model: type[BaseModel] | None = None) -> Result:
    """Return the result that the final state of a task's graph stands for. `model`: of its output."""
    attempts = tuple(value_of(Attempt, attempt) for attempt in state.get("attempts", ()))
    accepted = next((attempt for attempt in attempts if attempt.outcome == "accepted"), None)
    if accepted is None:
        raise InternalError(f"strategy {task.policy.strategy} has ended without an answer", hint="its graph must end behind `judge`")
    calls = tuple(value_of(Call, call) for call in state["calls"])
    text, has_calls = state["messages"][-1]["text"], bool(state["messages"][-1]["tool_calls"])
    effort = told_of_effort(task.policy.effort, calls)
    given_up = [f"{attempt.agent} {attempt.outcome}: {attempt.reason}" for attempt in attempts]
    decision = value_of(RouteDecision, state["decision"])
    doubt = _doubt(task.policy, decision.strategy if task.role else task.policy.strategy, accepted)
    return Result(
        id=task.idempotency_key,
        user=task.user,
        text=text,
        output=None if task.output_schema is None or has_calls else read_output(text, task.output_schema, model),
        agent=accepted.agent,
        side=accepted.side,
        model=accepted.model or accepted.agent,
        served_on_device=accepted.side is Side.NEAR,
        was_fallback=accepted != attempts[0],
        attempts=attempts,
        calls=calls,
        tool_calls=tuple(value_of(ToolOutcome, outcome) for outcome in state["tool_calls"]),
        budget_exceeded=budget_exceeded(attempts, calls),
        interventions=sum(call.verdict is Verdict.INTERVENE and not call.shadow for call in calls),
        decision=decision,
        selection=task.selection,
        speculation=value_of(Speculation, state["speculation"]) if "speculation" in state else None,
        roles=value_of(RolesWork, state["roles"]).done if "roles" in state else (),
        reasons=(*decision.reasons, *state["reasons"], *effort, *given_up, *([] if doubt is None else [doubt])),
        label=value_of(Label, state["label"]),
        confidence=accepted.confidence,
        low_confidence=doubt is not None,
        near=usage_of_side(calls, Side.NEAR),
        far=usage_of_side(calls, Side.FAR),
        seconds=seconds,
    )


def conversation_of(task: Task, state: dict[str, Any], *, has_placeholders: bool) -> tuple[Message, ...]:
    """Return the conversation from the task's prompt to its answer, as its user may read it.

    Encrypted thoughts of a provider go where placeholders were filled in: they may have the placeholders' names in them.
    """
    made = [value_of(Message, message) for message in said_since(state["messages"], len(task.messages))]
    return (*task.asked, *(message.without_state if has_placeholders else message for message in made))


def require_dependencies(context: TaskContext) -> TaskContext:
    """Return the context. Raises `InvalidRequest` if one of its tools needs dependencies and the task was given none."""
    needing = [] if context.caller.dependencies is not None else [tool.name for tool in context.tools.values() if tool.needs_dependencies]
    if needing:
        hint = "run(..., dependencies=...); they are kept nowhere, so a run is resumed with them again"
        raise InvalidRequest(f"tool {needing[0]!r} needs dependencies, and none are given", hint=hint)
    return context


def _doubt(policy: Policy, strategy: Strategy, accepted: Attempt) -> str | None:
    """Return why an answer is less sure than its cascade wants; None where it is sure enough, or no confidence is known."""
    found, wanted = accepted.confidence, policy.minimum_confidence
    if strategy is not Strategy.CASCADE or found is None or found >= wanted:
        return None
    return f"{accepted.agent}: confidence {found:.2f} is below {wanted:.2f}, and stands because no other agent may be asked, or did better"


_logger = logging.getLogger(__name__)
_OWN_STRATEGIES: Final = frozenset(Strategy)
_STOPPED = "This turn was stopped before it was answered. Its tool calls stay done:"


class Pipeline:
    """Serves the tasks of one `Hybrid`.

    A task is prepared (policy, memory, rules, strategy), its graph routes and serves it, its costs are settled, and its result is recorded.
    """

    _has_begun = False
    """It has served a task."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._plans = plan_cache(parts)
        self.preparation = Preparation(parts, self._plans)
        agents, runs = tuple(handle.name for handle in parts.pool), parts.records.runs
        self.runs = None if runs is None else DurableRuns(runs, agents, self.preparation.bounds)
        self.sessions = None if runs is None else SessionStore(runs)
        self.under_way = TasksUnderWay()
        self.stopped: dict[str, tuple[Message, ...]] = {}
        """By run: the conversation to keep of turns that ended without an answer, until their session takes it; empty with a store."""

    @property
    def durable(self) -> DurableRuns:
        """The durable runs. Raises `ConfigError` where none are kept."""
        if self.runs is None:
            raise ConfigError("no runs are kept", hint='in nearfar.toml: [runs]; in Python: Hybrid(records="records")')
        return self.runs

    @property
    def pool(self) -> AgentPool:
        """The agents."""
        return self._parts.pool

    @cached_property
    def graphs(self) -> "Graphs":
        """The graphs of the strategies, made when the first task is served: loading LangGraph takes longer than loading all the rest."""
        from ..strategies.graphs import Graphs

        parts = self._parts
        checkpointer = parts.records.checkpointer if self.runs is None else self.runs.checkpointer
        return Graphs(
            parts.pool,
            parts.tools,
            parts.router,
            instructions=parts.instructions,
            team=parts.team,
            checkpointer=checkpointer,
            store=parts.store,
        )

    async def run(self, prompt: Prompt, options: TaskOptions, *, turn: int | None = None, caller: CallerTools | None = None) -> Result:
        """Serve a task and return its result.

        Args:
            prompt: of the task.
            options: of the task.
            turn: number of its last messages that are the prompt of a session's turn.
            caller: the tools that the caller runs; calls of them end the task. None: it is no turn of that kind.
        """
        with self.under_way.awaited():
            async with self._begun(await self._asked(prompt, options, turn, caller), options) as (work, started):
                return await self._served(work, options, started)

    async def stream(
        self, prompt: Prompt, options: TaskOptions, *, turn: int | None = None, caller: CallerTools | None = None
    ) -> AsyncGenerator[TaskEvent, None]:
        """Serve a task and yield its events; the last one is `TaskFinished`. The arguments are those of `run`."""
        async with (
            self._begun(await self._asked(prompt, options, turn, caller), options) as (work, started),
            aclosing(self._streamed(work, options, started)) as events,
        ):
            async for event in events:
                yield event

    async def foresee(self, prompt: Prompt, options: TaskOptions, *, caller: CallerTools) -> tuple[Task, RouteDecision, TaskContext]:
        """Return a turn as it would be served now, and the decision about it. Nothing is run. Raises what `run` raises before it begins."""
        await self._parts.pool.enter()
        self._begin()
        asked = await self._asked(prompt, options, None, caller)
        task, context = self.preparation.prepare(await in_thread(self.preparation.recall, asked, options), options)
        task = task.with_memory_in_prompt()
        return task, self._parts.router.explain(task, list(self.pool), tools=list(context.tools)), context

    async def resume(self, run: str, options: TaskOptions, *, user: str, approvals: Mapping[str, bool]) -> Result:
        """Serve a durable run from where it stopped, and return its result."""
        with self.under_way.awaited():
            async with self._resumed(run, options, user, approvals) as (work, started):
                return await self._served(work, options, started)

    async def follow(self, run: str, options: TaskOptions, *, user: str, approvals: Mapping[str, bool]) -> AsyncGenerator[TaskEvent, None]:
        """Serve a durable run from where it stopped, and yield its events; the last one is `TaskFinished`."""
        async with (
            self._resumed(run, options, user, approvals) as (work, started),
            aclosing(self._streamed(work, options, started)) as events,
        ):
            async for event in events:
                yield event

    @asynccontextmanager
    async def _resumed(self, run: str, options: TaskOptions, user: str, approvals: Mapping[str, bool]) -> AsyncIterator[tuple[Work, float]]:
        """Yield what is left to do of a run, and the time at which the caller asked for it."""
        await self._parts.pool.enter()
        if approvals:
            await self.durable.decide(run, user, approvals)
        self._begin()
        started = time.monotonic()
        with self.under_way.told(), self._awake():
            async with self.durable.resume(run, user, partial(self._equip_again, options=options)) as work:
                with observed(work):
                    yield work, started

    async def asks_for(self, run: str, output: object) -> bool:
        """Return whether a durable run was begun with this `output`, or one of the same JSON Schema."""
        kept = await in_thread(self.durable.store.task, run)
        return kept.task.output_schema == output_schema_of(output)

    def forget_session(self, session: str, user: str) -> None:
        """Forget what this process knows of a session: its label, the texts that left last, and the agent that answered last."""
        self.preparation.sessions.forget(session, user)
        self._parts.router.sessions.forget(session, user=user)

    async def _asked(self, prompt: Prompt, options: TaskOptions, turn: int | None, caller: CallerTools | None) -> Task:
        """Return the task as the user put it, with the label of its session, which another process may have added to."""
        task = self.preparation.task(prompt, options, caller)
        if self.sessions is not None and task.session is not None:
            label = await in_thread(self.sessions.label, task.session, task.user)
            self.preparation.sessions.add(task.session, task.user, label)
            task = self.preparation.sessions.apply(task)
        return task if turn is None else task.model_copy(update={"turn": turn})

    async def _note_label(self, task: Task, label: Label) -> None:
        """Record the label with which a task of a session has ended, so that it holds for later tasks in any process."""
        if self.preparation.sessions.note(task, label) and self.sessions is not None and task.turn is not None:
            await in_thread(self.sessions.note, task.idempotency_key, label)

    async def _note_stopped(self, task: Task, context: TaskContext) -> None:
        """Record what a task of a session leaves behind that ends without an answer: its label, and the tool calls that stay done."""
        assert context.privacy is not None, "every task is prepared with it"
        label = context.privacy.told_label  # what was streamed by then may come back in the session
        done = told_of(context.outcomes or (), label)
        if task.turn is not None and done:
            stopped = Message.assistant(f"{_STOPPED}\n{context.privacy.placeholders.fill_for_display(done)}")
            conversation = (*task.asked, stopped)
            if self.sessions is None:
                self.stopped[task.idempotency_key] = conversation
            else:
                await in_thread(self.sessions.stop, task.idempotency_key, conversation)
        await self._note_label(task, label)

    def _begin(self) -> None:
        """Prepare the first task before its clock runs: load LangGraph, and warn of agents without known prices."""
        if self._has_begun:
            return
        self._has_begun = True
        assert self.graphs is not None
        for finding in unknown_prices(self._parts.policy(), {each.name: each.model for each in self._parts.pool if each.is_unpriced}):
            _logger.warning("%s", finding)

    def _awake(self) -> AbstractContextManager[None]:
        """Keep the memory's consolidation off while a task is served."""
        return nullcontext() if self._parts.rest is None else self._parts.rest.awake()

    @asynccontextmanager
    async def _begun(self, asked: Task, options: TaskOptions) -> AsyncIterator[tuple[Work, float]]:
        """Yield the work to be done, and the time at which the caller asked for it."""
        await self._parts.pool.enter()
        self._begin()
        started = time.monotonic()

        async def prepare() -> tuple[Task, TaskContext]:
            with deadline(asked, started):
                task = asked
                reading = time.monotonic()
                if self._parts.memory is not None:
                    task = await anyio.to_thread.run_sync(self.preparation.recall, asked, options, abandon_on_cancel=True)
                read = time.monotonic() - reading
                task, context = self.preparation.prepare(task, options)
                if context.trace is not None and self._parts.memory is not None:
                    context.trace.recalled(read, len(task.recalled))
                return task, require_dependencies(context)

        with self.under_way.told(), self._awake():
            if self.runs is None:
                work = Work(*await prepare())
                with observed(work):
                    yield work, started
                return
            async with self.runs.begin(asked, prepare, partial(self._equip_again, options=options)) as work:
                with observed(work):
                    yield work, started

    def _equip_again(self, task: Task, options: TaskOptions) -> TaskContext:
        """Return the context of a resumed task. Raises `InvalidRequest` for another output than the task's, or lacking dependencies."""
        model = output_model_of(options.get("output"))
        if model is not None and output_schema_of(model) != task.output_schema:
            hint = "resume it with the model that it was begun with"
            raise InvalidRequest(f"run {task.idempotency_key} was begun with another output than {model.__name__}", hint=hint)
        return require_dependencies(self.preparation.equip_again(task, options=options))

    async def _served(self, work: Work, options: TaskOptions, started: float) -> Result:
        if work.recorded is not None:
            return work.recorded_with(output_model_of(options.get("output")))
        with deadline(work.task, started, work.context):
            served = replace(work, context=timed(work.context, work.task, started))
            state = await run_cancellable(self.under_way.serve(partial(self._serve, served, options)))
        return await self._concluded(work, state, time.monotonic() - started)

    async def _streamed(self, work: Work, options: TaskOptions, started: float) -> AsyncGenerator[TaskEvent, None]:
        if work.recorded is not None:
            yield TaskFinished(result=work.recorded_with(output_model_of(options.get("output"))))
            return
        events: asyncio.Queue[TaskEvent | None] = asyncio.Queue()
        context = replace(timed(work.context, work.task, started), listener=events.put_nowait, holds_drafts=work.task.caller is not None)
        heard = replace(work, context=context)
        serving = asyncio.create_task(self.under_way.serve(partial(self._serve, heard, options)))
        serving.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await next_event(events, work.task, started)) is not None:
                yield event
        except DeadlineExceeded as error:
            await cancel_task(serving)
            note_tool_calls(error, work.context)
            for late in queued_events(events):  # what the step that was under way has cost
                yield late
            raise
        finally:
            await cancel_task(serving)
        yield TaskFinished(result=await self._concluded(work, serving.result(), time.monotonic() - started))

    async def _serve(self, work: Work, options: TaskOptions) -> dict[str, Any]:
        """Run the task's graph and return its final state. What ran ahead of it has ended by then."""
        if work.task.policy.strategy is not Strategy.SPECULATE and not work.task.role:  # each role has a strategy of its own
            return await self._finished(work, options)
        from ..strategies.speculation import LookAhead

        ahead = LookAhead()
        checks = replace(work.context.tool_checks, kept=ahead.kept)
        try:
            return await self._finished(replace(work, context=replace(work.context, ahead=ahead, tool_checks=checks)), options)
        finally:
            await ahead.aclose()

    async def _finished(self, work: Work, options: TaskOptions) -> dict[str, Any]:
        task, context, parts = work.task, work.context, self._parts
        graph, config = self.graphs.of_task(task), self._config(task, options)
        since = None if self._plans is None else await self._plans.clearings()
        agents = {handle.name: handle.side for handle in parts.pool}
        recorded = nullcontext() if context.trace is None else context.trace.record_run(task, agents)
        assert context.privacy is not None, "every task is prepared with it"
        with billed(task, context, parts.router), recorded, nullcontext() if parts.records.cache is None else within_scope(scope_of(task)):
            try:
                with naming_plugin(task):
                    state = await (_final_state(work, graph, config) if self.runs is None else self.runs.serve(work, graph, config))
            except (NearfarError, asyncio.CancelledError) as error:
                if isinstance(error, InvalidOutput):
                    error.text = context.privacy.placeholders.fill_for_display(error.text)
                with anyio.CancelScope(shield=True):  # A task that ran out of time is cancelled, and its plan is none to go by again.
                    with suppress(StoreError):  # this process knows it all the same, and the error of the task is the one to raise
                        await self._note_stopped(task, context)
                    await self._conclude_plan(task, context, None, since)
                raise
        await self._conclude_plan(task, context, context.privacy.fill_state(state, is_json=False), since)
        return state

    async def _conclude_plan(self, task: Task, context: TaskContext, state: dict[str, Any] | None, since: int | None) -> None:
        if self._plans is not None and not task.role:
            await self._plans.conclude(task, context.tools, state, since=since)

    async def _concluded(self, work: Work, state: dict[str, Any], seconds: float) -> Result:
        """Return the result, and report it to the router, the memory, the trace and the store of runs."""
        task, context = work.task, work.context
        assert context.recollection is not None, "every task is prepared with one"
        assert context.privacy is not None, "and with this"
        has_placeholders = bool(len(context.privacy.placeholders))
        state = context.privacy.fill_state(state, is_json=task.output_schema is not None)
        context.recollection.restore(state.get("recalled", ()))
        result = result_of(task, state, seconds, context.output_model)
        told = {"recalled": tuple(context.recollection.items), "label": result.label.joined(context.privacy.found)}
        result = result.model_copy(update={**told, "messages": conversation_of(task, state, has_placeholders=has_placeholders)})
        if context.trace is not None:
            context.trace.conclude(result)
        self._parts.router.conclude(task, result, tools=context.specs)
        await self._note_label(task, result.label)
        if self._parts.memory is not None and not state["messages"][-1]["tool_calls"]:  # else the exchange goes on
            result = await in_thread(self._parts.memory.conclude, task, result, state["messages"])
        result = result if self.runs is None else await self.runs.keep(work, result)
        await context.privacy.end()
        return result

    def _config(self, task: Task, options: TaskOptions) -> "RunnableConfig":
        config: RunnableConfig = {"recursion_limit": recursion_limit(task.policy, agents=len(self._parts.pool))}
        if self._parts.records.keeps_threads:
            config["configurable"] = {"thread_id": options.get("thread_id", task.idempotency_key)}
        return config


async def _final_state(work: Work, graph: "TaskGraph", config: "RunnableConfig") -> dict[str, Any]:
    """Return the final state of the graph of a task that is no durable run."""
    state: dict[str, Any] = {}
    # `ainvoke` also looks for interrupts after each node, which costs a tenth of a task; only a durable run is interrupted.
    with untraced():
        async for each in graph.astream(graph_input(work.task), config, context=work.context, stream_mode="values"):
            state = each
    return state
