"""Start a second attempt at an operation if the first one takes long."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from ..util.cancellation import end

T = TypeVar("T")


class Race(Generic[T]):
    """A first attempt and, after a delay, a second one at the same time: the first useful result is used, and the other attempt is
    cancelled.

    Args:
        delay: seconds that the first attempt has for itself.
        is_useful: accepts or rejects a result. If neither result is useful, or both fail, only the first attempt counts.
    """

    def __init__(self, delay: float, is_useful: Callable[[T], bool]) -> None:
        self.was_started = False
        """The second try has begun."""
        self.second_won = False
        self._delay = delay
        self._is_useful = is_useful
        self._settled = asyncio.Event()

    def settle(self) -> None:
        """Decide the race for the first attempt, however long it takes: the second is cancelled, or does not even begin."""
        self._settled.set()

    async def run(self, first: Coroutine[Any, Any, T], second: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result that counts. Raises what the first attempt raises, unless the second is useful. Both have ended when this
        returns."""
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
