"""`Hybrid`: the near and the far agent, the tools and the policy behind one `run`."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, aclosing, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

import anyio
import anyio.to_thread

from ...protocols import (
    Agent,
    ConfigError,
    DeadlineExceeded,
    DeviceStateSource,
    InvalidRequest,
    NearfarError,
)
from ..agents.pool import AgentPool
from ..budgets.book import BudgetBook, open_budgets
from ..cache.agent import put_in_front
from ..cache.answers import AnswerCache
from ..cache.database import ErasedMemory
from ..cache.plans import PlanCache
from ..compose.agents import FarConfig, NearConfig, read_device_state
from ..compose.config import Config, load_config
from ..compose.hub import AttachedConfig
from ..compose.memory import memory_rest, task_memory
from ..compose.policy_file import PolicyFile
from ..routing.eligibility import unknown_prices
from ..routing.router import Router
from ..runs.erased import ErasedRuns
from ..runs.opening import beside
from ..runs.store import RunStore
from ..safety.privacy.records import PrivacyRecords
from ..strategies.durable import DurableRuns, Work, open_runs, serve
from ..strategies.state import TaskContext, recursion_limit
from ..task.approvals import Approver
from ..task.auto_decision import SelectionDecision
from ..task.conversation import Prompt
from ..task.events import TaskEvent, TaskFinished
from ..task.modes import Strategy
from ..task.results import Result
from ..task.route_decision import RouteDecision
from ..task.scope import scope, scope_of
from ..task.sections.cache import CacheConfig
from ..task.sections.memory import MemoryConfig
from ..task.sections.runs import RunsConfig
from ..task.task import Policy, Task
from ..task.tools import Tool
from ..tracing.store import TraceStore, traces_if_usable
from ..util.arguments import Location, as_path
from ..util.cancellation import cancelled_at_once, end
from ..util.threads import in_thread
from .arguments import (
    ResumeOptions,
    TaskOptions,
    agent_handles,
    cache_argument,
    check_approver,
    check_given_once,
    check_helpers,
    kept_argument,
    memory_argument,
    policy_argument,
    require_run,
    require_usable_policy,
    tools_argument,
)
from .preparation import Preparation
from .serving import billed, deadline, next_event, note_tool_calls, queued_events, result_of

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.store.base import BaseStore
    from langgraph.types import Checkpointer

    from ..memory.in_tasks import TaskMemory
    from ..memory.store import MemoryStore
    from ..strategies.calls import TaskGraph
    from ..strategies.graphs import Graphs

_logger = logging.getLogger(__name__)


class Hybrid:
    """A near and a far agent that serve tasks together.

    Use it as an async context manager: it closes the agents, models and gateway processes that it opened, and leaves open those that were
    passed in. Everything is opened on first use, so a task that stays on the device needs no key and no network. It works in one event loop
    at a time: when the next loop begins, it opens its agents again. Raises `ConfigError` at once if a second loop uses it while the first
    is not closed.

    Args:
        near: the model on this device: a GGUF file, `"near"` (the small one that ships with nearfar), a `NearConfig`, or any `Agent`.
            A mapping is a section of nearfar.toml, here and for the other arguments that have one.
        far: the model in the cloud: `"openai:MODEL"`, `"anthropic:MODEL"`, `"gemini:MODEL"`, `"gateway:HOST:PORT"`, a GGUF file or
            `"far"` (served by a local gateway process), a `FarConfig`, or any `Agent`.
        others: further agents of either side, by the names that the policy uses for them: the router chooses among all.
        tools: the tools that the agents may call.
        approver: decides about calls that need approval; None: they are refused, or a durable run waits for a decision.
        policy: the default policy of tasks. A `PolicyFile` may be edited while tasks run: each is served to its end under the policy that
            it began with.
        device_state: reads the state of the device, for rules about its battery and the like; None: that of this machine.
        cache: stores answers and, if so configured, plans: a `[cache]` section, the path of a file, or a cache that the caller opens and
            closes.
        memory: the memory that tasks recall from: a `MemoryStore`, for recalling only, a `TaskMemory`, which says more, or a
            `MemoryConfig` or a path, whose store is opened here and closed with the `Hybrid`. It is LangGraph's store, too.
        runs: makes every task a durable run, which another process can resume: a `[runs]` section, a folder, or a `RunStore` that the
            caller opens and closes.
        budgets: the book of spent amounts; None: a book in the folder or database of `[runs]`, else in this process alone.
        privacy: records of what left the device in each run, and of its placeholders until it ends; None: with the runs of `[runs]`.
        traces: records of what happened in each run; None: with the runs of `[runs]`.
        checkpointer, store: passed to LangGraph's `compile`.

    Raises `ConfigError` that names the parameter for an argument of another type.
    """

    _has_begun = False
    """It has served a task."""

    def __init__(
        self,
        *,
        near: Agent | NearConfig | Mapping[str, Any] | str | Path | None = None,
        far: Agent | FarConfig | Mapping[str, Any] | str | Path | None = None,
        others: Mapping[str, Agent | NearConfig | FarConfig | AttachedConfig] | None = None,
        tools: Sequence[Tool] = (),
        approver: Approver | None = None,
        policy: Policy | PolicyFile | Mapping[str, Any] | None = None,
        device_state: DeviceStateSource | None = None,
        cache: AnswerCache | CacheConfig | Mapping[str, Any] | Location | None = None,
        memory: "MemoryStore | TaskMemory | MemoryConfig | Mapping[str, Any] | Location | None" = None,
        runs: RunStore | RunsConfig | Mapping[str, Any] | Location | None = None,
        budgets: BudgetBook | RunsConfig | Mapping[str, Any] | Location | None = None,
        privacy: PrivacyRecords | RunsConfig | Mapping[str, Any] | Location | None = None,
        traces: TraceStore | RunsConfig | Mapping[str, Any] | Location | None = None,
        checkpointer: "Checkpointer" = None,
        store: "BaseStore | None" = None,
    ) -> None:
        check_helpers(approver=approver, device_state=device_state, checkpointer=checkpointer, store=store)
        check_given_once(memory, store, runs, checkpointer)
        self._policy = policy = policy_argument(policy)
        cache, memory = cache_argument(cache), memory_argument(memory)
        runs = kept_argument("runs", runs, RunStore)
        privacy, traces = kept_argument("privacy", privacy, PrivacyRecords), kept_argument("traces", traces, TraceStore)
        self.pool = AgentPool(tuple(agent_handles(near, far, others)))
        self._owned_cache = AnswerCache(cache) if isinstance(cache, CacheConfig) else None
        self._cache = cache if isinstance(cache, AnswerCache) else self._owned_cache
        if self._cache is not None:
            put_in_front(self.pool, self._cache)
        agents = {handle.name: handle.side for handle in self.pool}
        require_usable_policy(policy, agents)
        self._memory = task_memory(memory)
        self._owns_memory = isinstance(memory, (MemoryConfig, str, PathLike))
        self._listening = ExitStack()
        self._tools = tools_argument((*tools_argument(tools), *(() if self._memory is None else self._memory.tools)))
        self._plans = PlanCache(self._cache.database, self._cache.settings) if self._cache and self._cache.settings.plans else None
        self._approver = approver
        self._has_checkpointer = checkpointer is not None
        device_state = device_state or read_device_state
        with ExitStack() as failing:
            failing.callback(self._listening.close)
            book = beside(runs, kept_argument("budgets", budgets, BudgetBook), open_budgets, self._listening)
            self._privacy = beside(runs, privacy, lambda config: PrivacyRecords(config.folder, keep=config.keep), self._listening)
            self._traces = beside(runs, traces, traces_if_usable, self._listening)
            self._router = Router(device_state=device_state, paces=self.pool.pace, health=self.pool.health, budgets=book)
            self._preparation = self._make_preparation(approver)
            self._runs = None if runs is None else open_runs(runs, self._listening, tuple(agents), self._preparation.bounds)
            if self._memory is not None:
                self._preparation.erased_memory = ErasedMemory(self._cache, self._memory.store) if self._cache else None
                self._preparation.erased_runs = self._hear_of_erasures(self._memory.store, self._preparation.erased_memory)
            failing.pop_all()
        self._rest = None if self._memory is None else memory_rest(self._memory, self.pool, device_state)
        self._move_with_the_loop()
        self._store = store if self._memory is None else self._memory.store
        if self._runs is not None and self._traces is not None and isinstance(runs, RunsConfig):
            self._runs.store.forgetting.append(self._traces.forget_all)  # behind what is still to be written
        self._checkpointer = checkpointer

    def _make_preparation(self, approver: Approver | None) -> Preparation:
        return Preparation(
            self.pool,
            self._router,
            lambda: self.policy,
            tools=self._tools,
            approver=approver,
            memory=self._memory,
            plans=self._plans,
            privacy=self._privacy,
            traces=self._traces,
            has_checkpointer=self._has_checkpointer,
        )

    def _hear_of_erasures(self, memory: "MemoryStore", erased_memory: ErasedMemory | None) -> ErasedRuns | None:
        """Erase from cache, runs and traces what is erased from the memory from now on."""
        if erased_memory is not None:
            self._listening.enter_context(memory.erasing.calling(erased_memory.forget))
        if self._runs is None and self._traces is None:
            return None
        erased_runs = ErasedRuns(memory, None if self._runs is None else self._runs.store, self._traces)
        self._listening.enter_context(memory.erasing.calling(erased_runs.forget))
        return erased_runs

    def _move_with_the_loop(self) -> None:
        """Reset the memory's consolidation and the runs when the event loop that they wait in is replaced."""
        if self._rest is not None:
            self.pool.home.forgetting.append(self._rest.move)
        if self._runs is not None:
            self.pool.home.forgetting.append(self._runs.forget)

    @classmethod
    def from_config(
        cls,
        config: Config | str | Path = "nearfar.toml",
        *,
        tools: Sequence[Tool] = (),
        approver: Approver | None = None,
        checkpointer: "Checkpointer" = None,
        store: "BaseStore | None" = None,
    ) -> Self:
        """Create a `Hybrid` from a `nearfar.toml`. Its policy is read again when the file changes; a `store` replaces its memory.

        Raises `ConfigError` with key and line.
        """
        policy: Policy | PolicyFile
        if isinstance(config, Config):
            loaded, policy = config, config.policy
        else:
            path = as_path("config", config, otherwise="a Config")
            loaded = load_config(path)
            policy = PolicyFile(path, loaded.agents)
        agents: dict[str, Any] = {"near": loaded.near, "far": loaded.far, "others": loaded.others}
        memory = loaded.memory if store is None else None
        kept = dict.fromkeys(("runs", "budgets", "privacy", "traces"), loaded.runs)
        parts: dict[str, Any] = {"cache": loaded.cache, "memory": memory, **kept, "policy": policy}
        return cls(**agents, **parts, tools=tools, approver=approver, checkpointer=checkpointer, store=store)

    async def __aenter__(self) -> Self:
        await self.pool.home.enter()
        if self._rest is not None:
            self._rest.begin()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the agents that were opened; shielded, so that Ctrl-C leaves no process behind."""
        await self.pool.home.enter()
        with anyio.CancelScope(shield=True):
            if self._rest is not None:
                await self._rest.end()
            await self.pool.aclose()
            self._listening.close()
            if self._owned_cache is not None:
                await anyio.to_thread.run_sync(self._owned_cache.close)
            if self._memory is not None and self._owns_memory:
                await anyio.to_thread.run_sync(self._memory.store.close)

    @property
    def policy(self) -> Policy:
        """How tasks that start now are served unless they say otherwise."""
        return self._policy.current if isinstance(self._policy, PolicyFile) else self._policy

    def _begin(self) -> None:
        """Prepare the first task before its clock runs: load LangGraph, and warn of agents without known prices."""
        if self._has_begun:
            return
        self._has_begun = True
        assert self._graphs is not None
        for finding in unknown_prices(self.policy, {handle.name: handle.model for handle in self.pool if handle.is_unpriced}):
            _logger.warning("%s", finding)

    @cached_property
    def _graphs(self) -> "Graphs":
        """Made when the first task is served: loading LangGraph takes longer than loading all the rest."""
        from ..strategies.graphs import Graphs

        checkpointer = self._checkpointer if self._runs is None else self._runs.checkpointer
        return Graphs(self.pool, self._tools, self._router, checkpointer=checkpointer, store=self._store)

    @property
    def graph(self) -> "TaskGraph":
        """The graph of the policy's strategy; see `graph_of`."""
        return self.graph_of(self.policy.strategy)

    def graph_of(self, strategy: Strategy | str) -> "TaskGraph":
        """Return the compiled LangGraph graph of a strategy; its input is `{"task": Task(...).model_dump(mode="json")}`.

        Raises `ConfigError` for `auto`, which chooses among the others for each task, and `InvalidRequest` for an unknown name.
        """
        try:
            known = Strategy(strategy)
        except ValueError:
            raise InvalidRequest(f"there is no strategy {strategy!r}", hint=f"the strategies are {', '.join(Strategy)}") from None
        return self._graphs[known]

    async def run(self, prompt: Prompt, **options: Unpack[TaskOptions]) -> Result:
        """Serve one task and return its outcome.

        Raises the `NearfarError` of the last agent tried, `DeadlineExceeded` after `timeout` seconds, `InvalidRequest` for options
        that contradict each other.
        """
        async with self._begun(self._preparation.task(prompt, options), options) as (work, started):
            return await self._served(work, options, started)

    async def resume(
        self, run: str, *, user: str = "", approvals: Mapping[str, bool] | None = None, **options: Unpack[ResumeOptions]
    ) -> Result:
        """Resume a run where it stopped, in whatever process that was. If the run is done, return its result.

        Raises what `run` raises, `NotFound` where the user has no such run, `RunBusy` that names the process working on it, `Cancelled`
        where it was cancelled, `ConfigError` where a tool or an agent is missing that it was begun with, and `IdempotencyConflict` where
        the policy has become tighter than what it was begun under.

        Args:
            run: the task's idempotency key.
            user: on whose behalf it was begun.
            approvals: decisions about the calls that it waits for, by the requests' ids.
            options: tools that the task had in addition to those of the `Hybrid`, and an approver.
        """
        require_run(run, user, approvals)
        check_approver(options.get("approver"), InvalidRequest)
        await self.pool.home.enter()
        if approvals:
            await self._durable.decide(run, user, approvals)
        given: TaskOptions = {"tools": options.get("tools", ()), "approver": options.get("approver", self._approver)}
        self._begin()
        started = time.monotonic()
        with self._awake():
            async with self._durable.resume(run, user, partial(self._preparation.equip_again, options=given)) as work:
                return await self._served(work, given, started)

    @property
    def runs(self) -> RunStore:
        """The store of the runs. Raises `ConfigError` where none is kept."""
        return self._durable.store

    @property
    def traces(self) -> TraceStore:
        """The store of the traces. Raises `ConfigError` where none is kept."""
        if self._traces is None:
            hint = 'in nearfar.toml: [runs]; in Python: Hybrid(runs="runs"); if that stands there, the log says why they cannot be used'
            raise ConfigError("no traces are kept", hint=hint)
        return self._traces

    async def cancel(self, run: str, *, user: str = "") -> None:
        """Let a run end, in whatever process it is: within a second, or when its tools are done that are at work. Raises `NotFound`."""
        await in_thread(self.runs.cancel, run, user=user)

    @asynccontextmanager
    async def _begun(self, asked: Task, options: TaskOptions) -> AsyncIterator[tuple[Work, float]]:
        """Yield the work to be done, and the time at which the caller asked for it."""
        await self.pool.home.enter()
        self._begin()
        started = time.monotonic()

        async def prepare() -> tuple[Task, TaskContext]:
            with deadline(asked, started):
                recall = self._preparation.recall
                task = asked if self._memory is None else await anyio.to_thread.run_sync(recall, asked, options, abandon_on_cancel=True)
                return self._preparation.prepare(task, options)

        with self._awake():
            if self._runs is None:
                yield Work(*await prepare()), started
                return
            async with self._runs.begin(asked, prepare, partial(self._preparation.equip_again, options=options)) as work:
                yield work, started

    async def _served(self, work: Work, options: TaskOptions, started: float) -> Result:
        if work.recorded is not None:
            return work.recorded
        with deadline(work.task, started, work.context):
            state = await cancelled_at_once(self._serve(work, options))
        return await self._concluded(work, state, time.monotonic() - started)

    @property
    def _durable(self) -> DurableRuns:
        if self._runs is None:
            raise ConfigError("no runs are kept", hint='in nearfar.toml: [runs]; in Python: Hybrid(runs="runs")')
        return self._runs

    async def stream(self, prompt: Prompt, **options: Unpack[TaskOptions]) -> AsyncGenerator[TaskEvent, None]:
        """Serve one task and yield what happens; the last event is `TaskFinished`. Raises what `run` raises."""
        async with (
            self._begun(self._preparation.task(prompt, options), options) as (work, started),
            aclosing(self._streamed(work, options, started)) as events,
        ):
            async for event in events:
                yield event

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
            await end(serving)
            note_tool_calls(error, work.context)
            for late in queued_events(events):  # what the step that was under way has cost
                yield late
            raise
        finally:
            await end(serving)
        yield TaskFinished(result=await self._concluded(work, serving.result(), time.monotonic() - started))

    def explain(self, prompt: Prompt, **options: Unpack[TaskOptions]) -> SelectionDecision:
        """Return the strategy that `auto` would choose for a task, the alternatives, and the reasons. Nothing is run.

        Raises what `run` raises before its first step.
        """
        task = self._preparation.recall(self._preparation.task(prompt, options), options)
        return self._preparation.explain(task, options)

    def explain_route(self, prompt: Prompt, **options: Unpack[TaskOptions]) -> RouteDecision:
        """Return the agents that would serve a task, the estimate for each, and the reasons. Nothing is run.

        If the rules deny the task, `denied` names the rule. Else this raises what `run` raises before it begins.
        """
        asked = self._preparation.task(prompt, options)
        refusal = self._router.refusal(asked, list(self.pool), tools=list(self._preparation.context(options).tools))
        if refusal is not None:
            return refusal
        task, context = self._preparation.prepare(self._preparation.recall(asked, options), options)
        return self._router.explain(task.with_memory_in_prompt(), list(self.pool), tools=list(context.tools))

    def report(self, result: Result, *, score: float, task_class: str = "") -> None:
        """Tell the router, and `auto` where it chose the strategy, how good a result was: 1 for a task well done, 0 for one that failed.

        `task_class` names tasks of one sort, from coarse to fine (`billing/refund`); without it, the class that the task was taken for
        stands. The outcome is kept in the files that `[policy.auto] reports` and `[policy.router] log` name, without the words of a
        private task. A cache gives up the answers of a task whose score is below one half.

        Raises `InvalidRequest` for a score outside 0 to 1.
        """
        if not isinstance(score, (int, float)) or not 0 <= score <= 1:
            raise InvalidRequest(f"a score is between 0 and 1, not {score}", hint="1.0 for a task well done, 0.0 for one that failed")
        if self._cache is not None:
            self._cache.report(result.id, score)
        self._router.report(result, self.policy, score=score, task_class=task_class)

    async def _serve(self, work: Work, options: TaskOptions) -> dict[str, Any]:
        """Run the task's graph and return its final state."""
        task, context = work.task, work.context
        graph, config = self.graph_of(task.policy.strategy), self._config(task, options)
        since = None if self._plans is None else await self._plans.clearings()
        agents = {handle.name: handle.side for handle in self.pool}
        recorded = nullcontext() if context.trace is None else context.trace.recording(task, agents)
        assert context.privacy is not None, "every task is prepared with it"
        with billed(task, context, self._router), recorded, nullcontext() if self._cache is None else scope(scope_of(task)):
            try:
                state = await (serve(work, graph, config) if self._runs is None else self._runs.serve(work, graph, config))
            except (NearfarError, asyncio.CancelledError):
                self._preparation.sessions.note(task, context.privacy.heard)  # what was streamed by then may come back in the session
                with anyio.CancelScope(shield=True):  # A task that ran out of time is cancelled, and its plan is none to go by again.
                    await self._conclude_plan(task, context, None, since)
                raise
        await self._conclude_plan(task, context, context.privacy.filled_state(state, is_json=False), since)
        return state

    async def _conclude_plan(self, task: Task, context: TaskContext, state: dict[str, Any] | None, since: int | None) -> None:
        if self._plans is not None:
            await self._plans.conclude(task, context.tools, state, since=since)

    async def _concluded(self, work: Work, state: dict[str, Any], seconds: float) -> Result:
        """Return the result, and report it to the router, the memory, the trace and the store of runs."""
        task, context = work.task, work.context
        assert context.recollection is not None, "every task is prepared with one"
        assert context.privacy is not None, "and with this"
        state = context.privacy.filled_state(state, is_json=task.output_schema is not None)
        context.recollection.restore(state.get("recalled", ()))
        result = result_of(task, state, seconds)
        told = {"recalled": tuple(context.recollection.items), "label": result.label.joined(context.privacy.found)}
        result = result.model_copy(update=told)
        if context.trace is not None:
            context.trace.conclude(result)
        self._router.conclude(task, result, tools=list(context.tools))
        self._preparation.sessions.note(task, result.label)
        if self._memory is not None:
            result = await in_thread(self._memory.conclude, task, result, state["messages"])
        result = result if self._runs is None else await self._runs.keep(work, result)
        await context.privacy.end()
        return result

    def _awake(self) -> AbstractContextManager[None]:
        """Keep the memory's consolidation off while a task is served."""
        return nullcontext() if self._rest is None else self._rest.awake()

    def _config(self, task: Task, options: TaskOptions) -> "RunnableConfig":
        config: RunnableConfig = {"recursion_limit": recursion_limit(task.policy, agents=len(self.pool))}
        if self._has_checkpointer:
            config["configurable"] = {"thread_id": options.get("thread_id", task.idempotency_key)}
        return config
