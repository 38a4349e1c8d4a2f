"""Run blocking code in threads."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Call a function in a thread and return its result. If the caller is cancelled, the function still runs to its end."""
    import anyio.to_thread

    return await anyio.to_thread.run_sync(partial(function, *arguments, **options))


async def run_in_daemon_thread(function: Callable[[], object]) -> object:
    """Call a function in a daemon thread and return its result, or raise its error.

    A thread cannot be stopped. If the caller stops waiting it runs on, but it takes no place in a pool and does not keep the program
    from
    ending.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[object] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: object, error: BaseException | None) -> None:
        if outcome.cancelled():
            return
        if error is None:
            outcome.set_result(result)
        else:
            outcome.set_exception(error)

    def work() -> None:
        report: tuple[object, BaseException | None]
        try:
            report = (context.run(function), None)
        except StopIteration as error:  # which a future refuses to carry
            report = (None, RuntimeError(f"StopIteration: {error.value}"))
        except BaseException as error:  # a thread boundary: raised again in the caller
            report = (None, error)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *report)

    threading.Thread(target=work, name="nearfar tool", daemon=True).start()
    return await outcome
