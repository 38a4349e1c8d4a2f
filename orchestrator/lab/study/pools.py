"""Pools that make runs: `LocalPool` has processes on this machine, `ray_pool.RayPool` actors on a Ray cluster."""

import asyncio
import itertools
import json
import logging
import sys
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Protocol, Self

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

from ....protocols import NearfarError, Unavailable, WorkerCrashed
from ....protocols.errors import BY_REASON
from ...routing.traces import RunRecord
from .study import Study
from .workbench import Item
from .worker import LONGEST_LINE, Json

logger = logging.getLogger(__name__)

_START_SECONDS = 300.0
"""Loading a large model from a slow disk, and starting a gateway, take this long at most."""
_STOP_SECONDS = 10.0
_GRACE_SECONDS = 60.0
"""Beyond a run's own time limit, for the world to start over and to grade; a process that needs longer hangs."""


class Pool(Protocol):
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
        if "error" in answer:
            raise as_error(answer)
        return RunRecord.model_validate(answer["record"])

    async def start(self) -> None:
        """Make sure that the process runs. Raises what opening its agents raises, `Unavailable` where it hangs."""
        async with self._starting:
            if self._listening is not None and not self._listening.done():
                return
            await self._stop()
            command = [sys.executable, "-m", "nearfar.orchestrator.lab.study.worker"]
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


def as_error(answer: Json) -> NearfarError:
    """Convert the answer of a process of the sweep to the error that it describes."""
    return BY_REASON[answer["error"]](answer["message"], hint=answer["hint"])
