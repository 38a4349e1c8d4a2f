"""`Hybrid`: the near and the far agent, the tools and the policy behind one `run`."""

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, aclosing
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

import anyio

from ...protocols import (
    Agent,
    ConfigError,
    DeviceStateSource,
    InvalidRequest,
)
from ..agents import AgentPool
from ..cache.database import ErasedMemory
from ..compose import FarConfig, NearSection, read_device_state
from ..compose.config import Config, load_config, with_line
from ..compose.hub import AttachedConfig
from ..compose.policy_file import PolicyFile
from ..mcp import McpServer
from ..memory import memory_rest, task_memory
from ..routing import Router
from ..runs.erasing import ErasedRuns, erase_calls, erased_of
from ..runs.store import RunStore
from ..task import Prompt
from ..task.decisions import RouteDecision, SelectionDecision
from ..task.events import TaskEvent
from ..task.foreign import ForeignTool
from ..task.modes import Strategy
from ..task.policy import Policy
from ..task.results import Result
from ..task.roles import Role
from ..task.stores import MemoryConfig, RunsConfig
from ..task.tools import Tool
from ..tracing import TraceStore
from ..tracing.observing import Observers
from ..util.runtime import in_own_task, in_thread
from ..util.settings import Location, as_path, require, wrong_type
from .arguments import (
    HybridArguments,
    ResumeOptions,
    TaskOptions,
    agent_handles,
    check_options,
    fault_argument,
    listed_tools,
    mcp_servers,
    memory_argument,
    plugin_tools,
    policy_argument,
    require_run,
    require_usable_policy,
    team_argument,
    tools_argument,
)
from .blocking import BlockingCalls
from .parts import DeviceReader, Metrics, Parts, Records, open_records, records_argument
from .pipeline import Pipeline
from .session import Session, SessionBook
from .turns import ServesTurns

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore

    from ..memory.in_tasks import TaskMemory
    from ..memory.store import MemoryStore
    from ..strategies.calls import TaskGraph


class Hybrid(ServesTurns):
    """A near and a far agent that serve tasks together.

    Use it as a context manager, `async with` or `with`: it closes the agents, models and gateway processes that it opened, and leaves open
    those that were passed in. Everything is opened on first use, so a task that stays on the device needs no key and no network.

    It works in one event loop at a time: when the next loop begins, it opens its agents again. Raises `ConfigError` at once if a second
    loop uses it while the first is not closed. `run_sync` and its like may be called in any thread: their tasks run in that loop, or in one
    of the `Hybrid`'s own, in a daemon thread, until `close`.

    Args:
        near: the model on this device: a GGUF file, `"near"` (the small one that ships with nearfar), one that a server runs
            (`"ollama:MODEL"`, `"lmstudio:MODEL"`, `"llama-server:"`, `"vllm:MODEL"`, its address), a `NearConfig`, a `NearServerConfig`, or
            any `Agent`. A mapping is a section of nearfar.toml, here and for the other arguments that have one.
        far: the model in the cloud: `"openai:MODEL"`, `"anthropic:MODEL"`, `"gemini:MODEL"`, `"gateway:HOST:PORT"`, the address of an
            API like OpenAI's (`"URL#MODEL"`), a GGUF file or `"far"` (served by a local gateway process), a `FarConfig`, or any `Agent`.
        agents: further agents of either side, by the names that the policy uses for them: the router chooses among all. A `Role` among
            them is an agent by name that tasks are given to with `role=`; its work is served by the others.
        instructions: what all agents are told in front of every task: who they are, and how the app wants them to work.
        tools: the tools that the agents may call, ours or LangChain's, and servers of the Model Context Protocol (`McpServer`): theirs
            may be called once the user has approved them (`nearfar mcp review`). A server is started when one of its tools is called
            first, and ended with the `Hybrid`.
        policy: the default policy of tasks. A `PolicyFile` may be edited while tasks run: each is served to its end under the policy that
            it began with.
        memory: the memory that tasks recall from: a `MemoryStore`, for recalling only, a `TaskMemory`, which says more, or a
            `MemoryConfig` or a path, whose store is opened here and closed with the `Hybrid`. It is LangGraph's store, too. Any other
            store of LangGraph is passed to the graphs, and tasks recall nothing from it.
        records: what is kept of tasks: a folder makes every task a durable run, which another process can resume. `Records` says more,
            such as a cache of answers.

    Raises `ConfigError` that names the parameter for an argument of another type.
    """

    def __init__(
        self,
        *,
        near: Agent | NearSection | Mapping[str, Any] | str | Path | None = None,
        far: Agent | FarConfig | Mapping[str, Any] | str | Path | None = None,
        agents: Mapping[str, Agent | NearSection | FarConfig | AttachedConfig | Role] | None = None,
        instructions: str | None = None,
        tools: Sequence[Tool | ForeignTool | McpServer] = (),
        policy: Policy | PolicyFile | Mapping[str, Any] | None = None,
        memory: "MemoryStore | TaskMemory | MemoryConfig | BaseStore | Mapping[str, Any] | Location | None" = None,
        records: Records | RunsConfig | Mapping[str, Any] | Location | None = None,
    ) -> None:
        require("instructions", instructions, str, "a text", hint='instructions="You are ..."')
        self._instructions = instructions or ""
        self._policy = policy = policy_argument(policy)
        memory, self._store = memory_argument(memory)
        asked = records_argument(records)
        self.pool = AgentPool(tuple(agent_handles(near, far, agents)))
        sides = {handle.name: handle.side for handle in self.pool}
        require_usable_policy(policy, sides)
        self._device = DeviceReader(read_device_state)
        self.attached = {name: agent for name, agent in (agents or {}).items() if isinstance(agent, AttachedConfig)}
        """The agents that devices lend, by name."""
        self.observers = Observers()
        """The makers of spans and metrics of its tasks; see `instrument`."""
        self._owns_memory = isinstance(memory, (MemoryConfig, str, PathLike))
        self._listening = ExitStack()
        self.blocking = BlockingCalls(self.pool.home)
        with ExitStack() as failing:
            self._memory = task_memory(memory)
            if self._memory is not None:
                self._store = self._memory.store
                if self._owns_memory:
                    failing.callback(self._memory.store.close)
            self._mcp = mcp_servers(tools)
            own = () if self._memory is None else self._memory.tools
            theirs = () if self._mcp is None else self._mcp.tools
            self._tools = tools_argument((*(each for each in listed_tools(tools) if not isinstance(each, McpServer)), *own, *theirs))
            self._team = team_argument(agents, sides, self.policy, self._tools)
            self._records = open_records(asked)
            failing.callback(self._records.close)
            failing.callback(self._listening.close)
            self._connect()
            failing.pop_all()

    def _connect(self) -> None:
        """Make the parts that work on the agents, the memory and the records."""
        records, memory, cache = self._records, self._memory, self._records.cache
        if cache is not None:
            from ..cache.agent import put_in_front

            put_in_front(self.pool, cache)
        pool = self.pool
        self._router = Router(
            device_state=self._device.read, paces=pool.pace, health=pool.health, ahead=pool.ahead, budgets=records.budgets
        )
        self._rest = None if memory is None else memory_rest(memory, self.pool, self._device.read)
        self._parts = Parts(
            pool=self.pool,
            router=self._router,
            policy=partial(_current, self._policy),  # which does not hold this object, as `DeviceReader` does not
            tools=self._tools,
            team=self._team,
            memory=memory,
            rest=self._rest,
            store=self._store,
            records=records,
            instructions=self._instructions,
            observers=self.observers,
        )
        self._pipeline = Pipeline(self._parts)
        self._sessions = SessionBook(self._pipeline, self.blocking, partial(erased_of, None if memory is None else memory.store))
        if memory is not None:
            preparation = self._pipeline.preparation
            preparation.erased_memory = ErasedMemory(cache, memory.store) if cache else None
            preparation.erased_runs = self._hear_of_erasures(memory.store, preparation.erased_memory)
        self._move_with_the_loop()

    def _hear_of_erasures(self, memory: "MemoryStore", erased_memory: ErasedMemory | None) -> ErasedRuns | None:
        """Erase from sessions, cache, kept calls, runs and traces what is erased from the memory from now on."""
        self._listening.enter_context(memory.erasing.calling(erase_calls))
        self._listening.enter_context(memory.erasing.calling(self._sessions.states.drop_erased))
        if erased_memory is not None:
            self._listening.enter_context(memory.erasing.calling(erased_memory.forget))
        if self._records.runs is None and self._records.traces is None:
            return None
        erased_runs = ErasedRuns(memory, self._records.runs, self._records.traces)
        self._listening.enter_context(memory.erasing.calling(erased_runs.forget))
        return erased_runs

    def _move_with_the_loop(self) -> None:
        """Reset the memory's consolidation, the runs and the MCP servers when the event loop that they belong to is replaced."""
        home = self.pool.home
        if self._mcp is not None:
            home.releasing.append(self._mcp.release)
            home.forgetting.append(self._mcp.forget)
            for connection in self._mcp.connections:
                connection.entering = home.enter
        if self._rest is not None:
            home.forgetting.append(self._rest.move)
        home.forgetting.append(self._pipeline.under_way.forget)
        if self._pipeline.runs is not None:
            home.forgetting.append(self._pipeline.runs.forget)

    @property
    def device_state(self) -> DeviceStateSource:
        """The function that reads the state of the device, for rules about its battery and for the memory's consolidation.

        Assign another one where this machine's sensors do not tell it. Raises `ConfigError` for anything that cannot be called; so does
        a task that needs the state, where the function returns anything else.
        """
        return self._device.source

    @device_state.setter
    def device_state(self, source: DeviceStateSource) -> None:
        if not callable(source):
            raise wrong_type("device_state", source, "a function that returns a DeviceState")
        self._device.source = source

    @classmethod
    def from_config(cls, config: Config | str | Path = "nearfar.toml", **given: Unpack[HybridArguments]) -> Self:
        """Create a `Hybrid` from `config`: a `Config`, or the path of a `nearfar.toml`, whose policy is read again when the file changes.

        The arguments `given` are those of `Hybrid`; each replaces what the file says, but `tools` come in addition to those that it names.
        Raises `ConfigError` with key and line.
        """
        policy: Policy | PolicyFile
        path: Path | None = None
        if isinstance(config, Config):
            loaded, policy = config, config.policy
        else:
            path = as_path("config", config, otherwise="a Config")
            loaded = load_config(path)
            policy = PolicyFile(path) if "policy" not in given else loaded.policy  # `cls` checks it against the agents that it gets
        arguments: HybridArguments = {"near": loaded.near, "far": loaded.far, "agents": {**loaded.others, **loaded.roles}, "policy": policy}
        arguments["instructions"] = loaded.instructions
        arguments |= {"memory": loaded.memory, "records": Records(loaded.runs, cache=loaded.cache)}
        try:
            servers = [McpServer.of_section(name, section) for name, section in loaded.mcp.items()]
            given["tools"] = (*plugin_tools(loaded.tools), *servers, *listed_tools(given.get("tools")))
            return cls(**(arguments | given))
        except ConfigError as error:
            raise (error if path is None else with_line(error, path)) from error.__cause__

    async def __aenter__(self) -> Self:
        await self.pool.enter()
        if self._rest is not None:
            self._rest.begin()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        return self.blocking.run(self.__aenter__)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Do what `aclose` does, in any thread: cancel the tasks of synchronous calls, close what was opened, and stop their loop."""
        self.blocking.close(self.aclose)

    async def aclose(self) -> None:
        """Cancel the tasks under way, which then raise `Unavailable`, and close what was opened; shielded, so that Ctrl-C leaves no process
        behind, and no file where it comes while this runs."""
        if self.blocking.is_elsewhere:
            await in_thread(self.close)
            return
        await self.pool.home.enter()
        with anyio.CancelScope(shield=True):
            await self._pipeline.under_way.end()
            async with AsyncExitStack() as closing:  # in reverse order, each also where one before it fails
                if self._memory is not None and self._owns_memory:
                    closing.push_async_callback(in_thread, self._memory.store.close)
                closing.push_async_callback(in_thread, self._records.close)
                closing.callback(self._listening.close)
                closing.push_async_callback(self.pool.aclose)
                if self._rest is not None:
                    closing.push_async_callback(self._rest.end)

    @property
    def policy(self) -> Policy:
        """How tasks that start now are served unless they say otherwise."""
        return _current(self._policy)

    @property
    def graph(self) -> "TaskGraph":
        """The graph of the policy's strategy; see `graph_of`."""
        return self.graph_of(self.policy.strategy)

    def graph_of(self, name: Strategy | str) -> "TaskGraph":
        """Return the compiled LangGraph graph of a strategy, or of the roles that work on a task which begins with the role `name`.

        Its input is `{"task": Task(...).model_dump(mode="json")}`. Raises `ConfigError` for `auto`, which chooses among the other
        strategies for each task, and `InvalidRequest` for an unknown name.
        """
        if name in self._team.roles:
            return self._pipeline.graphs.of_role(name)
        try:
            known = Strategy(name)
        except ValueError:
            listed = f"the strategies are {', '.join(Strategy)}"
            hint = f"{listed}; the roles are {', '.join(self._team.roles)}" if self._team else listed
            raise InvalidRequest(f"there is no strategy {name!r}", hint=hint) from None
        return self._pipeline.graphs[known]

    async def run(self, prompt: Prompt, **options: Unpack[TaskOptions]) -> Result:
        """Serve one task and return its outcome. `prompt` is a text or a conversation of our messages, OpenAI's or LangChain's; `options`
        are the fields of `TaskOptions`.

        Raises the `NearfarError` of the last agent tried, `DeadlineExceeded` after `timeout` seconds, `InvalidRequest` for options that
        contradict each other.
        """
        return await self._pipeline.run(prompt, options)

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
            options: what the task had in addition to the `Hybrid`, and no record can hold: see `ResumeOptions`.
        """
        require_run(run, user, approvals)
        check_options(options, ResumeOptions.__optional_keys__)
        return await self._pipeline.resume(run, cast(TaskOptions, options), user=user, approvals=approvals or {})

    @in_own_task
    async def follow(
        self, run: str, *, user: str = "", approvals: Mapping[str, bool] | None = None, **options: Unpack[ResumeOptions]
    ) -> AsyncGenerator[TaskEvent, None]:
        """Resume a run as `resume` does and yield what happens from then on; the last event is `TaskFinished`.

        Args:
            run: see `resume`.
            user: see `resume`.
            approvals: see `resume`.
            options: see `resume`.
        """
        require_run(run, user, approvals)
        check_options(options, ResumeOptions.__optional_keys__)
        async with aclosing(self._pipeline.follow(run, cast(TaskOptions, options), user=user, approvals=approvals or {})) as events:
            async for event in events:
                yield event

    @property
    def memory(self) -> "TaskMemory | None":
        """The memory that tasks recall from; None if there is none."""
        return self._memory

    @property
    def runs(self) -> RunStore:
        """The store of the runs. Raises `ConfigError` where none is kept."""
        return self._pipeline.durable.store

    @property
    def traces(self) -> TraceStore:
        """The store of the traces. Raises `ConfigError` where none is kept."""
        if self._records.traces is None:
            hint = (
                'in nearfar.toml: [runs]; in Python: Hybrid(records="records"); if that stands there, the log says why they cannot be used'
            )
            raise ConfigError("no traces are kept", hint=hint)
        return self._records.traces

    @cached_property
    def metrics(self) -> Metrics:
        """The metrics of tasks and agents, for Prometheus: `await hybrid.metrics.text()`. Tasks are counted from the first use on."""
        return Metrics(self._parts, {agent.socket for agent in self.attached.values()})

    async def cancel(self, run: str, *, user: str = "") -> None:
        """Let the `run` of a `user` end, in whatever process it is: within a second, or when its tools are done that are at work. Raises
        `NotFound`."""
        await in_thread(self.runs.cancel, run, user=user)

    @in_own_task
    async def stream(self, prompt: Prompt, **options: Unpack[TaskOptions]) -> AsyncGenerator[TaskEvent, None]:
        """Serve one task and yield what happens; the last event is `TaskFinished`. `prompt`, `options` and errors are those of `run`."""
        async with aclosing(self._pipeline.stream(prompt, options)) as events:
            async for event in events:
                yield event

    def session(self, name: str, **options: Unpack[TaskOptions]) -> Session:
        """Return the conversation called `name`, which begins with its first turn. The `options` are those of `run`, and hold for all its
        turns.

        Two users (`user=`) may give their conversations one name: neither sees the other's. Apps that keep the messages themselves name the
        conversation by `session=` in `run`. Raises `InvalidRequest` for options that no session can have.
        """
        return self._sessions.open(name, options)

    def run_sync(self, prompt: Prompt, **options: Unpack[TaskOptions]) -> Result:
        """Do what `run` does with `prompt` and `options`, for callers that are not async: scripts, threads, notebooks, web frameworks.

        Ctrl-C cancels the task. Raises what `run` raises, and `ConfigError` in the very event loop that the `Hybrid` belongs to, which the
        call would stop.
        """
        return self.blocking.run(lambda: self.run(prompt, **options))

    def resume_sync(
        self, run: str, *, user: str = "", approvals: Mapping[str, bool] | None = None, **options: Unpack[ResumeOptions]
    ) -> Result:
        """Do what `resume` does, as `run_sync` does what `run` does.

        Args:
            run: the task's idempotency key.
            user: on whose behalf it was begun.
            approvals: decisions about the calls that it waits for, by the requests' ids.
            options: what the task had in addition to the `Hybrid`, and no record can hold: see `ResumeOptions`.
        """
        return self.blocking.run(lambda: self.resume(run, user=user, approvals=approvals, **options))

    def stream_sync(self, prompt: Prompt, **options: Unpack[TaskOptions]) -> Generator[TaskEvent, None, None]:
        """Do what `stream` does with `prompt` and `options`, for callers that are not async; errors are those of `run_sync`.

        An iterator that is closed or dropped cancels its task.
        """
        return self.blocking.stream(lambda: self.stream(prompt, **options))

    def explain(self, prompt: Prompt, **options: Unpack[TaskOptions]) -> SelectionDecision:
        """Return the strategy that `auto` would choose for a task, the alternatives, and the reasons. Nothing is run.

        `prompt` and `options` are those of `run`; raises what `run` raises before its first step.
        """
        preparation = self._pipeline.preparation
        return preparation.explain(preparation.recall(preparation.task(prompt, options), options), options)

    def explain_route(self, prompt: Prompt, **options: Unpack[TaskOptions]) -> RouteDecision:
        """Return the agents that would serve a task, the estimate for each, and the reasons. Nothing is run.

        `prompt` and `options` are those of `run`. If the rules deny the task, `denied` names the rule. Else this raises what `run` raises
        before it begins.
        """
        preparation = self._pipeline.preparation
        asked = preparation.task(prompt, options)
        begun, tools = preparation.begun(asked, options)
        refusal = self._router.refusal(begun, list(self.pool), tools=tools)
        if refusal is not None:
            return refusal
        task, context = preparation.prepare(preparation.recall(asked, options), options)
        tools = list(context.tools)
        if task.role:
            begun, tools = preparation.begun(task, options)
            task = self._router.with_strategy(self._router.apply_rules(begun, tools=tools), list(self.pool), tools=tools)
        return self._router.explain(task.with_memory_in_prompt(), list(self.pool), tools=tools)

    def report(self, result: Result, *, score: float, task_class: str = "", because: str = "") -> None:
        """Tell the router, and `auto` where it chose the strategy, how good a `result` was: `score` is 1 for a task well done, 0 for one
        that failed.

        `task_class` names tasks of one sort, from coarse to fine (`billing/refund`); without it, the class that the task was taken for
        stands. The outcome is kept in the files that `[policy.auto] reports` and `[policy.router] log` name, without the words of a private
        task. A cache gives up the answers of a task whose score is below one half.

        `because` names the fault of a wrong answer; the verifier `rubric` then looks for it in later ones of the class; for one of a
        private answer, in private tasks of the same user alone.

        Raises `InvalidRequest` for a score outside 0 to 1, a class that is no text, and a fault of an answer that was right, or of more
        than 500 characters.
        """
        if not isinstance(task_class, str):
            raise InvalidRequest(f"the class of a task is a text, not {task_class!r}", hint='from coarse to fine: "billing/refund"')
        if not isinstance(score, (int, float)) or not 0 <= score <= 1:
            raise InvalidRequest(f"a score is between 0 and 1, not {score}", hint="1.0 for a task well done, 0.0 for one that failed")
        because = fault_argument(because, score)
        if self._records.cache is not None:
            self._records.cache.report(result.id, score)
        self._router.report(result, self.policy, score=score, task_class=task_class, because=because)


def _current(policy: Policy | PolicyFile) -> Policy:
    return policy.current if isinstance(policy, PolicyFile) else policy
