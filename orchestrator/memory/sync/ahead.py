"""Work on one thing while the next one is on its way."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

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
