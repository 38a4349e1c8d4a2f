"""An event loop for tests with one loop each, together with gRPC."""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import TypeVarTuple

Ts = TypeVarTuple("Ts")


class EventLoop(asyncio.SelectorEventLoop):
    """The loop of one test, as `loop_factory` of pytest's anyio plugin.

    gRPC has one queue of answers for all loops. A late answer, as of a call that was cancelled at the end of its test, would fail the
    test that runs next.
    """

    def call_soon_threadsafe(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> asyncio.Handle:
        if self.is_closed() and callback.__name__ == "_handle_callback_wrapper":
            return asyncio.Handle(callback, args, self, context)
        return super().call_soon_threadsafe(callback, *args, context=context)
