"""Pools of processes that make the runs of a sweep, on this machine or on a Ray cluster, and the program that such a process runs.

A process opens the study's agents, makes the runs that it is given, several at once, and ends with its parent. On this machine, parent
and child speak JSON lines: the study goes in, then "ready" or an error comes out; then items go in and records come out.
"""

import asyncio
import itertools
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Protocol, Self, cast

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

from ....protocols import ConfigError, DeadlineExceeded, NearfarError, Unavailable, WorkerCrashed
from ....protocols.errors import BY_REASON, travelling_class
from ....protocols.system import interpreter
from ...routing.outcome_records import RunRecord
from . import Study
from .workbench import Item, Workbench

logger = logging.getLogger(__name__)
LONGEST_LINE = 1 << 26
"""Bytes of a message between parent and child."""
_START_SECONDS = 300.0
"""Loading a large model from a slow disk, and starting a gateway, take this long at most."""
_STOP_SECONDS = 10.0
_GRACE_SECONDS = 60.0
"""Beyond a run's own time limit, for the world to start over and to grade; a process that needs longer hangs."""
_ADDRESS = "RAY_ADDRESS"
"""The environment variable that names a cluster."""
Json = dict[str, Any]
Send = Callable[[Json], None]


class RunPool(Protocol):
    """Makes runs, up to `capacity` at the same time. An async context manager."""

    @property
    def capacity(self) -> int: ...

    async def run(self, item: Item) -> RunRecord:
        """Make one run. Raises `WorkerCrashed` where its process died, and what keeps the study from being run at all."""
        ...

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


class LocalPool:
    """Processes on this machine, each with its own agents; one that dies is replaced."""

    def __init__(self, study: Study) -> None:
        self._workers = [_Worker(study) for _ in range(study.jobs)]
        self._concurrency = study.concurrency

    @property
    def capacity(self) -> int:
        return len(self._workers) * self._concurrency

    async def run(self, item: Item) -> RunRecord:
        """Make one run in the least busy process."""
        return await min(self._workers, key=lambda worker: worker.busy).run(item)

    async def __aenter__(self) -> Self:
        """Start the processes side by side. Raises what opening the agents raises."""
        async with AsyncExitStack() as stack:
            stack.push_async_exit(self.__aexit__)
            await asyncio.gather(*(worker.start() for worker in self._workers))
            stack.pop_all()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with anyio.CancelScope(shield=True):
            await asyncio.gather(*(worker.aclose() for worker in self._workers))


class _Worker:
    """A child process, replaced when it has died."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._process: anyio.abc.Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._answers: dict[int, asyncio.Future[Json]] = {}
        self._numbers = itertools.count()
        self._starting = anyio.Lock()
        self._sending = anyio.Lock()
        self.busy = 0
        """Runs under way."""

    async def run(self, item: Item) -> RunRecord:
        self.busy += 1
        answer: Json = {}
        try:
            await self.start()
            with anyio.move_on_after(self._study.timeout + _GRACE_SECONDS) as scope:
                answer = await self._ask(item)
            if scope.cancelled_caught:
                await self._kill()
                raise WorkerCrashed(f"a process of the sweep hung for {self._study.timeout + _GRACE_SECONDS:g} s and was stopped")
        finally:
            self.busy -= 1
        return _record(answer)

    async def start(self) -> None:
        """Make sure that the process runs. Raises what opening its agents raises, `Unavailable` where it hangs."""
        async with self._starting:
            if self._listening is not None and not self._listening.done():
                return
            await self._stop()
            command = [interpreter(), "-m", "nearfar.orchestrator.lab.study.pools"]
            self._process = await anyio.open_process(command, stderr=None, start_new_session=True)
            output = await self._handshake(self._process)
            self._listening = asyncio.create_task(self._listen(output))

    async def aclose(self) -> None:
        """Stop the process: it gets a few seconds to close its agents."""
        async with self._starting:
            await self._stop()

    async def _ask(self, item: Item) -> Json:
        assert self._process is not None, "started above"
        stdin = self._process.stdin
        assert stdin is not None, "a pipe by default"
        number = next(self._numbers)
        answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        order = {"number": number, "item": item.model_dump(mode="json")}
        try:
            async with self._sending:  # to that process, whatever has taken its place meanwhile
                await stdin.send(json.dumps(order).encode() + b"\n")
            return await answer
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise WorkerCrashed("a process of the sweep died") from None
        finally:
            del self._answers[number]

    async def _listen(self, output: BufferedByteReceiveStream) -> None:
        """Pass each answer to the run that waits for it; when the process ends, fail all runs that still wait."""
        try:
            while True:
                message: Json = json.loads(await output.receive_until(b"\n", LONGEST_LINE))
                waiting = self._answers.get(message["number"])
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
        except (anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
            logger.debug("a process of the sweep has ended")
        finally:
            for waiting in self._answers.values():
                if not waiting.done():
                    waiting.set_exception(WorkerCrashed("a process of the sweep died", hint="its last words are printed above"))

    async def _handshake(self, process: anyio.abc.Process) -> BufferedByteReceiveStream:
        assert process.stdin is not None, "a pipe by default"
        assert process.stdout is not None, "a pipe by default"
        output = BufferedByteReceiveStream(process.stdout)
        try:
            with anyio.fail_after(_START_SECONDS):
                await process.stdin.send(self._study.model_dump_json().encode() + b"\n")
                answer: Json = json.loads(await output.receive_until(b"\n", LONGEST_LINE))
        except TimeoutError:
            raise Unavailable(f"a process of the sweep did not start within {_START_SECONDS:g} s") from None
        except (anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise Unavailable("a process of the sweep died while it started", hint="its error is printed above") from None
        if "error" in answer:
            raise as_error(answer)
        return output

    async def _kill(self) -> None:
        """End the process, and do not return before the next run finds it ended."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
        if self._listening is not None:
            await asyncio.wait([self._listening])

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None, "a pipe by default"
        await process.stdin.aclose()
        with anyio.move_on_after(_STOP_SECONDS):
            await process.wait()
        if process.returncode is None:
            process.kill()
        if self._listening is not None:
            await self._listening
        await process.aclose()


class RayPool:
    """Actors on the Ray cluster that RAY_ADDRESS names, else on a Ray of this machine, on loopback, that ends with the sweep.

    Raises `ConfigError` where Ray is not installed.
    """

    def __init__(self, study: Study) -> None:
        self._ray = _ray()
        self._study = study
        self._actors: list[Any] = []
        self._busy: list[int] = []
        self._was_running = False

    @property
    def capacity(self) -> int:
        return self._study.jobs * self._study.concurrency

    async def run(self, item: Item) -> RunRecord:
        """Make one run on the least busy actor."""
        index = min(range(len(self._actors)), key=self._busy.__getitem__)
        actor = self._actors[index]
        self._busy[index] += 1
        try:
            running = actor.run.remote(item.model_dump(mode="json"))
            answer = await self._answer(running, self._study.timeout + _GRACE_SECONDS)
        except (DeadlineExceeded, WorkerCrashed) as error:
            if self._actors[index] is actor:  # another run of it may have come first
                self._ray.kill(actor)
                self._actors[index] = self._new_actor()
            raise WorkerCrashed(error.message) from error
        finally:
            self._busy[index] -= 1
        return _record(answer)

    async def __aenter__(self) -> Self:
        """Start the actors. Raises what opening their agents raises, `Unavailable` where the cluster has no room."""
        self._was_running = self._ray.is_initialized()
        if not self._was_running:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            self._ray.init(None if _ADDRESS in os.environ else "local", include_dashboard=False, configure_logging=False)
        self._actors = [self._new_actor() for _ in range(self._study.jobs)]
        self._busy = [0] * len(self._actors)
        async with AsyncExitStack() as stack:
            stack.push_async_exit(self.__aexit__)
            try:
                problems = await asyncio.gather(*(self._answer(actor.open.remote(), _START_SECONDS) for actor in self._actors))
            except DeadlineExceeded as error:
                raise Unavailable(error.message, hint="has the cluster a free CPU for each job?") from None
            for problem in filter(None, problems):
                raise as_error(problem)
            stack.pop_all()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(_STOP_SECONDS):
                await asyncio.gather(*(_wait_for(actor.aclose.remote()) for actor in self._actors), return_exceptions=True)
            for actor in self._actors:
                self._ray.kill(actor)
            if not self._was_running:
                self._ray.shutdown()

    def _new_actor(self) -> Any:  # noqa: ANN401 - a handle without a type
        kind = self._ray.remote(SweepActor).options(num_cpus=1, max_concurrency=self._study.concurrency)
        return kind.remote(self._study.model_dump_json())

    async def _answer(self, running: object, seconds: float) -> Json:
        """Raises `WorkerCrashed` where the actor died, `DeadlineExceeded` where it is silent."""
        try:
            with anyio.fail_after(seconds):
                return cast(Json, await _wait_for(running))
        except TimeoutError:
            raise DeadlineExceeded(f"an actor on Ray did not answer within {seconds:g} s") from None
        except self._ray.exceptions.RayError as error:
            raise WorkerCrashed(f"an actor on Ray died: {type(error).__name__}") from error


class SweepActor:
    """One process on the cluster. Errors travel as JSON, since Ray would rather pickle them."""

    def __init__(self, study: str) -> None:
        self._workbench = Workbench(Study.model_validate_json(study))
        self._opening = anyio.Lock()
        self._is_open = False

    async def open(self) -> Json:
        """Open the agents, unless they are."""
        async with self._opening:
            if not self._is_open:
                try:
                    await self._workbench.__aenter__()
                except NearfarError as error:
                    return error_as_json(error)
                self._is_open = True
            return {}

    async def run(self, item: Json) -> Json:
        """Make one run; an actor that took another one's place opens its agents first."""
        problem = await self.open()
        return problem or await answer_of(self._workbench, item)

    async def aclose(self) -> None:
        """Close the agents."""
        if self._is_open:
            await self._workbench.__aexit__(None, None, None)


async def _wait_for(running: object) -> object:
    return await cast(Awaitable[object], running)


def _ray() -> Any:  # noqa: ANN401 - a module that is there only with an extra
    if _ADDRESS not in os.environ:
        # Ray reads this when it is imported. For all its name, it makes a Ray of one machine listen on loopback alone, also on Linux.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise ConfigError("--ray needs Ray", hint="pip install 'nearfar[ray]', or leave --ray out") from error
    return ray


async def answer_of(workbench: Workbench, item: Json) -> Json:
    """Make a run and return its record as JSON, or the error for the parent to handle."""
    try:
        record = await workbench.run(Item.model_validate(item))
    except NearfarError as error:
        return error_as_json(error)
    except Exception as error:  # a task boundary: a failure in the user's world must not end the other runs of the process
        logger.exception("run %s broke", item)
        return error_as_json(WorkerCrashed(f"the run broke: {type(error).__name__}: {error}"))
    return {"record": record.model_dump(mode="json")}


def _record(answer: Json) -> RunRecord:
    """Return the record of an answer. Raises the error that it describes instead."""
    if "error" in answer:
        raise as_error(answer)
    return RunRecord.model_validate(answer["record"])


def as_error(answer: Json) -> NearfarError:
    """Convert the answer of a process of the sweep to the error that it describes."""
    return BY_REASON[answer["error"]](answer["message"], hint=answer["hint"])


def error_as_json(error: NearfarError) -> Json:
    """Convert an error to JSON for the parent; `pools.as_error` converts it back."""
    return {"error": travelling_class(error).__name__, "message": error.message, "hint": error.hint}


async def work_until_parent_leaves(send: Send) -> None:
    """Serve the parent until standard input closes; what still runs then is stopped."""
    reader = await _standard_input()
    study = Study.model_validate_json(await reader.readline())
    try:
        async with Workbench(study) as workbench:
            send({"ready": True})
            async with anyio.create_task_group() as running:
                async for line in reader:
                    running.start_soon(_run, workbench, json.loads(line), send)
                running.cancel_scope.cancel()
    except NearfarError as error:
        send(error_as_json(error))


async def _run(workbench: Workbench, order: Json, send: Send) -> None:
    send({"number": order["number"], **await answer_of(workbench, order["item"])})


async def _standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def _private_output() -> Send:
    """Redirect prints to standard error, and return a function that sends messages to the parent on the old standard output."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(message: Json) -> None:
        try:
            answers.write(json.dumps(message).encode() + b"\n")
            answers.flush()
        except BrokenPipeError:  # the parent was killed: standard input ends, too
            # What the buffer still holds goes to /dev/null instead of failing again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), answers.fileno())

    return send


def main() -> None:
    """Run the child process."""
    logging.basicConfig(level=logging.WARNING, format="nearfar sweep: %(message)s")
    # Ctrl-C reaches the whole terminal; the parent decides when its workers stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(work_until_parent_leaves(_private_output()))


if __name__ == "__main__":
    main()
