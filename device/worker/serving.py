"""Serve a parent process: load a model, then run the parent's steps until it goes away.

A worker is started as `python -m MODULE FD OPTIONS`, where FD is its end of a socket pair and OPTIONS is JSON. It lives no longer than
its
parent: it ends when the socket or its standard input, which the parent holds open and never writes, is closed.
"""

import json
import logging
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final, TypeAlias, cast

from pydantic import JsonValue

from ...protocols import NearfarError, StepRequest
from .protocol import BEAT, Frame, FrameDecoder, StepEventKind, WorkerReady, WorkerStatistics, encode, error_to_frame
from .scheduler import Scheduler, StepEvent

Load: TypeAlias = Callable[[dict[str, Any]], tuple[Scheduler, WorkerReady]]
"""Loads a model as the options say, which are those of the engine, as a dictionary. Raises `NearfarError` if it cannot."""

_FLUSH_SECONDS: Final = 0.0015
"""Events wait at most this long for company: a fast model would otherwise spend its time on sending single tokens."""
_RECEIVE_BYTES: Final = 1 << 16
_ALIVE: Final = encode({"alive": True})
"""Made beforehand: a model that is being loaded may leave no memory to make it."""


def serve_parent(load: Load) -> None:
    """Serve the parent that started this process until it goes away."""
    os.dup2(2, 1)  # A library's output must not mix with the parent's standard output.
    threading.Thread(target=_die_with_parent, daemon=True).start()
    connection = socket.socket(fileno=int(sys.argv[1]))
    outbox = _Outbox(connection)
    threading.Thread(target=outbox.beat, daemon=True).start()
    logging.basicConfig(handlers=[_ParentsLog(outbox)])
    try:
        scheduler, ready = load(json.loads(sys.argv[2]))
    except NearfarError as error:
        outbox.send({"failed": error_to_frame(error)})
        return
    outbox.send({"ready": ready.model_dump(mode="json")})
    _Worker(connection, outbox, scheduler).serve()


def _die_with_parent() -> None:
    os.read(0, 1)
    os._exit(0)


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
        elif "count" in frame:
            self._outbox.send({"answer": frame["count"], **self._count(StepRequest.model_validate(frame["request"]))})
        else:
            self._outbox.send({"answer": frame["statistics"], "values": asdict(self._statistics())})

    def _count(self, request: StepRequest) -> Frame:
        try:
            return {"values": {"tokens": self._scheduler.prompt_tokens(request)}}
        except NearfarError as error:
            return {"error": error_to_frame(error)}

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
            drafts=scheduler.drafts,
        )


class _Outbox:
    """Events on their way to the parent; neighbouring texts of one step become one."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._events: list[list[object]] = []
        self._open_texts: dict[int, list[object]] = {}
        self._flushed = 0.0
        self._sending = threading.Lock()
        """Any thread of a library may log, and one sends heartbeats."""

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
        self._send(encode(frame))

    def beat(self) -> None:
        """Tell the parent that this process lives, also in the middle of a pass, until the parent is gone."""
        with suppress(OSError):
            while True:
                self._send(_ALIVE)
                time.sleep(BEAT.interval)

    def _send(self, data: bytes) -> None:
        with self._sending:
            self._connection.sendall(data)


class _ParentsLog(logging.Handler):
    """A handler that sends log records to the parent, since the standard error of a worker is shown only if it dies."""

    def __init__(self, outbox: _Outbox) -> None:
        super().__init__()
        self._outbox = outbox

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._outbox.send({"log": self.format(record), "level": record.levelno, "name": record.name})
        except (OSError, ValueError):  # the parent is gone, and this process ends with it; or the text cannot be encoded in UTF-8
            self.handleError(record)
