"""Cancel runs of this process when any process has asked for it."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ...protocols import Cancelled, StoreError
from ..util.runtime import in_thread
from .store import RunStore

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
"""Seconds between two looks at the store, for all runs of the process at once."""


class Cancelling:
    """Cancels what agents are saying as soon as it notices a request, but never a running tool, whose outcome would be unknown."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._under_way: dict[str, tuple[asyncio.Task[object], Callable[[], bool]]] = {}
        self._cut_off: set[str] = set()
        self._looking: asyncio.Task[None] | None = None

    @contextmanager
    def noticed(self, run: str, is_in_tool: Callable[[], bool]) -> Iterator[None]:
        """Raise `Cancelled` within the block once the run's cancellation is requested, unless one of its tools is at work."""
        task = asyncio.current_task()
        assert task is not None, "it is awaited"
        self._under_way[run] = task, is_in_tool
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            yield
        except asyncio.CancelledError:
            if run not in self._cut_off:
                raise
            task.uncancel()
            raise Cancelled(f"run {run} was cancelled") from None
        finally:
            del self._under_way[run]
            self._cut_off.discard(run)
            if not self._under_way:
                self._looking.cancel()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                asked = await in_thread(self._store.to_be_cancelled)
            except StoreError as error:  # a run hears of it behind its step in any case
                logger.warning("requests to cancel runs could not be read: %s", error)
                continue
            for run in self._under_way.keys() & asked - self._cut_off:
                task, is_in_tool = self._under_way[run]
                if not is_in_tool():
                    self._cut_off.add(run)
                    task.cancel()
