"""Group commit: what many runs write at about the same time is one transaction, and each is told when that is kept."""

import asyncio
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, TypeVar

from ...protocols import NearfarError, StoreError, StoreUnavailable
from ..tables import Session, TableDatabase

T = TypeVar("T")
Change = Callable[[Session], T]
"""What is done in a transaction. What it raises undoes it, and nothing else of the transaction."""

_MOST: Final = 500
"""Changes in one transaction."""


class Writer:
    """One thread that writes for all of this process."""

    def __init__(self, database: TableDatabase) -> None:
        self._database = database
        self._process = os.getpid()
        self._waiting: queue.SimpleQueue[tuple[Change[Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="nearfar-runs", daemon=True)
        self._is_closed = False
        self._lock = threading.Lock()
        self._thread.start()

    def submit(self, change: Change[T]) -> "Future[T]":
        """Done when what the change wrote is kept. Fails as the change does, or with a `StoreError`, and then nothing of it is kept."""
        future: Future[T] = Future()
        with self._lock:
            if self._is_closed or self._process != os.getpid():
                raise StoreUnavailable("the store of runs is closed, or belongs to the process that this one was forked from")
            self._waiting.put((change, future))
        return future

    async def write(self, change: Change[T]) -> T:
        return await asyncio.wrap_future(self.submit(change))

    def close(self) -> None:
        """Wait until everything is written."""
        if self._process != os.getpid():
            return
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        is_open = True
        while is_open:
            batch = [self._waiting.get()]
            while len(batch) < _MOST and not self._waiting.empty():
                batch.append(self._waiting.get())
            is_open = None not in batch
            changes = [each for each in batch if each is not None and each[1].set_running_or_notify_cancel()]
            if changes:
                self._write(changes)

    def _write(self, changes: list[tuple[Change[Any], "Future[Any]"]]) -> None:
        try:
            with self._database.writing() as session:
                outcomes = [_applied(session, change) for change, _ in changes]
        except Exception:  # a thread's boundary: each that fails by itself is told below
            self._write_each(changes)
        else:
            for (_, future), (value, failure) in zip(changes, outcomes, strict=True):
                _settle(future, value, failure)

    def _write_each(self, changes: list[tuple[Change[Any], "Future[Any]"]]) -> None:
        """One that cannot be kept, such as one too large for the disk, is not the others' fault. The log is emptied, which makes room."""
        with suppress(StoreError):
            self._database.scrub()
        for change, future in changes:
            value: Any = None
            failure: Exception | None
            try:
                with self._database.writing() as session:
                    value, failure = _applied(session, change)
            except Exception as error:  # a thread's boundary: raised by whoever waits
                failure = error
            _settle(future, value, failure)


def _settle(future: "Future[Any]", value: object, failure: Exception | None) -> None:
    if failure is None:
        future.set_result(value)
    else:
        future.set_exception(failure)


def _applied(session: Session, change: Change[T]) -> tuple[T | None, NearfarError | None]:
    session.execute("SAVEPOINT change")
    try:
        value = change(session)
    except NearfarError as error:
        session.execute("ROLLBACK TO SAVEPOINT change")
        session.execute("RELEASE SAVEPOINT change")
        return None, error
    session.execute("RELEASE SAVEPOINT change")
    return value, None
