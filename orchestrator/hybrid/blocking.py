"""Calls of a `Hybrid` from any thread and any loop: its coroutines run in one event loop, in a daemon thread unless another loop has it."""

import asyncio
import atexit
import os
import queue
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_all
from contextlib import ExitStack, aclosing, contextmanager, suppress
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar

from ...protocols import ConfigError, Unavailable
from ..util.runtime import HomeLoop, call_in_loop, forked, shielded, task_lost

T = TypeVar("T")
Event = TypeVar("Event")

_LOOKS_EVERY: Final = 1.0
"""Seconds after which a caller that waits looks whether the loop is still there."""
_EXIT_SECONDS: Final = 10.0
"""Seconds that a program which ends without closing its `Hybrid` waits for the loop's tasks and agents to end."""


class _Thread(NamedTuple):
    """An event loop that runs in a daemon thread until it is told to stop."""

    loop: asyncio.AbstractEventLoop
    stop: asyncio.Event
    thread: threading.Thread

    @classmethod
    def start(cls) -> "_Thread":
        runner, stop = asyncio.Runner(loop_factory=asyncio.new_event_loop), asyncio.Event()
        loop = runner.get_loop()  # made here, so that the caller gets the error if there are no files left for it

        def live() -> None:
            with runner:  # which cancels the loop's tasks in the end, and has its agents released
                runner.run(stop.wait())

        thread = threading.Thread(target=live, name="nearfar loop", daemon=True)
        thread.start()
        return cls(loop, stop, thread)

    def end(self, seconds: float | None) -> None:
        """Stop the loop and wait for its end: None for as long as it takes, 0 not at all."""
        if self.thread.is_alive():  # in a forked process it is not
            call_in_loop(self.loop, self.stop.set)
            if seconds != 0 and self.thread is not threading.current_thread():
                self.thread.join(seconds)


class _Job(Generic[T]):
    """A coroutine that runs in a loop of another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, start: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.ended: Future[T] = Future()
        self._loop = loop
        self._task: asyncio.Task[T] | None = None
        self._is_cancelled = False
        try:
            loop.call_soon_threadsafe(self._begin, start)  # with the caller's context variables
        except RuntimeError as error:
            raise task_lost() from error

    @contextmanager
    def attended(self) -> Iterator[Self]:
        """Let the coroutine not run on after Ctrl-C, or whatever else its caller raises in this block: cancel it and wait for its end.

        A generator that is closed in this block does not wait: the garbage collector may close it in any thread, the loop's included.
        """
        with ExitStack() as leaving:
            leaving.callback(self.abort)
            try:
                yield self
            except GeneratorExit:
                leaving.pop_all()
                self.cancel()
                raise

    def result(self) -> T:
        """Wait for the result, or raise the coroutine's error."""
        while not wait_for_all([self.ended], _LOOKS_EVERY).done:
            self._require_loop()
        return self.ended.result()

    def next_of(self, events: "queue.SimpleQueue[Event | None]") -> "Event | None":
        """Wait for the next entry of a queue that the coroutine fills."""
        while True:
            with suppress(queue.Empty):
                return events.get(timeout=_LOOKS_EVERY)
            self._require_loop()

    def cancel(self) -> None:
        """Cancel the coroutine without waiting for its end."""
        if not self.ended.done():
            call_in_loop(self._loop, self._cancel)

    def abort(self) -> None:
        """Cancel the coroutine and wait for its end. Does nothing once it has ended."""
        self.cancel()
        while not self.ended.done() and not self._is_lost():
            wait_for_all([self.ended], _LOOKS_EVERY)

    def _require_loop(self) -> None:
        """Raise `Unavailable` if the coroutine has not ended and its loop will not run again."""
        if self._is_lost() and not self.ended.done():
            raise task_lost()

    def _is_lost(self) -> bool:
        """Return whether the loop will not run again: it is closed, or stands still in a program that ends.

        Such a program waits for its threads, and they would wait for the loop.
        """
        return self._loop.is_closed() or not (self._loop.is_running() or threading.main_thread().is_alive())

    def _begin(self, start: Callable[[], Coroutine[Any, Any, T]]) -> None:
        if self._is_cancelled:
            self.ended.set_exception(task_lost())
            return
        self._task = self._loop.create_task(start())
        self._task.add_done_callback(self._settle)

    def _cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    def _settle(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.ended.set_exception(task_lost())
        elif (error := task.exception()) is not None:
            self.ended.set_exception(error)
        else:
            self.ended.set_result(task.result())


class BlockingCalls:
    """Runs coroutines of one `Hybrid` for callers that wait.

    They run in the loop that the `Hybrid` belongs to already or, if it belongs to none, in a loop of its own, in a daemon thread that is
    started for the first of them.
    """

    def __init__(self, home: HomeLoop) -> None:
        self._home = home
        self._process = os.getpid()
        self._starting = threading.Lock()
        self._closing = threading.RLock()  # a signal handler may close what its thread closes already
        self._ending: _Job[None] | None = None
        self._is_closed = False
        """No further call is taken."""
        self._has_ended = False
        self._own: _Thread | None = None
        self._jobs: set[_Job[Any]] = set()

    @property
    def is_elsewhere(self) -> bool:
        """Return whether the own loop is started, and the caller runs in another one."""
        return self._own is not None and self._own.thread.is_alive() and asyncio.get_running_loop() is not self._own.loop

    def run(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine to its end and return its result. Ctrl-C cancels it, and is raised when it has ended.

        Raises `Unavailable` once this is closed, `ConfigError` in the very loop that is to run it, and in a process that was forked since
        the loop was started.
        """
        with self._job(start).attended() as job:
            return job.result()

    def stream(self, start: Callable[[], AsyncGenerator[Event, None]]) -> Generator[Event, None, None]:
        """Yield what an asynchronous generator yields. Closing this one, or dropping it, cancels the other; Ctrl-C in here as in `run`.

        Raises as `run` does.
        """
        events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()

        async def pass_on() -> None:
            async with aclosing(start()) as given:
                async for event in given:
                    events.put(event)

        with self._job(pass_on).attended() as job:
            job.ended.add_done_callback(lambda _: events.put(None))
            while (event := job.next_of(events)) is not None:
                yield event
            job.result()

    async def reach(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await a coroutine in the loop that the `Hybrid` belongs to, which may run in another thread; if it belongs to none, here.

        Raises as `run` does.
        """
        if self._is_at_home():
            return await start()
        job = self._job(start)
        try:
            return await shielded(asyncio.wrap_future(job.ended))
        finally:
            job.cancel()

    async def reach_stream(self, start: Callable[[], AsyncGenerator[Event, None]]) -> AsyncGenerator[Event, None]:
        """Yield what an asynchronous generator yields in the loop that `reach` says. Closing this one cancels the other."""
        if self._is_at_home():
            async with aclosing(start()) as given:
                async for event in given:
                    yield event
            return
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        async def pass_on() -> None:
            async with aclosing(start()) as given:
                async for event in given:
                    call_in_loop(loop, events.put_nowait, event)

        job = self._job(pass_on)
        try:
            job.ended.add_done_callback(lambda _: call_in_loop(loop, events.put_nowait, None))
            while (passed := await events.get()) is not None:
                yield passed
            job.ended.result()
        finally:
            job.cancel()

    def close(self, aclose: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Cancel what runs, run `aclose`, and stop the own loop. A second call does nothing. Raises as `run` does."""
        with self._closing:
            if self._has_ended:
                return
            loop = self._loop()
            self._is_closed = True
            for job in self._jobs.copy():
                job.abort()
            if self._has_ended:  # by a signal handler, in the meantime
                return
            if self._ending is None or self._ending.ended.done():
                self._ending = _Job(loop, aclose)
            with self._ending.attended() as ending:
                ending.result()
            self._has_ended = True
            if self._own is not None:
                self._own.end(None)
                atexit.unregister(self._own.end)

    def _is_at_home(self) -> bool:
        """Return whether the running loop is the `Hybrid`'s, or may become it."""
        home = self._home.loop
        return home is asyncio.get_running_loop() or (home is None and not self.is_elsewhere)

    def _job(self, start: Callable[[], Coroutine[Any, Any, T]]) -> _Job[T]:
        if self._is_closed:
            raise Unavailable("this Hybrid is closed", hint="make another one, and run tasks inside `with Hybrid(...)`")
        job = _Job(self._loop(), start)
        self._jobs.add(job)
        job.ended.add_done_callback(lambda _: self._jobs.discard(job))
        return job

    def _loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop that the `Hybrid` belongs to, or start the own one."""
        if self._own is not None and self._process != os.getpid():
            raise forked()
        loop = self._home.loop or self._started()
        if loop is _running_loop():
            message = "a synchronous call would stop the event loop that this Hybrid belongs to"
            raise ConfigError(message, hint="in async code: await hybrid.run(...), async with Hybrid(...)")
        if loop is not self._home.background and not loop.is_running():
            raise ConfigError("this Hybrid belongs to an event loop that stands still", hint="make another one for synchronous calls")
        return loop

    def _started(self) -> asyncio.AbstractEventLoop:
        """Return the own loop, and start it for the first call."""
        with self._starting:
            if self._own is None or self._own.loop.is_closed():
                self._own = _Thread.start()
                self._process = os.getpid()
                self._home.background = self._own.loop
                # Two ways out for a program that closes nothing: this object is dropped, or the interpreter exits.
                weakref.finalize(self, self._own.end, 0).atexit = False
                atexit.register(self._own.end, _EXIT_SECONDS)
            return self._own.loop


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
