"""Letting a second try run beside a first one that takes long."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from ..util.cancellation import end

T = TypeVar("T")


class Race(Generic[T]):
    """A first try, and after a delay a second one beside it: the first useful result counts, and the other try is cancelled.

    Args:
        delay: seconds that the first try has for itself.
        is_useful: whether a result is one that counts. Where neither is, and where both fail, it is as if there were only the first.
    """

    def __init__(self, delay: float, is_useful: Callable[[T], bool]) -> None:
        self.was_started = False
        """The second try has begun."""
        self.second_won = False
        self._delay = delay
        self._is_useful = is_useful
        self._settled = asyncio.Event()

    def settle(self) -> None:
        """The first try is to be the one, however long it takes from here on: the second is cancelled, or does not even begin."""
        self._settled.set()

    async def run(self, first: Coroutine[Any, Any, T], second: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result that counts. Raises what the first try raises, unless the second is useful. Both have ended when this returns."""
        trying = asyncio.create_task(first)
        settled = asyncio.create_task(self._settled.wait())
        try:
            await asyncio.wait((trying, settled), timeout=self._delay, return_when=asyncio.FIRST_COMPLETED)
            if not trying.done() and not settled.done():
                return await self._against(trying, second(), settled)
            return await trying
        finally:
            await end(settled)
            await end(trying)

    async def _against(self, first: asyncio.Task[T], second: Coroutine[Any, Any, T], settled: asyncio.Task[Any]) -> T:
        self.was_started = True
        trying = asyncio.create_task(second)
        try:
            running: set[asyncio.Task[Any]] = {first, trying}
            while running and not settled.done() and not self._won(first) and not self._won(trying):
                await asyncio.wait((*running, settled), return_when=asyncio.FIRST_COMPLETED)
                running = {task for task in running if not task.done()}
            self.second_won = not settled.done() and not self._won(first) and self._won(trying)
            return await (trying if self.second_won else first)
        finally:
            await end(trying)

    def _won(self, task: asyncio.Task[T]) -> bool:
        return task.done() and not task.cancelled() and task.exception() is None and self._is_useful(task.result())
