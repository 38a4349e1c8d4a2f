"""The agent's handle on one worker process: starts it, sends it steps, hears their events, and notices its death."""

import asyncio
import json
import logging
import signal
import socket
from collections.abc import AsyncGenerator
from contextlib import ExitStack, suppress
from dataclasses import asdict
from itertools import count
from typing import Any, Final, TypeAlias, cast

from pydantic import JsonValue

from ...protocols import DeadlineExceeded, ModelError, NearfarError, Stalled, StepRequest, Unavailable, WorkerCrashed
from ...protocols.system import interpreter
from .protocol import (
    BEAT,
    Frame,
    FrameDecoder,
    Liveness,
    StepEventKind,
    WorkerOptions,
    WorkerReady,
    WorkerStatistics,
    encode,
    error_from_frame,
)

_LOAD_SECONDS: Final = 600.0
_EXIT_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 60.0
_SLACK_SECONDS: Final = 0.5
"""The worker ends a step that is out of time between two passes, and knows more of it. The step ends without it after so long."""
_GRACE_SECONDS: Final = 10.0
"""A process that has not ended a step for so long after that hangs."""
_QUIET_SECONDS: Final = 60.0
"""A step that hears nothing for so long asks whether the process still answers."""
_HUNG_SECONDS: Final = 600.0
"""A process answers between any two passes through the model; the largest model's pass on the slowest machine takes less."""
_CRASHES: Final = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS, signal.SIGTRAP}
"""Signals that a process brings upon itself; others are sent to it."""
_STDERR_BYTES: Final = 4096

_LAST: Final = (StepEventKind.FINISHED, StepEventKind.ERROR, StepEventKind.CANCELLED)

WorkerEvent: TypeAlias = tuple[StepEventKind, JsonValue]


class WorkerProcess:
    """A worker that has loaded its model. Make one with `start`."""

    def __init__(self, process: asyncio.subprocess.Process, path: str) -> None:
        self._process = process
        self._path = path
        self._loaded: asyncio.Future[WorkerReady] = asyncio.get_running_loop().create_future()
        self._steps: dict[int, asyncio.Queue[WorkerEvent | None]] = {}
        self._answers: dict[int, asyncio.Future[Frame]] = {}
        self._identifiers = count(1)
        self._transport: asyncio.Transport | None = None
        self._last_words = b""
        self._closing = False
        self._stands_still = False
        self._is_foreign = False
        self._liveness = Liveness(process.pid)
        self._watch = asyncio.create_task(self._watch_process())
        self.live: set[int] = set()
        """Steps that the process has not yet reported as over."""
        self.decoded_tokens = 0
        """Tokens that the process had generated when it last reported."""

    @classmethod
    async def start(cls, module: str, options: WorkerOptions) -> tuple["WorkerProcess", WorkerReady]:
        """Start `python -m module` as a process, and load the model in it.

        Raises `ModelError` if the model cannot be loaded, or the process dies of it, `WorkerCrashed` if another process kills it
        meanwhile, and `Stalled` if it is stopped.
        """
        ours, theirs = socket.socketpair()
        with theirs, ExitStack() as failing:
            failing.callback(ours.close)
            worker = cls(await _spawn(theirs, module, options), options.path)
            failing.pop_all()
        try:
            return worker, await worker._connect(ours)
        except BaseException:
            await worker.close()
            raise

    @property
    def alive(self) -> bool:
        return self._process.returncode is None and not self._closing and not self._stands_still

    async def step(self, request: StepRequest, seconds: float | None) -> AsyncGenerator[WorkerEvent, None]:
        """Run one step, for `seconds` at most. Closing the iterator early cancels it.

        Raises `WorkerCrashed` if the process dies first, `Unavailable` if it is closed, `DeadlineExceeded` if it takes longer, and
        `Stalled` if it hangs or is stopped.
        """
        identifier = next(self._identifiers)
        events = self._steps[identifier] = asyncio.Queue()
        self.live.add(identifier)
        self._send({"step": identifier, "request": request.model_dump(mode="json"), "timeout": seconds})
        loop = asyncio.get_running_loop()
        deadline = None if seconds is None else loop.time() + seconds + _SLACK_SECONDS
        over = False
        try:
            while not over:
                event = await self._next(events, deadline)
                over = event[0] in _LAST
                yield event
        except TimeoutError as error:
            loop.call_later(_GRACE_SECONDS, self._end_hung, identifier)
            raise DeadlineExceeded(f"the step took longer than its timeout of {seconds:g} s", hint="give a longer timeout") from error
        finally:
            del self._steps[identifier]
            if not over:
                self._send({"cancel": identifier})

    async def statistics(self, *, seconds: float = _ANSWER_SECONDS) -> WorkerStatistics:
        """Return the worker's counts, as of when it reads the question. Raises `Stalled` if it does not answer within `seconds`."""
        return WorkerStatistics(**await self._ask("statistics", {}, seconds))

    async def count_tokens(self, request: StepRequest) -> int:
        """Return the tokens of the prompt that a step would begin with. Raises what the step would raise for it, and `Stalled`."""
        values = await self._ask("count", {"request": request.model_dump(mode="json")}, _ANSWER_SECONDS)
        return cast(int, values["tokens"])

    async def _ask(self, question: str, fields: Frame, seconds: float) -> dict[str, Any]:
        """Return the values that answer a question to the worker. Raises the worker's error, and `Stalled` if it does not answer."""
        identifier = next(self._identifiers)
        answer = self._answers[identifier] = asyncio.get_running_loop().create_future()
        self._send({question: identifier, **fields})
        try:
            frame = await asyncio.wait_for(answer, seconds)
        except TimeoutError as error:
            message = f"the worker has not answered for {seconds:g} s"
            raise Stalled(message, hint="close the agent and load it again") from error
        finally:
            del self._answers[identifier]
        if "error" in frame:
            raise error_from_frame(frame["error"])
        return cast("dict[str, Any]", frame["values"])

    async def close(self) -> None:
        """End the process; steps under way end with `Unavailable`."""
        self._closing = True
        if self._transport is not None:
            self._transport.close()
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait([self._watch], timeout=_EXIT_SECONDS)
        finally:
            if not self._watch.done() or (self._watch.cancelled() and self._process.returncode is None):
                self._process.kill()
        if self._watch.cancelled():  # asyncio.run cancels every task before it closes the loop
            await self._process.wait()
        else:
            await self._watch

    def kill(self) -> None:
        """End the process at once, also where its event loop is closed."""
        self._closing = True
        with suppress(ProcessLookupError):
            self._process.kill()

    def received(self, frame: Frame) -> None:
        """Pass on a frame from the worker."""
        self._liveness.heard()
        if "alive" in frame:
            return
        if "events" in frame:
            self.decoded_tokens = cast(int, frame["decoded_tokens"])
            for identifier, name, payload in cast("list[tuple[int, str, JsonValue]]", frame["events"]):
                if (kind := StepEventKind(name)) in _LAST:
                    self.live.discard(identifier)
                # A step that was just cancelled may still send events.
                if (queue := self._steps.get(identifier)) is not None:
                    queue.put_nowait((kind, payload))
        elif "answer" in frame:
            if (answer := self._answers.get(cast(int, frame["answer"]))) is not None and not answer.done():
                answer.set_result(frame)
        elif "log" in frame:
            logging.getLogger(cast(str, frame["name"])).log(cast(int, frame["level"]), "%s", frame["log"])
        elif "ready" in frame:
            self._loaded.set_result(WorkerReady.model_validate(frame["ready"]))
        else:
            self._loaded.set_exception(error_from_frame(frame["failed"]))

    def end_foreign(self, defect: Exception) -> None:
        """End a process that sent what no worker sends; nothing more is read of it."""
        logging.getLogger(__name__).warning("the worker process of %s sent an invalid message: %r", self._path, defect)
        self._is_foreign = True
        with suppress(ProcessLookupError):
            self._process.kill()

    async def _next(self, events: "asyncio.Queue[WorkerEvent | None]", deadline: float | None) -> WorkerEvent:
        if events.empty() and not self.alive:
            raise self._death()
        async with asyncio.timeout_at(deadline):
            event = await self._hear(events)
        if event is None:
            raise self._death()
        return event

    async def _hear(self, events: "asyncio.Queue[WorkerEvent | None]") -> WorkerEvent | None:
        while events.empty():
            with suppress(TimeoutError):
                async with asyncio.timeout(_QUIET_SECONDS):
                    return await events.get()
            await self._check_pulse()
        return events.get_nowait()

    async def _check_pulse(self) -> None:
        """Stop the process if it does not answer: llama.cpp, or what a model file makes Python compute, may hang."""
        try:
            await self.statistics(seconds=_HUNG_SECONDS)
        except Stalled:
            self._process.kill()
            raise

    def _end_hung(self, step: int) -> None:
        """End a process that has not ended a step although its time is long over: a model file may have made it hang."""
        if step in self.live and self.alive:
            self._process.kill()

    async def _end_when_still(self) -> None:
        await self._liveness.until_still()
        if self._process.returncode is None:
            self._stands_still = True
            self._process.kill()

    async def _connect(self, connection: socket.socket) -> WorkerReady:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_unix_connection(lambda: _Receiver(self), sock=connection)
        try:
            return await asyncio.wait_for(self._loaded, _LOAD_SECONDS)
        except TimeoutError as error:
            raise ModelError(f"{self._path} took longer than {_LOAD_SECONDS:.0f} s to load", hint="use a smaller model") from error

    def _send(self, frame: Frame) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(frame))

    async def _watch_process(self) -> None:
        """Keep the end of what the process writes to its standard error, and tell everyone who waits when it is gone."""
        assert self._process.stderr is not None, "it was started with a pipe"
        ending = asyncio.create_task(self._end_when_still())
        try:
            while data := await self._process.stderr.read(_STDERR_BYTES):
                self._last_words = (self._last_words + data)[-_STDERR_BYTES:]
            await self._process.wait()
        finally:
            ending.cancel()
        if self._transport is not None:
            self._transport.close()
        self.live.clear()
        for queue in self._steps.values():
            queue.put_nowait(None)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self._death())
        if not self._loaded.done():
            self._loaded.set_exception(self._death_while_loading())

    def _death_while_loading(self) -> NearfarError:
        if self._stands_still:
            return self._stopped(f"while it loaded {self._path}")
        code = self._process.returncode or 0
        if code >= 0 or -code in _CRASHES:
            hint = "the file may be damaged, or too large for this machine's memory"
            return ModelError(f"loading {self._path} ended the worker process: {self._cause()}", hint=hint)
        message = f"the worker process was killed while it loaded {self._path}: {self._cause()}"
        return WorkerCrashed(message, hint="load it again; if the system ran out of memory, use a smaller model or context")

    def _death(self) -> NearfarError:
        if self._closing:
            return Unavailable("the agent was closed", hint="load it again")
        if self._stands_still:
            return self._stopped("in mid-step")
        return WorkerCrashed(f"the worker process died in mid-step: {self._cause()}", hint="the next step starts a new one")

    def _stopped(self, when: str) -> Stalled:
        message = f"the worker process did nothing for {BEAT.silence_limit:g} s {when}, as if stopped (SIGSTOP), and was killed"
        return Stalled(message, hint="the next step starts a new one")

    def _cause(self) -> str:
        if self._is_foreign:
            return "it sent an invalid message, and was stopped"
        code = self._process.returncode or 0
        cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        words = self._last_words.decode("utf-8", "replace").strip().splitlines()
        return f"{cause}, last words: {words[-1]}" if words else cause


class _Receiver(asyncio.Protocol):
    """Cuts what comes from the worker into frames."""

    def __init__(self, worker: WorkerProcess) -> None:
        self._worker = worker
        self._frames = FrameDecoder()

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._frames.feed(data):
                self._worker.received(frame)
        except Exception as defect:  # the boundary to another process: an invalid message ends that process alone
            self._worker.end_foreign(defect)


async def _spawn(connection: socket.socket, module: str, options: WorkerOptions) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        interpreter(),
        "-P",  # The user's working folder may hold a json.py.
        *("-W", "default"),  # PYTHONWARNINGS=error is meant for the user's own program.
        "-m",
        module,
        str(connection.fileno()),
        json.dumps(asdict(options)),
        pass_fds=[connection.fileno()],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is the parent's to handle; the worker ends with it anyway.
    )
