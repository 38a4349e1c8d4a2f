"""Consolidate the memory while the device rests, a step at a time, and stop at once when there is work."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager

import anyio

from ...protocols import Agent, DeviceState, DeviceStateSource, PowerSource, PrivacyViolation, Side
from ...protocols.items import Namespace
from ...protocols.secrets import log_defect
from ..agents import AgentPool
from ..compression import Summarizer
from ..task import TaskScope, within_scope
from ..task.stores import ConsolidationConfig, reason_to_wait
from ..util.runtime import in_thread
from .consolidation_journal import ConsolidationJob, ConsolidationJournal, ConsolidationResult, scopes
from .store import MemoryStore
from .summing import retire_facts, sum_up_sessions

_ON_MAINS = DeviceState(power_source=PowerSource.MAINS)


class Consolidator:
    """Consolidates the memory of one scope.

    Sources stay unchanged, word for word. New items name them as their lineage: an item is no more trusted than the least trusted
    source, goes no further than the strictest, and is erased with any of them. All changes of one `run` are a batch of the `journal`.

    Args:
        store: the store to consolidate.
        scope: the namespace above the episodic and semantic items.
        agent: a near agent that summarizes and compares; None: summaries are extracts, and only certain repetitions are retired.
        device_state: reads the device's state; None: the device is always ready.
        policy: the conditions and limits of consolidation.
        now: seconds since the epoch.
    """

    def __init__(
        self,
        store: MemoryStore,
        scope: Namespace = (),
        *,
        agent: Agent | None = None,
        device_state: DeviceStateSource | None = None,
        policy: ConsolidationConfig | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        if agent is not None and agent.card.side is Side.FAR:
            raise PrivacyViolation(f"{agent.card.name} is a far agent, and memory is private", hint="let a near agent consolidate it")
        self.journal = ConsolidationJournal(store, scope, now=now)
        """The journal, in which batches can be reverted or confirmed."""
        self._policy = policy or ConsolidationConfig()
        self._job = ConsolidationJob(store, scope, self._policy, self.journal, None if agent is None else Summarizer.of(agent), now)
        self._device_state = device_state or (lambda: _ON_MAINS)

    async def run(self) -> ConsolidationResult:
        """Consolidate as long as the device rests. Each step is complete in itself: whatever ends the run, the next one continues after
        the last step."""
        slept = ConsolidationResult(stopped=self._reason_to_wait())
        if slept.stopped is not None:
            return slept
        async with aclosing(self._steps(slept)) as steps:
            async for _ in steps:
                slept.stopped = self._reason_to_wait()
                if slept.stopped is not None:
                    break
        return slept

    def _reason_to_wait(self) -> str | None:
        """Return why nothing is consolidated now; None: it may be."""
        return reason_to_wait(self._device_state(), self._policy)

    async def _steps(self, slept: ConsolidationResult) -> AsyncGenerator[None]:
        """Do the work, and yield after each step, where the run can stop."""
        for work in (sum_up_sessions, retire_facts):
            async with aclosing(work(self._job, slept)) as steps:
                async for _ in steps:
                    yield


logger = logging.getLogger(__name__)


class BackgroundConsolidation:
    """Consolidates a store in the background from `begin` to `end`, after each idle period between tasks.

    Summaries are made by the first near model on this very device, unless it knows only one small world; else they are extracts.
    """

    def __init__(self, store: MemoryStore, policy: ConsolidationConfig, team: AgentPool, device_state: DeviceStateSource) -> None:
        self._store = store
        self._policy = policy
        self._team = team
        self._device_state = device_state
        self._running: asyncio.Task[None] | None = None
        self._prepare()
        self._position = -1
        """Position of the store's last change, at the last look."""
        self._unchanged_since = 0.0
        self._in_order_at = -1
        """The position at which nothing was left to do."""

    def _prepare(self) -> None:
        self._tasks = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._whole = anyio.CancelScope()
        self._pause = anyio.CancelScope()
        """Cancels the consolidation since the last task."""

    def move(self) -> None:
        """Move to the running event loop, if the loop before is closed."""
        was_begun, self._running = self._running is not None, None
        self._prepare()
        if was_begun:
            self.begin()

    def begin(self) -> None:
        """Begin to consolidate in the running event loop."""
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="nearfar memory")

    async def end(self) -> None:
        """Stop for good, and wait until pending writes are complete."""
        self._whole.cancel()
        if self._running is not None:
            await asyncio.wait([self._running])

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Pause consolidation while a task is served: a running one stops at once, even while a model generates."""
        self._tasks += 1
        self._idle.clear()
        self._pause.cancel()
        try:
            yield
        finally:
            self._tasks -= 1
            if not self._tasks:
                self._idle.set()

    async def _run(self) -> None:
        with self._whole:
            while True:
                await self._idle.wait()
                with anyio.CancelScope() as self._pause:
                    await self._consolidate_when_idle()

    async def _consolidate_when_idle(self) -> None:
        if self._tasks:  # a task has come since the wait ended
            return
        seconds = self._policy.idle_seconds
        while True:
            await anyio.sleep(seconds)
            is_done = await self._consolidate()
            seconds = max(self._policy.idle_seconds, self._policy.settled_seconds if is_done else 0)

    async def _consolidate(self) -> bool:
        """Consolidate, and return whether nothing is left to do; else it is tried again soon."""
        try:
            if reason_to_wait(self._device_state(), self._policy) is not None:
                return False
            position, begun = await in_thread(self._store.engine.position), time.monotonic()
            if position == self._in_order_at:
                return True
            if position != self._position:
                self._position, self._unchanged_since = position, begun
            is_done = await self._consolidate_all()
            # Turns just before the store's last change are not consolidated before they have settled.
            if is_done and begun - self._unchanged_since >= self._policy.settled_seconds:
                self._in_order_at = position
            return is_done
        except Exception as defect:  # a task boundary: no caller waits for it, and tasks can run without it
            log_defect(logger, "the memory could not be consolidated", defect)
            return False

    async def _consolidate_all(self) -> bool:
        """Return whether all scopes were consolidated to their end."""
        if not (found := await in_thread(scopes, self._store)):
            return True
        agent = await self._agent()
        consolidators = [
            Consolidator(self._store, each, agent=agent, device_state=self._device_state, policy=self._policy) for each in found
        ]
        with within_scope(TaskScope(caching="no-store")):  # a cache would keep data that is erased here
            return not any([(await consolidator.run()).stopped for consolidator in consolidators])

    async def _agent(self) -> Agent | None:
        member = next((member for member in self._team if member.side is Side.NEAR and not member.is_elsewhere), None)
        agent = None if member is None else await member.open()
        return agent if agent is not None and agent.card.world is None else None
