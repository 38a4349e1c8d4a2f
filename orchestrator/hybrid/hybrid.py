"""`Hybrid`: the near and the far agent, the tools and the policy behind one `run`."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, aclosing, asynccontextmanager, contextmanager, nullcontext, suppress
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
    PermissionDenied,
    PrivacyViolation,
    Side,
)
from ...protocols.validation import parse_output
from ..agents.pool import Member, Team
from ..budgets.book import BudgetBook
from ..budgets.opening import open_budgets
from ..cache.agent import put_in_front
from ..cache.answers import AnswerCache
from ..cache.clearing import ErasedMemory
from ..cache.plans import PlanCache
from ..compose.agents import FarConfig, NearConfig, far_member, near_member, other_member, read_device_state
from ..compose.config import Config, load_config
from ..compose.hub import AttachedConfig
from ..compose.memory import task_memory
from ..compose.policy_file import PolicyFile
from ..memory.recollection import Recollection
from ..routing.auto.selector import Selector, with_open_choice
from ..routing.check import require_usable, unknown_prices
from ..routing.router import Router
from ..runs.erased import ErasedRuns
from ..runs.opening import beside
from ..runs.run import Bounds
from ..runs.store import RunStore
from ..safety.guard.run_guard import RunGuard, allowed, check_plan, with_data_quoted
from ..safety.privacy.records import PrivacyRecords
from ..safety.privacy.run_privacy import RunPrivacy
from ..safety.privacy.sessions import SessionLabels
from ..strategies.acts_told import told_of
from ..strategies.context import TaskContext
from ..strategies.durable import DurableRuns, Work, open_runs, served
from ..strategies.reading import value_of
from ..strategies.state import recursion_limit
from ..strategies.tool_calls import Boundary
from ..task.approvals import Approver
from ..task.auto_decision import SelectionDecision
from ..task.conversation import Prompt
from ..task.events import TaskEvent, TaskFinished
from ..task.labels import OPEN, Label
from ..task.modes import Mode, Strategy
from ..task.results import Attempt, Call, Result, ToolOutcome, budget_exceeded, spent
from ..task.route_decision import RouteDecision
from ..task.scope import scope, scope_of
from ..task.sections.cache import CacheConfig
from ..task.sections.memory import MemoryConfig
from ..task.sections.runs import RunsConfig
from ..task.sections.supervision import Verdict
from ..task.task import Policy, Task
from ..task.tools import Tool
from ..tracing.recorder import RunTrace
from ..tracing.store import TraceStore, traces_if_usable
from ..util.arguments import Location, as_path
from ..util.cancellation import cancelled_at_once, end
from ..util.threads import in_thread
from .arguments import (
    cache_argument,
    check_approver,
    check_helpers,
    far_argument,
    kept_argument,
    memory_argument,
    near_argument,
    others_argument,
    policy_argument,
    require_run,
    tools_argument,
)
from .options import ResumeOptions, TaskOptions, asked_task, check_options, policy_of

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.store.base import BaseStore
    from langgraph.types import Checkpointer

    from ..memory.consolidation.sleeper import Rest
    from ..memory.in_tasks import TaskMemory
    from ..memory.store import MemoryStore
    from ..strategies.graphs import Graphs
    from ..strategies.runtime import TaskGraph

_logger = logging.getLogger(__name__)


class Hybrid:
    """A near and a far agent that serve tasks together.

    Use it as an async context manager: agents, models and gateway processes that it opens are closed with it, agents that were
    passed in are not. Everything is opened on first use, so a task that stays on the device needs no key and no network. It works in
    one event loop at a time: what it opened is closed with the loop and opened anew in the next one. Raises `ConfigError` at once where
    a second loop uses it while the first is not closed.

    Args:
        near: the model on this device: a GGUF file, `"near"` (the small one that ships with nearfar), a `NearConfig`, or any `Agent`.
            A mapping stands for the section of nearfar.toml, here and at the other parts that have one.
        far: the model in the cloud: `"openai:MODEL"`, `"anthropic:MODEL"`, `"gemini:MODEL"`, `"gateway:HOST:PORT"`, a GGUF file or
            `"far"` (served by a local gateway process), a `FarConfig`, or any `Agent`.
        others: further agents of either side, by the names that the policy knows them by: the router chooses among all.
        tools: what the agents may call.
        approver: asks somebody about calls that need a yes; None: they are refused, or a durable run waits.
        policy: how tasks are served unless they say otherwise. A `PolicyFile` may be edited while tasks run: each is served to its end
            under the policy that it began with.
        device_state: looks at the device, for rules about its battery and the like; None: this machine, as far as it can be read.
        cache: keeps answers, and plans where its settings say so: those of `[cache]`, or a cache that somebody else opened and closes;
            a path is the file of one that is opened here.
        memory: what tasks recall, and where they are written down: a `MemoryStore`, of which tasks only recall, a `TaskMemory` that says
            more, or a `MemoryConfig` or a path, whose store is opened here and closed with the `Hybrid`. It is LangGraph's store, too.
        runs: every task is a run that another process can go on with: the settings of `[runs]`, a folder, or a `RunStore` that
            somebody else opened and closes.
        budgets: what was spent; None: it is kept where `runs` are where those are settings, else in this process alone.
        privacy: keeps what left the device for each run, and placeholders until it ends; None: beside the runs of `[runs]`.
        traces: keeps what happens in each run; None: beside the runs of `[runs]`.
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
        _check_given_once(memory, store, runs, checkpointer)
        self._policy = policy = policy_argument(policy)
        cache, memory = cache_argument(cache), memory_argument(memory)
        runs = kept_argument("runs", runs, RunStore)
        privacy, traces = kept_argument("privacy", privacy, PrivacyRecords), kept_argument("traces", traces, TraceStore)
        self.team = Team(tuple(_members(near, far, others)))
        self._owned_cache = AnswerCache(cache) if isinstance(cache, CacheConfig) else None
        self._cache = cache if isinstance(cache, AnswerCache) else self._owned_cache
        if self._cache is not None:
            put_in_front(self.team, self._cache)
        self._agents = {member.name: member.side for member in self.team}
        _require_usable(policy, self._agents)
        self._memory = task_memory(memory)
        self._owns_memory = isinstance(memory, (MemoryConfig, str, PathLike))
        self._erased = ErasedMemory(self._cache, self._memory.store) if self._cache and self._memory else None
        self._listening = ExitStack()
        tools = tools_argument((*tools_argument(tools), *(() if self._memory is None else self._memory.tools)))
        self._tools = tools
        self._plans = PlanCache(self._cache.database, self._cache.settings) if self._cache and self._cache.settings.plans else None
        self._approver = approver
        self._has_checkpointer = checkpointer is not None
        self._selector = Selector()
        self._sessions = SessionLabels()
        device_state = device_state or read_device_state
        with ExitStack() as failing:
            failing.callback(self._listening.close)
            book = beside(runs, kept_argument("budgets", budgets, BudgetBook), open_budgets, self._listening)
            self._privacy = beside(runs, privacy, lambda config: PrivacyRecords(config.folder, keep=config.keep), self._listening)
            self._traces = beside(runs, traces, traces_if_usable, self._listening)
            self._runs = None if runs is None else open_runs(runs, self._listening, tuple(self._agents), self._bounds)
            self._erased_runs = self._hear_of_erasures()
            failing.pop_all()
        self._router = Router(device_state=device_state, paces=self.team.pace, health=self.team.health, budgets=book)
        self._rest = None if self._memory is None else _resting(self._memory, self.team, device_state)
        self._move_with_the_loop()
        self._store = store if self._memory is None else self._memory.store
        if self._runs is not None and self._traces is not None and isinstance(runs, RunsConfig):
            self._runs.store.forgetting.append(self._traces.forget_all)  # behind what is still to be written
        self._checkpointer = checkpointer

    def _hear_of_erasures(self) -> ErasedRuns | None:
        """Have cache, runs and traces go with what is erased from the memory from now on."""
        if self._memory is None:
            return None
        if self._erased is not None:
            self._listening.enter_context(self._memory.store.erasing.calling(self._erased.forget))
        if self._runs is None and self._traces is None:
            return None
        erased = ErasedRuns(self._memory.store, None if self._runs is None else self._runs.store, self._traces)
        self._listening.enter_context(self._memory.store.erasing.calling(erased.forget))
        return erased

    def _move_with_the_loop(self) -> None:
        """Have what waits in an event loop begin anew in the next one."""
        if self._rest is not None:
            self.team.home.forgetting.append(self._rest.move)
        if self._runs is not None:
            self.team.home.forgetting.append(self._runs.forget)

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
        """The same from a `nearfar.toml`, whose policy is read anew when the file changes; a `store` stands in place of its memory.

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
        await self.team.home.enter()
        if self._rest is not None:
            self._rest.begin()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the agents that were opened; shielded, so that Ctrl-C leaves no process behind."""
        await self.team.home.enter()
        with anyio.CancelScope(shield=True):
            if self._rest is not None:
                await self._rest.end()
            await self.team.aclose()
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
        """Before the clock of the first task runs: load LangGraph, and say which dollars no limit can count."""
        if self._has_begun:
            return
        self._has_begun = True
        assert self._graphs is not None
        for finding in unknown_prices(self.policy, {member.name: member.model for member in self.team if member.is_unpriced}):
            _logger.warning("%s", finding)

    @cached_property
    def _graphs(self) -> "Graphs":
        """Made when the first task is served: loading LangGraph takes longer than loading all the rest."""
        from ..strategies.graphs import Graphs

        checkpointer = self._checkpointer if self._runs is None else self._runs.checkpointer
        return Graphs(self.team, self._tools, self._router, checkpointer=checkpointer, store=self._store)

    @property
    def graph(self) -> "TaskGraph":
        """The graph of the policy's strategy; see `graph_of`."""
        return self.graph_of(self.policy.strategy)

    def graph_of(self, strategy: Strategy | str) -> "TaskGraph":
        """The compiled LangGraph graph of a strategy; its input is `{"task": Task(...).model_dump(mode="json")}`.

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
        async with self._begun(self._asked(prompt, options), options) as (work, started):
            return await self._served(work, options, started)

    async def resume(
        self, run: str, *, user: str = "", approvals: Mapping[str, bool] | None = None, **options: Unpack[ResumeOptions]
    ) -> Result:
        """Go on with a run where it stopped, in whatever process that was; of one that is done, return the result.

        Raises what `run` raises, `NotFound` where the user has no such run, `RunBusy` that names who works on it, `Cancelled` where it was
        cancelled, `ConfigError` where a tool or an agent is missing that it was begun with, and `IdempotencyConflict` where the policy has
        become tighter than what it was begun under.

        Args:
            run: the task's idempotency key.
            user: on whose behalf it was begun.
            approvals: what somebody says to the calls that it waits for, by the requests' ids.
            options: tools that the task had beside those of the `Hybrid`, and an approver.
        """
        require_run(run, user, approvals)
        check_approver(options.get("approver"), InvalidRequest)
        await self.team.home.enter()
        if approvals:
            await self._durable.decide(run, user, approvals)
        given: TaskOptions = {"tools": options.get("tools", ()), "approver": options.get("approver", self._approver)}
        self._begin()
        started = time.monotonic()
        with self._awake():
            async with self._durable.resumed(run, user, partial(self._equipped_again, options=given)) as work:
                return await self._served(work, given, started)

    @property
    def runs(self) -> RunStore:
        """Where they are kept. Raises `ConfigError` where they are not."""
        return self._durable.store

    @property
    def traces(self) -> TraceStore:
        """What happened in each run. Raises `ConfigError` where that is not kept."""
        if self._traces is None:
            hint = 'in nearfar.toml: [runs]; in Python: Hybrid(runs="runs"); if that stands there, the log says why they cannot be used'
            raise ConfigError("no traces are kept", hint=hint)
        return self._traces

    async def cancel(self, run: str, *, user: str = "") -> None:
        """Let a run end, in whatever process it is: within a second, or when its tools are done that are at work. Raises `NotFound`."""
        await in_thread(self.runs.cancel, run, user=user)

    @asynccontextmanager
    async def _begun(self, asked: Task, options: TaskOptions) -> AsyncIterator[tuple[Work, float]]:
        """What is to be served, and when it was asked for."""
        await self.team.home.enter()
        self._begin()
        started = time.monotonic()

        async def prepare() -> tuple[Task, TaskContext]:
            with _deadline(asked, started):
                return self._prepared(await self._recalled(asked, options), options)

        with self._awake():
            if self._runs is None:
                yield Work(*await prepare()), started
                return
            async with self._runs.begun(asked, prepare, partial(self._equipped_again, options=options)) as work:
                yield work, started

    async def _served(self, work: Work, options: TaskOptions, started: float) -> Result:
        if work.recorded is not None:
            return work.recorded
        with _deadline(work.task, started, work.context):
            state = await cancelled_at_once(self._serve(work, options))
        return await self._concluded(work, state, time.monotonic() - started)

    def _equipped(self, task: Task, *, options: TaskOptions) -> TaskContext:
        """What the task runs with."""
        recollection = Recollection.of(task, stays_here=self._stays_here)
        records = None if self._privacy is None else self._privacy.of(task.idempotency_key)
        privacy = RunPrivacy.of(task, records=records, told=self._sessions.told(task))
        context = replace(self._context(options), account=self._router.account(task), recollection=recollection, privacy=privacy)
        tools = allowed(context.tools, task.allowed_tools)
        guard = RunGuard.of(task, tools)
        trace = None if self._traces is None else RunTrace.of(self._traces, task, tools)
        boundary = replace(context.boundary, vault=privacy.placeholders, guard=guard)
        return replace(context, tools=tools, boundary=boundary, trace=trace, outcomes=[])

    def _equipped_again(self, task: Task, *, options: TaskOptions) -> TaskContext:
        """The same for a task that is gone on with. What all tasks together may spend is what the policy says now."""
        now = self.policy.limits
        limits = task.policy.limits.model_copy(update={"session": now.session, "user": now.user, "day": now.day})
        policy = task.policy.model_copy(update={"limits": limits})
        return self._equipped(task.model_copy(update={"policy": policy}), options=options)

    def _bounds(self, task: Task, tools: Sequence[str]) -> Bounds:
        """How far the policy lets the task go now, where the task itself states nothing. Raises what the rules raise for what it states."""
        policy = self.policy
        self._router.ruled(task.model_copy(update={"policy": task.policy.model_copy(update={"rules": policy.rules})}), tools=tools)
        with suppress(PermissionDenied, PrivacyViolation):  # The task states another mode than the policy's, against which its rules speak.
            plain = task.model_copy(update={"policy": policy, "stated": frozenset()})
            policy = self._router.ruled(plain, tools=tools).policy
        return Bounds(sensitivity=policy.sensitivity, mode=policy.mode)

    @property
    def _durable(self) -> DurableRuns:
        if self._runs is None:
            raise ConfigError("no runs are kept", hint='in nearfar.toml: [runs]; in Python: Hybrid(runs="runs")')
        return self._runs

    async def stream(self, prompt: Prompt, **options: Unpack[TaskOptions]) -> AsyncGenerator[TaskEvent, None]:
        """Serve one task and yield what happens; the last event is `TaskFinished`. Raises what `run` raises."""
        async with (
            self._begun(self._asked(prompt, options), options) as (work, started),
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
            while (event := await _next_event(events, work.task, started)) is not None:
                yield event
        except DeadlineExceeded as error:
            await end(serving)
            _note_acts(error, work.context)
            for late in _rest(events):  # what the step that was under way has cost
                yield late
            raise
        finally:
            await end(serving)
        yield TaskFinished(result=await self._concluded(work, serving.result(), time.monotonic() - started))

    def explain(self, prompt: Prompt, **options: Unpack[TaskOptions]) -> SelectionDecision:
        """What `auto` would choose for a task, among what, and why; nothing is run. Raises what `run` raises before its first step."""
        task = self._with_memory(self._asked(prompt, options), options)
        task = self._router.ruled(task, tools=list(self._context(options).tools))
        tools = list(self._context(options).tools)
        dollars = self._router.dollars_by_side(task, list(self.team), tools=tools)
        return self._selector.explain(task, tools=tools, sides=self._sides, dollars=dollars)

    def explain_route(self, prompt: Prompt, **options: Unpack[TaskOptions]) -> RouteDecision:
        """Who would serve a task, what is expected of each agent, and why; nothing is run.

        Of a task that the rules deny, it tells which rule did so in `denied`. Else it raises what `run` raises before it begins.
        """
        asked = self._asked(prompt, options)
        refusal = self._router.refusal(asked, list(self.team), tools=list(self._context(options).tools))
        if refusal is not None:
            return refusal
        task, context = self._prepared(self._with_memory(asked, options), options)
        return self._router.explain(task.with_memory_in_prompt(), list(self.team), tools=list(context.tools))

    def report(self, result: Result, *, score: float, task_class: str = "") -> None:
        """Tell the router, and `auto` where it chose the strategy, how good a result was: 1 for a task well done, 0 for one that failed.

        `task_class` names tasks of one sort, from coarse to fine (`billing/refund`); without it, the class that the task was taken for
        stands. The outcome is kept in the files that `[policy.auto] reports` and `[policy.router] log` name, without the words of a
        private task. A cache gives up the answers of a task whose score is below one half.

        Raises `InvalidRequest` for a score outside 0 to 1.
        """
        if not isinstance(score, (int, float)) or not 0 <= score <= 1:
            raise InvalidRequest(f"a score is between 0 and 1, not {score}", hint="1.0 for a task well done, 0.0 for one that failed")
        policy = self.policy
        self._router.report(result, policy.router, score=score, task_class=task_class)
        if self._cache is not None:
            self._cache.report(result.id, score)
        if result.selection is not None:
            self._selector.report(result, policy.auto, score=score, task_class=task_class)

    async def _recalled(self, task: Task, options: TaskOptions) -> Task:
        """The task with what the memory holds about it."""
        if self._memory is None:
            return task
        return await anyio.to_thread.run_sync(self._with_memory, task, options, abandon_on_cancel=True)

    def _with_memory(self, task: Task, options: TaskOptions) -> Task:
        if self._memory is None:
            return task
        erased_runs, self._erased_runs = self._erased_runs, None
        if erased_runs is not None:
            erased_runs.forget_at_last()
        if self._erased is not None and not self._erased.is_forgotten():
            task = task.model_copy(update={"cache": "no-store"})
        return self._memory.recall(task, may_stay=self._may_stay(task, options), stays_here=self._stays_here)

    def _may_stay(self, task: Task, options: TaskOptions) -> bool:
        """Whether near agents could serve the task, where they had to."""
        policy = self._router.ruled(task, tools=list(self._context(options).tools)).policy
        return Side.NEAR in self._sides and policy.mode is not Mode.ONLY_IN_CLOUD and policy.strategy is not Strategy.CLOUD

    def _prepared(self, task: Task, options: TaskOptions) -> tuple[Task, TaskContext]:
        """The task, with its strategy settled, and what it runs with."""
        context = self._context(options)
        check_plan(task.planned.plan, context.tools)
        task = self._settled(with_data_quoted(task, context.tools), context)
        context = self._equipped(task, options=options)
        keeps_apart = task.policy.strategy in (Strategy.MINIONS, Strategy.SUBTASKS)
        return task if keeps_apart else task.with_context_in_prompt(), context

    def _asked(self, prompt: object, options: TaskOptions) -> Task:
        """The task as the user put it."""
        check_options(options, has_checkpointer=self._has_checkpointer)
        return self._sessions.applied(asked_task(prompt, options, policy_of(options, self.policy, self._agents)))

    async def _serve(self, work: Work, options: TaskOptions) -> dict[str, Any]:
        """The final state of the task's graph."""
        task, context = work.task, work.context
        graph, config = self.graph_of(task.policy.strategy), self._config(task, options)
        since = None if self._plans is None else await self._plans.clearings()
        agents = {member.name: member.side for member in self.team}
        recorded = nullcontext() if context.trace is None else context.trace.recording(task, agents)
        assert context.privacy is not None, "every task is prepared with it"
        with self._billed(task, context), recorded, nullcontext() if self._cache is None else scope(scope_of(task)):
            try:
                state = await (served(work, graph, config) if self._runs is None else self._runs.served(work, graph, config))
            except (NearfarError, asyncio.CancelledError):
                self._sessions.note(task, context.privacy.heard)  # what was streamed by then may come back in the session
                with anyio.CancelScope(shield=True):  # A task that ran out of time is cancelled, and its plan is none to go by again.
                    await self._conclude_plan(task, context, None, since)
                raise
        await self._conclude_plan(task, context, context.privacy.filled_state(state, is_json=False), since)
        return state

    @contextmanager
    def _billed(self, task: Task, context: TaskContext) -> Iterator[None]:
        """Tell the router in the end what the task was billed, also where it failed or was abandoned."""
        account = context.account
        assert account is not None, "every task is prepared with one"
        before = account.spent.dollars
        try:
            yield
        finally:
            after = account.spent.dollars
            bill = None if before is None or after is None else max(after - before, 0.0)
            self._router.settle(task, account.commitments, bill)
            account.commitments.clear()

    async def _conclude_plan(self, task: Task, context: TaskContext, state: dict[str, Any] | None, since: int | None) -> None:
        if self._plans is not None:
            await self._plans.conclude(task, context.tools, state, since=since)

    def _settled(self, task: Task, context: TaskContext) -> Task:
        """The task with a strategy that has a graph: what the rules say, and where that leaves the choice open, what `auto` chooses."""
        tools = list(context.tools)
        task = with_open_choice(self._router.ruled(task, tools=tools), allowed(context.tools, task.allowed_tools))
        if task.policy.strategy is not Strategy.AUTO:
            return task
        dollars = self._router.dollars_by_side(task, list(self.team), tools=tools)
        return self._selector.settle(task, tools=tools, sides=self._sides, dollars=dollars)

    async def _concluded(self, work: Work, state: dict[str, Any], seconds: float) -> Result:
        """The result, of which router and memory take note, and the runs in the end."""
        task, context = work.task, work.context
        assert context.recollection is not None, "every task is prepared with one"
        assert context.privacy is not None, "and with this"
        state = context.privacy.filled_state(state, is_json=task.output_schema is not None)
        context.recollection.restore(state.get("recalled", ()))
        result = _result(task, state, seconds)
        told = {"recalled": tuple(context.recollection.items), "label": result.label.joined(context.privacy.found)}
        result = result.model_copy(update=told)
        if context.trace is not None:
            context.trace.conclude(result)
        self._router.conclude(task, result, tools=list(context.tools))
        self._sessions.note(task, result.label)
        if self._memory is not None:
            result = await in_thread(self._memory.conclude, task, result, state["messages"])
        result = result if self._runs is None else await self._runs.keep(work, result)
        await context.privacy.end()
        return result

    def _awake(self) -> AbstractContextManager[None]:
        """While a task is served, the memory is not consolidated."""
        return nullcontext() if self._rest is None else self._rest.awake()

    @property
    def _stays_here(self) -> bool:
        """Whether what is private leaves this very device for no other one, not even of the same user."""
        return not any(member.is_elsewhere for member in self.team if member.side is Side.NEAR)

    @property
    def _sides(self) -> set[Side]:
        return {member.side for member in self.team}

    def _context(self, options: TaskOptions) -> TaskContext:
        tools = tools_argument((*self._tools, *tools_argument(options.get("tools"))))
        boundary = Boundary(approver=options.get("approver", self._approver))
        return replace(TaskContext.of(tools), plans=self._plans, boundary=boundary)

    def _config(self, task: Task, options: TaskOptions) -> "RunnableConfig":
        config: RunnableConfig = {"recursion_limit": recursion_limit(task.policy, agents=len(self.team))}
        if self._has_checkpointer:
            config["configurable"] = {"thread_id": options.get("thread_id", task.idempotency_key)}
        return config


def _resting(memory: "TaskMemory", team: Team, device_state: DeviceStateSource) -> "Rest | None":
    if memory.sleep is None:
        return None
    from ..memory.consolidation.sleeper import Rest

    return Rest(memory.store, memory.sleep, team, device_state)


def _members(near: object, far: object, others: object) -> list[Member]:
    """Return both sides and the other agents. Raises `ConfigError` where there is neither side."""
    members = [member for member in (near_member(near_argument(near)), far_member(far_argument(far))) if member is not None]
    if not members:
        hint = 'near="near" and far="far" are the ones that ship with nearfar; in nearfar.toml: [near] and [far]'
        raise ConfigError("neither a near nor a far agent is given", hint=hint)
    return [*members, *(other_member(name, other) for name, other in others_argument(others).items())]


def _require_usable(policy: Policy | PolicyFile, agents: Mapping[str, Side]) -> None:
    """Raise `ConfigError` where the policy cannot be used with these agents, which a file is held to from now on."""
    if isinstance(policy, PolicyFile):
        policy.require(agents)
    require_usable(policy.current if isinstance(policy, PolicyFile) else policy, agents)


def _check_given_once(memory: object, store: object, runs: object, checkpointer: object) -> None:
    if memory is not None and store is not None:
        raise ConfigError("memory and store are both given", hint="memory is LangGraph's store, too: leave store out")
    if runs is not None and checkpointer is not None:
        raise ConfigError("runs and checkpointer are both given", hint="runs have a checkpointer of their own: leave it out")


@contextmanager
def _deadline(task: Task, started: float, context: TaskContext | None = None) -> Iterator[None]:
    """The task's own time limit, as an error of the tree, which notes the tool calls that the context has heard of."""
    if task.timeout is None:
        yield
        return
    with anyio.move_on_after(task.timeout - (time.monotonic() - started)) as scope:
        yield
    if scope.cancelled_caught:
        error = DeadlineExceeded(f"the task took longer than its {task.timeout:g} s", hint="raise its timeout")
        if context is not None:
            _note_acts(error, context)
        raise error


def _note_acts(error: NearfarError, context: TaskContext) -> None:
    """Let the error tell which tool calls stay done."""
    if done := told_of(context.outcomes or (), OPEN):
        error.add_note(f"its tool calls stay done:\n{done}")


async def _next_event(events: "asyncio.Queue[TaskEvent | None]", task: Task, started: float) -> TaskEvent | None:
    """The next event; none at the end. The limit is around each wait, since a cancel scope must not be left open by a yield."""
    with _deadline(task, started):
        event = await events.get()
    return event  # noqa: RET504 - inside of the block, mypy would miss a return behind it


def _rest(events: "asyncio.Queue[TaskEvent | None]") -> Iterator[TaskEvent]:
    """The events that are there already."""
    while not events.empty():
        event = events.get_nowait()
        if event is not None:
            yield event


def _doubt(policy: Policy, accepted: Attempt) -> str | None:
    """Say that an answer is less sure than its cascade wants; None where it is sure enough, or nobody wants to know."""
    found, wanted = accepted.confidence, policy.minimum_confidence
    if policy.strategy is not Strategy.CASCADE or found is None or found >= wanted:
        return None
    return f"{accepted.agent}: confidence {found:.2f} is below {wanted:.2f}, and stands because no other agent may be asked, or did better"


def _result(task: Task, state: dict[str, Any], seconds: float) -> Result:
    attempts = tuple(value_of(Attempt, attempt) for attempt in state["attempts"])
    calls = tuple(value_of(Call, call) for call in state["calls"])
    text = state["messages"][-1]["text"]
    accepted = next(attempt for attempt in attempts if attempt.outcome == "accepted")
    given_up = [f"{attempt.agent} {attempt.outcome}: {attempt.reason}" for attempt in attempts]
    doubt = _doubt(task.policy, accepted)
    return Result(
        id=task.idempotency_key,
        text=text,
        output=parse_output(text, task.output_schema) if task.output_schema is not None else None,
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
        decision=value_of(RouteDecision, state["decision"]),
        selection=task.selection,
        reasons=(*state["decision"]["reasons"], *state["reasons"], *given_up, *([] if doubt is None else [doubt])),
        label=value_of(Label, state["label"]),
        confidence=accepted.confidence,
        low_confidence=doubt is not None,
        near=spent(calls, Side.NEAR),
        far=spent(calls, Side.FAR),
        seconds=seconds,
    )
