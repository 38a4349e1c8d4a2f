"""One event loop at a time: objects of a loop are closed when it ends, and opened again in the next one."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from threading import Lock

from ...protocols.event_loop import other_loop


class HomeLoop:
    """The event loop to which the agents, channels and locks of a `Hybrid` belong.

    asyncio's connections, child processes and locks work in one loop only. Loops may follow each other, as with two calls of
    `asyncio.run`: what belongs to the first is released while it shuts down. Two loops at the same time are refused. Calls may come
    from any thread.

    Args:
        release: closes what belongs to the loop, in that loop, such that it can be opened again.
        forget: drops what belongs to a loop that is closed already, where nothing can be awaited any more.
    """

    def __init__(self, release: Callable[[], Awaitable[None]], forget: Callable[[], None]) -> None:
        self.forgetting = [forget]
        """Called in the new loop, before anything else is done there."""
        self._release = release
        self._lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: AsyncGenerator[None] | None = None

    async def enter(self) -> None:
        """Make the running loop the home. Raises `ConfigError` if another loop is home, and is not closed."""
        if self._moved():
            self._end = _until_the_loop_ends(self._release)
            await anext(self._end)

    async def leave(self) -> None:
        """Release what belongs to the loop now."""
        end, self._end = self._end, None  # of two who leave at a time, one releases
        if end is not None:
            await end.aclose()

    def _moved(self) -> bool:
        running = asyncio.get_running_loop()
        with self._lock:
            before = self._loop
            if before is running:
                return False
            if before is not None and not before.is_closed():
                raise other_loop("this Hybrid")
            self._loop = running
            if before is not None:
                for forget in self.forgetting:
                    forget()
            return True


async def _until_the_loop_ends(release: Callable[[], Awaitable[None]]) -> AsyncGenerator[None]:
    """Wait to be closed, which `asyncio.run` does with every generator before it closes its loop."""
    try:
        yield
    finally:
        await release()
