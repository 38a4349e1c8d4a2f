"""Cancel work once, which anyio would cancel repeatedly."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


async def cancelled_at_once(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` so that a cancellation ends it by one exception; return, or raise, when it has ended.

    anyio repeats a cancellation at every await, also at those by which LangGraph closes the steps of its nodes.
    """
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    finally:
        await end(task)


async def end(task: asyncio.Task[Any]) -> None:
    """Cancel a task once, unless it is done, and wait for its end. Its error is ignored."""
    if not task.done():
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # asked for, so that asyncio does not report it as lost
