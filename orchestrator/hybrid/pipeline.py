"""The way of a task through a `Hybrid`: prepare, route, serve, settle, record."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from ...protocols import ConfigError, DeadlineExceeded, NearfarError
from ..cache.plans import PlanCache
from ..routing.eligibility import unknown_prices
from ..strategies.durable import DurableRuns, Work, serve
from ..strategies.state import TaskContext, recursion_limit
from ..task.events import TaskEvent, TaskFinished
from ..task.results import Result
from ..task.task import Prompt, Task, scope_of, within_scope
from ..util.runtime import cancel_task, in_thread, run_cancellable
from .arguments import TaskOptions
from .preparation import Parts, Preparation
from .serving import billed, deadline, next_event, note_tool_calls, queued_events, result_of

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from ..strategies.graphs import Graphs

_logger = logging.getLogger(__name__)


class Pipeline:
    """Serves the tasks of one `Hybrid`.

    A task is prepared (policy, memory, rules, strategy), its graph routes and serves it, its costs are settled, and its result is recorded.
    """

    _has_begun = False
    """It has served a task."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._plans = _plan_cache(parts)
        self.preparation = Preparation(parts, self._plans)
        agents, runs = tuple(handle.name for handle in parts.pool), parts.records.runs
        self.runs = None if runs is None else DurableRuns(runs, agents, self.preparation.bounds)

    @property
    def durable(self) -> DurableRuns:
        """The durable runs. Raises `ConfigError` where none are kept."""
        if self.runs is None:
            raise ConfigError("no runs are kept", hint='in nearfar.toml: [runs]; in Python: Hybrid(records="records")')
        return self.runs

    @cached_property
    def graphs(self) -> "Graphs":
        """The graphs of the strategies, made when the first task is served: loading LangGraph takes longer than loading all the rest."""
        from ..strategies.graphs import Graphs

        parts = self._parts
        checkpointer = parts.records.checkpointer if self.runs is None else self.runs.checkpointer
        return Graphs(parts.pool, parts.tools, parts.router, checkpointer=checkpointer, store=parts.store)

    async def run(self, prompt: Prompt, options: TaskOptions) -> Result:
        """Serve a task and return its result."""
        async with self._begun(self.preparation.task(prompt, options), options) as (work, started):
            return await self._served(work, options, started)

    async def stream(self, prompt: Prompt, options: TaskOptions) -> AsyncGenerator[TaskEvent, None]:
        """Serve a task and yield its events; the last one is `TaskFinished`."""
        async with (
            self._begun(self.preparation.task(prompt, options), options) as (work, started),
            aclosing(self._streamed(work, options, started)) as events,
        ):
            async for event in events:
                yield event

    async def resume(self, run: str, options: TaskOptions, *, user: str, approvals: Mapping[str, bool]) -> Result:
        """Serve a durable run from where it stopped, and return its result."""
        await self._parts.pool.enter()
        if approvals:
            await self.durable.decide(run, user, approvals)
        self._begin()
        started = time.monotonic()
        with self._awake():
            async with self.durable.resume(run, user, partial(self.preparation.equip_again, options=options)) as work:
                return await self._served(work, options, started)

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
                if self._parts.memory is not None:
                    task = await anyio.to_thread.run_sync(self.preparation.recall, asked, options, abandon_on_cancel=True)
                return self.preparation.prepare(task, options)

        with self._awake():
            if self.runs is None:
                yield Work(*await prepare()), started
                return
            async with self.runs.begin(asked, prepare, partial(self.preparation.equip_again, options=options)) as work:
                yield work, started

    async def _served(self, work: Work, options: TaskOptions, started: float) -> Result:
        if work.recorded is not None:
            return work.recorded
        with deadline(work.task, started, work.context):
            state = await run_cancellable(self._serve(work, options))
        return await self._concluded(work, state, time.monotonic() - started)

    async def _streamed(self, work: Work, options: TaskOptions, started: float) -> AsyncGenerator[TaskEvent, None]:
        if work.recorded is not None:
            yield TaskFinished(result=work.recorded)
            return
        events: asyncio.Queue[TaskEvent | None] = asyncio.Queue()
        heard = replace(work, context=replace(work.context, listener=events.put_nowait))
        serving = asyncio.create_task(self._serve(heard, options))
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
        """Run the task's graph and return its final state."""
        task, context, parts = work.task, work.context, self._parts
        graph, config = self.graphs[task.policy.strategy], self._config(task, options)
        since = None if self._plans is None else await self._plans.clearings()
        agents = {handle.name: handle.side for handle in parts.pool}
        recorded = nullcontext() if context.trace is None else context.trace.record_run(task, agents)
        assert context.privacy is not None, "every task is prepared with it"
        with billed(task, context, parts.router), recorded, nullcontext() if parts.records.cache is None else within_scope(scope_of(task)):
            try:
                state = await (serve(work, graph, config) if self.runs is None else self.runs.serve(work, graph, config))
            except (NearfarError, asyncio.CancelledError):
                self.preparation.sessions.note(task, context.privacy.told_label)  # what was streamed by then may come back in the session
                with anyio.CancelScope(shield=True):  # A task that ran out of time is cancelled, and its plan is none to go by again.
                    await self._conclude_plan(task, context, None, since)
                raise
        await self._conclude_plan(task, context, context.privacy.fill_state(state, is_json=False), since)
        return state

    async def _conclude_plan(self, task: Task, context: TaskContext, state: dict[str, Any] | None, since: int | None) -> None:
        if self._plans is not None:
            await self._plans.conclude(task, context.tools, state, since=since)

    async def _concluded(self, work: Work, state: dict[str, Any], seconds: float) -> Result:
        """Return the result, and report it to the router, the memory, the trace and the store of runs."""
        task, context = work.task, work.context
        assert context.recollection is not None, "every task is prepared with one"
        assert context.privacy is not None, "and with this"
        state = context.privacy.fill_state(state, is_json=task.output_schema is not None)
        context.recollection.restore(state.get("recalled", ()))
        result = result_of(task, state, seconds)
        told = {"recalled": tuple(context.recollection.items), "label": result.label.joined(context.privacy.found)}
        result = result.model_copy(update=told)
        if context.trace is not None:
            context.trace.conclude(result)
        self._parts.router.conclude(task, result, tools=list(context.tools))
        self.preparation.sessions.note(task, result.label)
        if self._parts.memory is not None:
            result = await in_thread(self._parts.memory.conclude, task, result, state["messages"])
        result = result if self.runs is None else await self.runs.keep(work, result)
        await context.privacy.end()
        return result

    def _config(self, task: Task, options: TaskOptions) -> "RunnableConfig":
        config: RunnableConfig = {"recursion_limit": recursion_limit(task.policy, agents=len(self._parts.pool))}
        if self._parts.records.keeps_threads:
            config["configurable"] = {"thread_id": options.get("thread_id", task.idempotency_key)}
        return config


def _plan_cache(parts: Parts) -> PlanCache | None:
    cache = parts.records.cache
    return PlanCache(cache.database, cache.settings) if cache is not None and cache.settings.plans else None
