"""The worker process: `python -m nearfar.device.llama.worker FD OPTIONS`, where FD is its end of a socket pair and OPTIONS is JSON.

It lives no longer than its parent: it ends when the socket or its standard input, which the parent holds open and never writes, is closed.
"""

import json
import logging
import os
import select
import socket
import sys
import threading
import time
from dataclasses import asdict
from typing import Final, cast

import psutil
from pydantic import JsonValue

from ...protocols import ModelError, NearfarError, StepRequest
from .frames import Frame, FrameDecoder, encode
from .model import Context, Model, Threads, start_backend
from .protocol import DEFAULT_CONTEXT_TOKENS, StepEventKind, WorkerOptions, WorkerReady, WorkerStatistics, error_to_frame
from .scheduler import Scheduler, StepEvent

_MOST_DEFAULT_CELLS: Final = 16384
_SMALL_MODEL: Final = 20_000_000
"""Parameters below which one token is less work than waking a second thread."""
_FLUSH_SECONDS: Final = 0.0015
"""Events wait at most this long for company: a fast model would otherwise spend its time on sending single tokens."""
_RECEIVE_BYTES: Final = 1 << 16


def main() -> None:
    """Serve one parent until it goes away."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    os.dup2(2, 1)  # Whatever a library prints must not surprise the parent's own standard output.
    threading.Thread(target=_die_with_parent, daemon=True).start()
    connection = socket.socket(fileno=int(sys.argv[1]))
    outbox = _Outbox(connection)
    try:
        start_backend()
        scheduler, ready = _load(WorkerOptions(**json.loads(sys.argv[2])))
    except NearfarError as error:
        outbox.send({"failed": error_to_frame(error)})
        return
    outbox.send({"ready": asdict(ready)})
    _Worker(connection, outbox, scheduler).serve()


def _die_with_parent() -> None:
    os.read(0, 1)
    os._exit(0)


def _load(options: WorkerOptions) -> tuple[Scheduler, WorkerReady]:
    model = Model(options.path, gpu_layers=options.gpu_layers)
    tokens = options.context_tokens or min(model.trained_context_tokens, DEFAULT_CONTEXT_TOKENS)
    cells = max(tokens, min(tokens * options.parallel, _MOST_DEFAULT_CELLS))
    threads = Threads(options.threads, options.threads) if options.threads else _default_threads(model)
    if not options.gpu_layers:
        _check_memory(model, cells)
    context = Context(model, cells=cells, sequences=options.parallel, threads=threads)
    scheduler = Scheduler(model, context, context_tokens=tokens, parallel=options.parallel)
    return scheduler, WorkerReady(context_tokens=tokens)


def _check_memory(model: Model, cells: int) -> None:
    """Raise `ModelError` if the cache cannot fit: to find out by filling the memory would end other processes, too."""
    needed, free = cells * model.bytes_per_cell, psutil.virtual_memory().available
    if needed > free:
        message = f"a context of {cells} tokens needs {needed >> 20} MiB, and {free >> 20} MiB of memory are free"
        raise ModelError(message, hint="give a smaller context_tokens or parallel")


def _default_threads(model: Model) -> Threads:
    if model.parameters < _SMALL_MODEL:
        return Threads(1, 1)
    usable = _usable_cpus()
    return Threads(max(usable // 2, 1), max(min(psutil.cpu_count(logical=False) or 1, usable), 1))


def _usable_cpus() -> int:
    """Logical CPUs that this process may run on: in a container fewer than the machine has."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # Not on macOS.
        return os.cpu_count() or 2


class _Worker:
    """Lets the scheduler run, and hears what the parent wants between any two passes."""

    def __init__(self, connection: socket.socket, outbox: "_Outbox", scheduler: Scheduler) -> None:
        self._connection = connection
        self._outbox = outbox
        self._scheduler = scheduler
        self._frames = FrameDecoder()
        self._poller = select.poll()
        self._poller.register(connection, select.POLLIN)
        self._socket_checks = 0

    def serve(self) -> None:
        """Run steps until the parent closes the socket."""
        scheduler, outbox = self._scheduler, self._outbox
        while self._listen():
            outbox.add(scheduler.round())
            if not scheduler.running or outbox.due:
                outbox.flush(scheduler.decoded_tokens)

    def _listen(self) -> bool:
        """Handle what has arrived, waiting for it only if there is nothing else to do; False once the parent is gone."""
        self._socket_checks += 1
        if self._poller.poll(0 if self._scheduler.busy else None):
            data = self._connection.recv(_RECEIVE_BYTES)
            for frame in self._frames.feed(data):
                self._handle(frame)
            return bool(data)
        return True

    def _handle(self, frame: Frame) -> None:
        if "step" in frame:
            request = StepRequest.model_validate(frame["request"])
            self._scheduler.submit(cast(int, frame["step"]), request, cast("float | None", frame["timeout"]))
        elif "cancel" in frame:
            self._scheduler.cancel(cast(int, frame["cancel"]))
        else:
            self._outbox.send({"statistics": frame["statistics"], "values": asdict(self._statistics())})

    def _statistics(self) -> WorkerStatistics:
        scheduler = self._scheduler
        return WorkerStatistics(
            process_id=os.getpid(),
            decoded_tokens=scheduler.decoded_tokens,
            prefilled_tokens=scheduler.prefilled_tokens,
            decode_calls=scheduler.decode_calls,
            widest_batch=scheduler.widest_batch,
            socket_checks=self._socket_checks,
            active_steps=scheduler.running,
            queued_steps=scheduler.waiting,
        )


class _Outbox:
    """Events on their way to the parent; neighbouring texts of one step become one."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._events: list[list[object]] = []
        self._open_texts: dict[int, list[object]] = {}
        self._flushed = 0.0

    @property
    def due(self) -> bool:
        return time.monotonic() - self._flushed >= _FLUSH_SECONDS

    def add(self, events: list[StepEvent]) -> None:
        for identifier, kind, payload in events:
            text = self._open_texts.get(identifier)
            if kind is StepEventKind.TEXT and text is not None:
                text[2] = cast(str, text[2]) + cast(str, payload)
                continue
            event: list[object] = [identifier, kind, payload]
            self._events.append(event)
            if kind is StepEventKind.TEXT:
                self._open_texts[identifier] = event
            else:
                self._open_texts.pop(identifier, None)

    def flush(self, decoded_tokens: int) -> None:
        self._flushed = time.monotonic()
        if self._events:
            self.send({"events": cast("list[JsonValue]", self._events), "decoded_tokens": decoded_tokens})
            self._events = []
            self._open_texts.clear()

    def send(self, frame: Frame) -> None:
        self._connection.sendall(encode(frame))


if __name__ == "__main__":
    main()
