"""Tasks as runs: begun once, resumed where they stopped, and what came of them on record."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

import anyio
from pydantic import BaseModel

from ...protocols import (
    ApprovalNeeded,
    ConfigError,
    DeadlineExceeded,
    IdempotencyConflict,
    InvalidOutput,
    InvalidRequest,
    NearfarError,
    RunBusy,
    StoreError,
)
from ..runs import (
    Bounds,
    KeptTask,
    Lease,
    RunFailure,
    RunParts,
    RunState,
    damaged_run,
    digest,
    find_tightened,
    find_tightened_since,
    thread_config,
)
from ..runs.leases import CancellationWatch
from ..runs.ledger import EffectLedger, approval_error, open_ledger, record_decisions
from ..runs.store import RunStore
from ..runs.tool_calls import Overdue
from ..task import Task, read_output
from ..task.results import Result
from ..util.runtime import in_thread, untraced
from .state import TaskContext, graph_input

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from ..runs.checkpointer import RunCheckpointer
    from .calls import TaskGraph

logger = logging.getLogger(__name__)

Prepared = tuple[Task, TaskContext]
Preparing = Callable[[], Awaitable[Prepared]]
Equipping = Callable[[Task], TaskContext]
"""Return the context for a task that is resumed."""
Bounding = Callable[[Task, Sequence[str]], Bounds]
"""How far the policy lets a task with these tools go now. Raises where it denies the task."""
TIDIED_EVERY: Final = 100
"""Runs that end, before old ones are looked for again."""


@dataclass(frozen=True)
class Work:
    """A task that is about to be served."""

    task: Task
    context: TaskContext
    lease: Lease | None = None
    """None: the task is no durable run."""
    goes_on: bool = False
    """Its graph has begun before."""
    recorded: Result | None = None
    """The recorded result, if the task was served before."""

    def recorded_with(self, model: type[BaseModel] | None) -> Result:
        """Return the recorded result with an object of the `model` as its output. Raises `InvalidRequest` if it does not fit."""
        recorded = self.recorded
        assert recorded is not None, "the caller has looked"
        if model is None:
            return recorded
        hint = "resume it with the model that it was begun with"
        if self.task.output_schema is None:
            raise InvalidRequest(f"run {recorded.id} was begun without an output, so there is no {model.__name__}", hint=hint)
        try:
            return recorded.model_copy(update={"output": read_output(recorded.text, self.task.output_schema, model)})
        except InvalidOutput as error:
            raise InvalidRequest(f"the answer of run {recorded.id} is no {model.__name__}: {error.message}", hint=hint) from error


class DurableRuns:
    """The runs of one `Hybrid` in a store. `agents` are the names of those that it has, `bounds` those of its policy."""

    def __init__(self, store: RunStore, agents: tuple[str, ...], bounds: Bounding) -> None:
        self.store = store
        self._agents = agents
        self._bounds = bounds
        self._cancelling = CancellationWatch(store)
        self._busy: dict[str, anyio.Event] = {}
        """Runs that this `Hybrid` works on."""
        self._overdue: WeakValueDictionary[str, Overdue] = WeakValueDictionary()
        """By run: calls whose tools still run, those of runs that have failed since included. They hold the entry while they run."""
        self._ended = 0

    def forget(self) -> None:
        """Drop what belongs to an event loop that is closed."""
        self._busy.clear()
        self._overdue.clear()
        self._cancelling = CancellationWatch(self.store)

    @cached_property
    def checkpointer(self) -> "RunCheckpointer":
        return self.store.checkpointer

    @asynccontextmanager
    async def begin(self, asked: Task, prepare: Preparing, equip: Equipping) -> AsyncIterator[Work]:
        """Yield the work for a task: a new run, the run that its idempotency key names, or that run's result.

        Raises `IdempotencyConflict` if the key belongs to another task, or to a run under way which was begun under looser bounds,
        `RunBusy` if another process works on it, and what `resume` does.
        """
        run = asked.idempotency_key
        async with self._alone(run, asked.timeout):
            known = await self.store.find(run, user=asked.user, digest=digest(asked))
            if known is not None:
                async with self._again(run, asked.user, equip, asked) as work:
                    yield work
                return
            task, context = await prepare()
            kept = KeptTask.of(task, tools=tuple(context.tools), agents=self._agents, bounds=self._bounds(task, tuple(context.tools)))
            lease = await self.store.begin(kept, digest(asked))
            async with self._worked_on(lease):
                yield Work(task, self._equipped(context, lease, task.user), lease)

    @asynccontextmanager
    async def resume(self, run: str, user: str, equip: Equipping) -> AsyncIterator[Work]:
        """Yield the work for a run that is resumed, or its result. `ConfigError` names the tools and agents that are missing here.

        Raises `IdempotencyConflict` if the policy is tighter now than when the run began, what the policy raises if it denies the task
        now, and what `claim` raises.
        """
        async with self._alone(run), self._again(run, user, equip) as work:
            yield work

    async def keep(self, work: Work, result: Result) -> Result:
        """Record the result, so that a later request for the same run gets it."""
        if work.lease is not None:
            with anyio.CancelScope(shield=True):
                kept = None if work.task.turn is None else (await in_thread(self.store.task, work.lease.run)).without_history
                await self.store.finish(work.lease, result.model_dump_json(), task=kept)
                self._ended += 1
                if self._ended % TIDIED_EVERY == 1:  # a process may serve one task alone
                    await self._tidy()
        return result

    async def _tidy(self) -> None:
        try:
            await in_thread(self.store.tidy)
        except StoreError as error:  # The task is done all the same; it is tried again when more runs have ended.
            logger.warning("old runs could not be forgotten: %s", error)

    async def decide(self, run: str, user: str, approvals: Mapping[str, bool]) -> None:
        """Record decisions about the approvals that a run waits for. Raises `NotFound` if the user has no such run, or it waits for
        none."""
        known = await in_thread(self.store.show, run, user=user)
        if known.state is RunState.CANCELLED:
            return  # which the caller is told when it resumes the run
        await in_thread(record_decisions, self.store.database, run, approvals)

    async def serve(self, work: Work, graph: "TaskGraph", config: "RunnableConfig") -> dict[str, Any]:
        """Run the task's graph and return its final state. Each node's result is kept before the next node begins.

        Raises `ApprovalNeeded` if the graph stops for an approval, `Cancelled` if the run was cancelled, and `RunBusy`.
        """
        config, effects = self._configured(work, config), work.context.tool_checks.effects
        assert work.lease is not None, "it is a durable run"
        assert isinstance(effects, EffectLedger), "which has a ledger"
        with untraced(), self._cancelling.cancel_on_request(work.lease.run, lambda: effects.is_at_work):
            state = await graph.ainvoke(None if work.goes_on else graph_input(work.task), config, context=work.context, durability="sync")
        error = None if state is None else approval_error(work.lease.run, state)
        if error is not None:
            raise error
        return dict(state if state is not None and "attempts" in state else (await graph.aget_state(config)).values)

    def _configured(self, work: Work, config: "RunnableConfig") -> "RunnableConfig":
        """Return the graph's configuration, with its thread."""
        assert work.lease is not None, "it is a durable run"
        return {**config, "configurable": thread_config(work.lease)}

    @asynccontextmanager
    async def _again(self, run: str, user: str, equip: Equipping, asked: Task | None = None) -> AsyncIterator[Work]:
        known = await in_thread(self.store.show, run, user=user)
        kept = await in_thread(self.store.task, run)
        task = kept.whole
        if known.state is RunState.DONE:
            yield Work(task, TaskContext({}), recorded=await in_thread(self._recorded, run))
            return
        if options := find_tightened_since(kept, self._bounds(task, kept.tools)) if asked is None else find_tightened(asked, task):
            hint = "ask under another key, which makes it another run" if asked is not None else "ask for the task again, under another key"
            raise IdempotencyConflict(f"run {run} was begun under a looser {' and '.join(options)}", hint=hint)
        self._check(run, kept, equip(task))
        try:
            lease = await self.store.claim(run, user=user)
        except InvalidRequest:  # another process has just done it
            yield Work(task, TaskContext({}), recorded=await in_thread(self._recorded, run))
            return
        async with self._worked_on(lease):
            context = equip(task)  # again: until now, another process may have added to what is kept of the run's privacy and budget
            latest = await self.checkpointer.aget_tuple({"configurable": {"thread_id": run}})
            yield Work(task, self._equipped(context, lease, task.user), lease, goes_on=latest is not None)

    def _recorded(self, run: str) -> Result:
        found = self.store.outcome(run)
        try:
            return Result.model_validate_json(found if isinstance(found, str) else "")
        except ValueError as error:
            raise damaged_run(run) from error

    def _check(self, run: str, kept: KeptTask, context: TaskContext) -> None:
        lacking = [f"tool {name!r}" for name in kept.tools if name not in context.tools]
        lacking += [f"agent {name!r}" for name in kept.agents if name not in self._agents]
        if lacking:
            hint = "resume it with the tools and agents that it was begun with"
            raise ConfigError(f"run {run} was begun with {', '.join(lacking)}, which {_is(lacking)} not here", hint=hint)

    def _equipped(self, context: TaskContext, lease: Lease, user: str) -> TaskContext:
        """Return the context with the run's ledger of effects, and with the place that keeps the steps of its parts."""
        overdue = self._overdue.setdefault(lease.run, Overdue())
        ledger = open_ledger(self.store, lease, context.tool_checks.approver, user=user, overdue=overdue)
        keeping = RunParts(self.checkpointer, lease)
        return replace(context, tool_checks=replace(context.tool_checks, effects=ledger), keeping=keeping)

    @asynccontextmanager
    async def _alone(self, run: str, seconds: float | None = None) -> AsyncIterator[None]:
        """Wait until no other caller in this process works on the run. Raises `DeadlineExceeded` after `seconds`."""
        with anyio.move_on_after(seconds) as waiting:
            while (other := self._busy.get(run)) is not None:
                await other.wait()
        if waiting.cancelled_caught:
            raise DeadlineExceeded(f"run {run} took longer than {seconds:g} s, and goes on", hint="ask again, or raise the timeout")
        self._busy[run] = mine = anyio.Event()
        try:
            yield
        finally:
            del self._busy[run]
            mine.set()

    @asynccontextmanager
    async def _worked_on(self, lease: Lease) -> AsyncIterator[None]:
        """Write down how it ends, where it does not end well."""
        try:
            yield
        except RunBusy:  # another process has it now
            self.store.forget_lease(lease)
            raise
        except BaseException as error:  # recorded, and raised again
            with anyio.CancelScope(shield=True):
                await self._ended_badly(lease, error)
            raise
        else:
            self.store.forget_lease(lease)

    async def _ended_badly(self, lease: Lease, error: BaseException) -> None:
        try:
            if isinstance(error, NearfarError) and not isinstance(error, ApprovalNeeded | StoreError):
                failure = RunFailure(error=type(error).__name__, message=error.message, hint=error.hint)
                await self.store.finish(lease, failure)
            else:
                await self.store.release(lease, waiting=isinstance(error, ApprovalNeeded))
        except (StoreError, RunBusy) as failed:  # The first error is the one to raise; the run stays as it is, for anyone to resume.
            logger.warning("the end of run %s could not be recorded: %s", lease.run, failed)
        finally:
            self.store.forget_lease(lease)


def _is(lacking: list[str]) -> str:
    return "is" if len(lacking) == 1 else "are"
