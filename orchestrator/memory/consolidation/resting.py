"""Consolidation between tasks: while nobody asks for anything and the device is charged, the memory is put in order."""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from ....protocols import Agent, DeviceStateSource, Side
from ....protocols.redact import log_defect
from ...agents.pool import Team
from ...task.scope import Scope, scope
from ...task.sections.consolidation import ConsolidationConfig, reason_to_wait
from ...util.threads import in_thread
from ..store import MemoryStore
from .scopes import scopes
from .sleeper import Sleeper

logger = logging.getLogger(__name__)


class Rest:
    """Consolidates a store in the background from `begin` to `end`, whenever no task was served for a while.

    Summaries are made by the first near model of this very device, if it knows more than one small world; else they are extracts.
    """

    def __init__(self, store: MemoryStore, policy: ConsolidationConfig, team: Team, device_state: DeviceStateSource) -> None:
        self._store = store
        self._policy = policy
        self._team = team
        self._device_state = device_state
        self._running: asyncio.Task[None] | None = None
        self._prepare()
        self._position = -1
        """Of the store's last change, as it was seen last."""
        self._unchanged_since = 0.0
        self._in_order_at = -1
        """The position at which all that there was to do had been done."""

    def _prepare(self) -> None:
        self._tasks = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._whole = anyio.CancelScope()
        self._pause = anyio.CancelScope()
        """Of the time since the last task."""

    def move(self) -> None:
        """Go on in the running event loop, where the one before is closed."""
        was_begun, self._running = self._running is not None, None
        self._prepare()
        if was_begun:
            self.begin()

    def begin(self) -> None:
        """Consolidate from now on, in the running event loop."""
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="nearfar memory")

    async def end(self) -> None:
        """Stop for good, and wait until what is being written is complete."""
        self._whole.cancel()
        if self._running is not None:
            await asyncio.wait([self._running])

    @contextmanager
    def awake(self) -> Iterator[None]:
        """While a task is served nothing is consolidated: what is under way stops at once, a model in mid-sentence, too."""
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
                    await self._rest()

    async def _rest(self) -> None:
        if self._tasks:  # one has come since the waiting was over
            return
        seconds = self._policy.idle_seconds
        while True:
            await anyio.sleep(seconds)
            is_done = await self._consolidated()
            seconds = max(self._policy.idle_seconds, self._policy.settled_seconds if is_done else 0)

    async def _consolidated(self) -> bool:
        """Whether everything is in order; else it is tried again soon."""
        try:
            if reason_to_wait(self._device_state(), self._policy) is not None:
                return False
            position, begun = await in_thread(self._store.engine.position), time.monotonic()
            if position == self._in_order_at:
                return True
            if position != self._position:
                self._position, self._unchanged_since = position, begun
            is_done = await self._slept_well()
            # What was said just before the store's last change is left alone until it has settled.
            if is_done and begun - self._unchanged_since >= self._policy.settled_seconds:
                self._in_order_at = position
            return is_done
        except Exception as defect:  # a task boundary: nobody waits for this, and tasks do without
            log_defect(logger, "the memory could not be consolidated", defect)
            return False

    async def _slept_well(self) -> bool:
        """Whether all scopes were consolidated to their end."""
        if not (found := await in_thread(scopes, self._store)):
            return True
        agent = await self._agent()
        sleepers = [Sleeper(self._store, each, agent=agent, device_state=self._device_state, policy=self._policy) for each in found]
        with scope(Scope(caching="no-store")):  # a cache would keep what is erased here
            return not any([(await sleeper.run()).stopped for sleeper in sleepers])

    async def _agent(self) -> Agent | None:
        member = next((member for member in self._team if member.side is Side.NEAR and not member.is_elsewhere), None)
        agent = None if member is None else await member.open()
        return agent if agent is not None and agent.card.world is None else None
