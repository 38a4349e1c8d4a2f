"""`Sleeper`: consolidates the memory while the device rests, a step at a time, and stops at once when there is work."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import anyio

from ....protocols import Agent, DeviceState, DeviceStateSource, PowerSource, PrivacyViolation, Side
from ....protocols.namespaces import Namespace
from ...compression.summary import Summarizer
from ...task.sections.consolidation import ConsolidationConfig, reason_to_wait
from ..store import MemoryStore
from .bench import Bench, Slept
from .journal import Journal
from .retiring import retire_facts
from .summing import sum_up_sessions

_ON_MAINS = DeviceState(power_source=PowerSource.MAINS)


class Sleeper:
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
        self.journal = Journal(store, scope, now=now)
        """The journal, in which batches can be reverted or confirmed."""
        self._policy = policy or ConsolidationConfig()
        self._bench = Bench(store, scope, self._policy, self.journal, None if agent is None else Summarizer.of(agent), now)
        self._device_state = device_state or (lambda: _ON_MAINS)
        self._tasks = 0
        """Number of tasks at work on this device, for which consolidation has to wait."""
        self._running: anyio.CancelScope | None = None

    @asynccontextmanager
    async def awake(self) -> AsyncIterator[None]:
        """Pause consolidation within this block: a running one stops at once, even while a model generates."""
        self._tasks += 1
        if self._running is not None:
            self._running.cancel()
        try:
            yield
        finally:
            self._tasks -= 1

    def reason_to_wait(self) -> str | None:
        """Return why nothing is consolidated now; None: it may be."""
        return "the device is at work" if self._tasks else reason_to_wait(self._device_state(), self._policy)

    async def run(self) -> Slept:
        """Consolidate as long as the device rests. Each step is complete in itself: whatever ends the run, the next one continues after
        the last step."""
        slept = Slept(stopped=self.reason_to_wait())
        if slept.stopped is not None:
            return slept
        with anyio.CancelScope() as scope:
            self._running = scope
            try:
                async with aclosing(self._steps(slept)) as steps:
                    async for _ in steps:
                        if (reason := self.reason_to_wait()) is not None:
                            slept.stopped = reason
                            break
            finally:
                self._running = None
        if scope.cancelled_caught:
            slept.stopped = "the device is at work"
        return slept

    async def _steps(self, slept: Slept) -> AsyncGenerator[None]:
        """Do the work, and yield after each step, where the run can stop."""
        for work in (sum_up_sessions, retire_facts):
            async with aclosing(work(self._bench, slept)) as steps:
                async for _ in steps:
                    yield
