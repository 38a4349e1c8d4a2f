"""Run code: in threads, cancelled at once, in one event loop at a time, and out of sight of LangChain's tracers."""

import asyncio
import contextvars
import os
import queue
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, aclosing, contextmanager, suppress
from contextvars import ContextVar
from functools import partial, wraps
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, TypeVarTuple

import anyio

from ...protocols import ConfigError, Unavailable
from ...protocols.agent import other_loop

if TYPE_CHECKING:
    from langchain_core.runnables import Runnable, RunnableConfig
    from langchain_core.tracers.stdout import ConsoleCallbackHandler


P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


_IS_UNTRACED: Final[ContextVar[bool]] = ContextVar("nearfar_untraced", default=False)
_SWITCHES: Final = ("LANGSMITH_TRACING", "LANGSMITH_TRACING_V2", "LANGCHAIN_TRACING_V2")
_DEADLY: Final = ("LANGCHAIN_TRACING", "LANGCHAIN_HANDLER")
"""Variables with which LangChain raises an error instead of running anything."""
_OFF: Final = ("", "0", "false", "False")


async def in_thread(function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Call a function in a thread and return its result. If the caller is cancelled, the function still runs to its end."""
    import anyio.to_thread

    return await anyio.to_thread.run_sync(partial(function, *arguments, **options))


def threaded(function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return the async form of a function or method: it calls the function in a thread, as `in_thread` does."""

    @wraps(function)
    async def called(*arguments: P.args, **options: P.kwargs) -> T:
        return await in_thread(function, *arguments, **options)

    return called


async def run_in_daemon_thread(function: Callable[[], object]) -> object:
    """Call a function in a daemon thread and return its result, or raise its error.

    A thread cannot be stopped. If the caller stops waiting it runs on, but it takes no place in a pool and does not keep the program from
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
        call_in_loop(loop, settle, *report)

    _idle_worker().do(work)
    return await outcome


class _Worker:
    """A daemon thread that does one piece of work after another: starting a thread takes longer than many pieces of work."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._live, name="nearfar tool", daemon=True).start()

    def do(self, work: Callable[[], None]) -> None:
        """Do a piece of work, which raises nothing."""
        self._work.put(work)

    def _live(self) -> None:
        while True:
            self._work.get()()
            if len(_idle) >= _MOST_IDLE:
                return
            _idle.append(self)


_MOST_IDLE: Final = 8
"""Threads that wait for work."""
_idle: Final[list[_Worker]] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # a child has none of these threads


def _idle_worker() -> _Worker:
    try:
        return _idle.pop()  # one atomic step: two threads cannot get the same one
    except IndexError:
        return _Worker()


async def run_cancellable(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` so that a cancellation ends it by one exception; return, or raise, when it has ended.

    anyio repeats a cancellation at every await, also at those by which LangGraph closes the steps of its nodes.
    """
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    finally:
        await cancel_task(task)


async def cancel_task(task: asyncio.Task[Any]) -> None:
    """Cancel a task once, unless it is done, and wait for its end. Its error is ignored."""
    if not task.done():
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # asked for, so that asyncio does not report it as lost


def shielded(future: asyncio.Future[T]) -> asyncio.Future[T]:
    """Shield a future as `asyncio.shield` does. If its caller is cancelled, its error is ignored.

    asyncio reports the error of a future that failed after its caller was cancelled as one that was never retrieved.
    """
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return asyncio.shield(future)


_STREAMING: Final[dict[asyncio.Task[Any], asyncio.Task[Any] | None]] = {}
"""The tasks in which streams run, and those that began to read them. asyncio itself holds tasks weakly."""


def in_own_task(stream: Callable[P, AsyncGenerator[T, None]]) -> Callable[P, AsyncGenerator[T, None]]:
    """Let a generator function run in an asyncio task of its own, which does not wait for its reader.

    A loop that shuts down closes all its generators at once, the inner ones before or while the outer ones do. It cancels its tasks before
    that, and a task that is cancelled closes its generators and blocks from the innermost to the outermost one.
    """

    @wraps(stream)
    async def reading(*arguments: P.args, **options: P.kwargs) -> AsyncGenerator[T, None]:
        made: asyncio.Queue[tuple[T] | None] = asyncio.Queue()

        async def run() -> None:
            async with aclosing(stream(*arguments, **options)) as values:
                async for value in values:
                    made.put_nowait((value,))

        task = asyncio.create_task(run())
        _STREAMING[task] = asyncio.current_task()
        task.add_done_callback(_STREAMING.pop)
        task.add_done_callback(lambda _: made.put_nowait(None))
        try:
            while (given := await made.get()) is not None:
                yield given[0]
            task.result()
        finally:
            await cancel_task(task)

    return reading


def calling_task() -> asyncio.Task[Any] | None:
    """Return the running task or, in a stream of `in_own_task`, the one that reads it."""
    task = asyncio.current_task()
    return _STREAMING.get(task, task) if task is not None else None


def call_in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[*Ts], object], *arguments: *Ts) -> None:
    """Call a function in an event loop, from any thread, with the caller's context variables. Does nothing if the loop is closed."""
    with suppress(RuntimeError):  # asyncio's error for that; a look before the call could be too early
        loop.call_soon_threadsafe(call, *arguments)


class HomeLoop:
    """The event loop to which the agents, channels and locks of a `Hybrid` belong.

    asyncio's connections, child processes and locks work in one loop only. Loops may follow each other, as with two calls of `asyncio.run`:
    what belongs to the first is released while it shuts down. Two loops at the same time are refused. Calls may come from any thread.

    Args:
        release: closes what belongs to the loop, in that loop, such that it can be opened again.
        forget: drops what belongs to a loop that is closed already, where nothing can be awaited any more.
    """

    def __init__(self, release: Callable[[], Awaitable[None]], forget: Callable[[], None]) -> None:
        self.forgetting = [forget]
        """Called in the new loop, before anything else is done there."""
        self.releasing = [release]
        """Called, in order, in the loop that is about to be left."""
        self.background: asyncio.AbstractEventLoop | None = None
        """The loop that runs in a thread for synchronous callers."""
        self._lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = os.getpid()
        """The process in which the loop became the home."""
        self._end: AsyncGenerator[None] | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The home; None if there is none, or it is closed. Raises `ConfigError` if it was left in the process that forked this one."""
        if self._loop is None or self._loop.is_closed():
            return None
        if self._process != os.getpid():
            raise forked()
        return self._loop

    async def enter(self) -> None:
        """Make the running loop the home. Raises `ConfigError` if another loop is home, and is not closed."""
        if self._moved():
            self._end = _until_the_loop_ends(self._release)
            if asyncio.get_running_loop() is self.background:
                _KEPT.add(self._end)
            await anext(self._end)

    async def leave(self) -> None:
        """Release what belongs to the loop now."""
        end, self._end = self._end, None  # of two who leave at a time, one releases
        if end is not None:
            _KEPT.discard(end)
            await end.aclose()

    async def _release(self) -> None:
        _KEPT.discard(self._end)
        async with AsyncExitStack() as stack:  # each also where another one fails
            for release in self.releasing:
                stack.push_async_callback(release)

    def _moved(self) -> bool:
        running = asyncio.get_running_loop()
        with self._lock:
            before = self._loop
            if before is running:
                return False
            if self.loop is not None:
                raise other_loop("this Hybrid") if before is not self.background else _background_loop()
            self._loop, self._process = running, os.getpid()
            if before is not None:
                for forget in self.forgetting:
                    forget()
            return True


def forked() -> ConfigError:
    """Return the error for a `Hybrid` whose loop was left in another process."""
    return ConfigError("this Hybrid was used before the process was forked", hint="make it, or use it first, in the child process")


def _background_loop() -> ConfigError:
    hint = "go on with run_sync, or make another one for async code: async with Hybrid(...)"
    return ConfigError("this Hybrid belongs to the event loop of its synchronous calls", hint=hint)


_KEPT: Final[set[AsyncGenerator[None] | None]] = set()
"""Generators that wait for the end of a loop in a thread. Collected as garbage in another one, they might be closed too late to release."""


async def _until_the_loop_ends(release: Callable[[], Awaitable[None]]) -> AsyncGenerator[None]:
    """Wait to be closed, which `asyncio.run` does with every generator before it closes its loop."""
    try:
        yield
    finally:
        await release()


class TasksUnderWay:
    """The tasks that a `Hybrid` serves: closing it ends them, for one that asks an approver might otherwise wait for ever."""

    def __init__(self) -> None:
        self._served: dict[asyncio.Task[Any], frozenset[asyncio.Event]] = {}
        """With what is set when they have ended, and when the calls that await them have."""
        self._is_closed = False

    def forget(self) -> None:
        """Drop what belongs to an event loop that is closed."""
        self._served.clear()

    async def serve(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do the work of a task, in an asyncio task of its own. Raises `Unavailable` once the `Hybrid` is closed."""
        if self._is_closed:
            raise task_lost()
        task = asyncio.current_task()
        assert task is not None, "it is asyncio's"
        with _noted_end() as ends:
            self._served[task] = ends
            try:
                return await start()
            finally:
                self._served.pop(task, None)

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Let the end of a task that is served within this block wait for the block's end, too, where its records are written."""
        with _noted_end():
            yield

    @contextmanager
    def told(self) -> Iterator[None]:
        """Raise `Unavailable` where a task within this block was ended by `end`, and its caller is not cancelled."""
        try:
            yield
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if not self._is_closed or (caller is not None and caller.cancelling()):
                raise
            raise task_lost() from None

    async def end(self) -> None:
        """End all tasks, and wait for it; a task that closes its own `Hybrid` goes on, and is not waited for."""
        self._is_closed = True
        inside, ending = _ENDS.get(), set[asyncio.Event]()
        is_inside = any(inside & ends for ends in self._served.values())
        for task, ends in self._served.items():
            if not inside & ends:
                task.cancel()
                ending |= ends
        if not is_inside:  # else one of them may wait for the task that this is called in
            for ended in ending:
                await ended.wait()


_ENDS: Final[ContextVar[frozenset[asyncio.Event]]] = ContextVar("nearfar_ends", default=frozenset())
"""Set when the tasks have ended in which this code runs."""


@contextmanager
def _noted_end() -> Iterator[frozenset[asyncio.Event]]:
    """Set an event at the end of the block, and yield it with those of the blocks around."""
    ended = asyncio.Event()
    token = _ENDS.set(_ENDS.get() | {ended})
    try:
        yield _ENDS.get()
    finally:
        _ENDS.reset(token)
        ended.set()


def task_lost() -> Unavailable:
    """Return the error of a task that ended with its `Hybrid` or its event loop."""
    return Unavailable("the task was cancelled: its Hybrid was closed, or its event loop has ended", hint="close it after its last task")


def tracing_switches() -> list[str]:
    """Name the variables that turn LangSmith's tracing on for whatever runs in this environment."""
    return _set_in_environment(_SWITCHES)


def deadly_switches() -> list[str]:
    """Name the variables with which LangChain runs nothing."""
    return _set_in_environment(_DEADLY)


def is_untraced() -> bool:
    """Return whether this is inside `untraced`."""
    return _IS_UNTRACED.get()


@contextmanager
def untraced() -> Iterator[None]:
    """Hide what runs inside from LangChain's tracers and callbacks.

    Otherwise, LangGraph shows the state of each graph, with prompts, memory and tool results, to LangSmith if variables say so that were
    set for another app (`LANGSMITH_TRACING`, `LANGCHAIN_TRACING_V2`), to the callbacks of a surrounding runnable, and to handlers that
    other packages have registered. Raises `ConfigError` if a variable is set with which LangChain runs nothing.
    """
    from langchain_core.callbacks import BaseCallbackHandler
    from langchain_core.runnables.config import var_child_runnable_config
    from langchain_core.tracers import context as tracers
    from langsmith import tracing_context

    if found := deadly_switches():
        raise ConfigError(f"{found[0]} is set, with which LangChain runs nothing", hint=f"unset {found[0]}")
    with ExitStack() as left:
        left.enter_context(tracing_context(enabled=False, parent=False))
        left.enter_context(_set(_IS_UNTRACED, True))
        left.enter_context(_set(var_child_runnable_config, None))
        for variable, _, kind, switch in tracers._configure_hooks:  # there is no public way to leave out what others have registered
            is_switched_on = kind is not None and switch is not None and _set_in_environment([switch])
            if is_switched_on or variable.get() is not None:  # where there is a handler already, none is made
                left.enter_context(_set(variable, BaseCallbackHandler() if is_switched_on else None))
        yield


def without_callbacks(config: "RunnableConfig | None") -> "RunnableConfig | None":
    """Return the configuration of a graph that tells no callback anything.

    With `set_debug(True)`, LangChain prints the input and output of all that runs, unless a handler that prints is there already.
    """
    from langchain_core.globals import get_debug

    if get_debug():
        return {**(config or {}), "callbacks": [_silent_printer()]}
    return None if config is None else {**config, "callbacks": None}


def _silent_printer() -> "ConsoleCallbackHandler":
    """Return a handler that LangChain takes for the one that prints. It ignores whatever it may be told."""
    from langchain_core.tracers.stdout import ConsoleCallbackHandler

    class Silent(ConsoleCallbackHandler):
        ignore_llm = ignore_chain = ignore_agent = ignore_retriever = ignore_chat_model = ignore_retry = ignore_custom_event = True

    return Silent()


def untrace_nodes(nodes: Mapping[str, Any]) -> None:
    """Let the nodes of a graph tell no callback that they begin and end, where there is none to be told.

    LangGraph runs each node in a task of its own, and starts another to tell that it has ended: a fifth of what a node costs.

    Args:
        nodes: LangGraph's, by name. One that it has made in another way than now stays as it is.
    """
    for node in nodes.values():
        if steps := getattr(node.node, "steps", ()):
            vars(node)["node"] = _untraced_node(node.node, steps)  # in place of what LangGraph has cached


def _untraced_node(whole: "Runnable[Any, Any]", steps: Sequence["Runnable[Any, Any]"]) -> "Runnable[Any, Any]":
    """Return a node that runs its `steps`, its function and then what writes its update, without the rest of the `whole`."""
    from langchain_core.runnables import Runnable
    from langchain_core.runnables.config import var_child_runnable_config

    class UntracedNode(Runnable[Any, Any]):
        def invoke(self, input: Any, config: "RunnableConfig | None" = None, **options: Any) -> Any:  # noqa: ANN401 - as LangChain has it
            return whole.invoke(input, config, **options)

        async def ainvoke(self, input: Any, config: "RunnableConfig | None" = None, **options: Any) -> Any:  # noqa: ANN401 - as LangChain has it
            if config is None or _is_watched(config):
                return await whole.ainvoke(input, config, **options)
            token = var_child_runnable_config.set(config)  # there LangGraph's `interrupt` looks for it
            try:
                for step in steps:
                    input = await step.ainvoke(input, config)
            finally:
                var_child_runnable_config.reset(token)
            return input

    return UntracedNode()


def _is_watched(config: "RunnableConfig") -> bool:
    """Return whether a callback may listen, such as that of the stream mode `messages` in an app that runs the graph."""
    callbacks = config.get("callbacks")
    return bool(getattr(callbacks, "handlers", callbacks))


@contextmanager
def _set(variable: ContextVar[Any], value: object) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def _set_in_environment(names: Sequence[str]) -> list[str]:
    return [name for name in names if os.environ.get(name, "") not in _OFF]
