"""Limits, look-ahead and change notices that both ends of a sync call use."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import anyio

from ....protocols import DeadlineExceeded, RateLimited
from ...util.runtime import in_thread
from ..changes import Watchers
from .replica import Replica

UNARY_LIMIT: Final = 30.0
"""Seconds for a call with one answer."""
IDLE_LIMIT: Final = 60.0
"""Seconds within which the next message of a stream must come, or be taken."""
_CALLS: Final = 8
"""Calls that one caller may have open at once: two replicas need three."""
_RETRY_AFTER: Final = 1.0


@contextmanager
def in_time(seconds: float) -> Iterator[None]:
    """Raise `DeadlineExceeded` if the block takes longer."""
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError as error:
        raise DeadlineExceeded(f"the other side did not answer within {seconds:g} s", hint="check that it still runs") from error


class Calls:
    """Counts the open calls of each caller."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    @contextmanager
    def one_of(self, caller: str) -> Iterator[None]:
        """Count a call while it is open. Raises `RateLimited` if the caller has too many."""
        if self._open[caller] >= _CALLS:
            raise RateLimited(f"{_CALLS} calls of this caller are open already", hint="close some of them", retry_after=_RETRY_AFTER)
        self._open[caller] += 1
        try:
            yield
        finally:
            self._open[caller] -= 1


T = TypeVar("T")


async def ahead(get: Callable[[], Coroutine[Any, Any, T | None]]) -> AsyncGenerator[T]:
    """Yield the results of `get` up to the first None; the next one is fetched while the caller works on one. Close it when done."""
    upcoming = asyncio.create_task(get())
    try:
        while (one := await upcoming) is not None:
            upcoming = asyncio.create_task(get())
            yield one
    finally:
        upcoming.cancel()
        await asyncio.wait([upcoming])  # a running thread is not left behind


_LOOK_EVERY: Final = 1.0
"""Seconds after which writes by other processes are noticed."""


async def moves(replica: Replica, watchers: Watchers) -> AsyncGenerator[int]:
    """Yield the end of the replica's log: at once, and whenever that, or the facts, change. Close it when done."""
    loop, woken = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        loop.call_soon_threadsafe(woken.set)

    told = None
    with watchers.calling(wake):
        while True:
            woken.clear()
            position, facts = await in_thread(replica.state)
            if (position, facts) != told:
                told = position, facts
                yield position
            with anyio.move_on_after(_LOOK_EVERY):
                await woken.wait()
