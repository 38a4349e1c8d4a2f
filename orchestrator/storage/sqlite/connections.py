"""The connections of one process to a database file: one that writes, and some that read while it does."""

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, TypeVar

from ....protocols import StoreUnavailable
from .driver import Driver
from .errors import Naming
from .patience import patiently

Connection = sqlite3.Connection
T = TypeVar("T")

READERS: Final = 8
"""More readers than that at a time wait for each other."""
PATIENCE: Final = 30.0
"""Seconds that a thread or process waits for others to finish writing."""

_inherited: Final[list[object]] = []
"""Connections of the process that this one was forked from. Even to close one here would break the locks of that process."""


class Connections:
    """Calls may come from any thread. `prepare` is called with each new connection.

    What is used raises `StoreUnavailable` and `StoreCorrupt` in the place of the driver's errors.
    """

    def __init__(self, path: str, driver: Driver, naming: Naming, prepare: Callable[[Connection], None]) -> None:
        self._path = path
        self._naming = naming
        self._driver = driver
        self._prepare = prepare
        self._process = os.getpid()
        self._is_closed = False
        self._lock = threading.Lock()
        self._writer_turn = threading.Lock()
        self._reader_turns = threading.BoundedSemaphore(READERS)
        self._writer: Connection | None = None
        self._readers: list[Connection] = []

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """The connection that writes, within a transaction that is kept when the block ends well. One thread at a time."""
        self._check()
        if not self._writer_turn.acquire(timeout=PATIENCE):
            raise StoreUnavailable(f"{self._path} is being written for more than {PATIENCE:.0f} s", hint="do not nest transactions")
        try:
            with self._naming.translated(self._path, self._driver.errors):
                self._check()
                if self._writer is None:
                    self._writer = self._open()
                with self._transaction(self._writer):
                    yield self._writer
        finally:
            self._writer_turn.release()

    @contextmanager
    def outside(self) -> Iterator[Connection]:
        """The connection that writes, and no transaction: for what SQLite does not do within one."""
        self._check()
        with self._writer_turn, self._naming.translated(self._path, self._driver.errors):
            self._check()
            if self._writer is None:
                self._writer = self._open()
            yield self._writer

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection that sees one state of the database for the whole block."""
        self._check()
        if not self._reader_turns.acquire(timeout=PATIENCE):
            raise StoreUnavailable(f"{self._path} has been read by {READERS} others for more than {PATIENCE:.0f} s")
        try:
            with self._naming.translated(self._path, self._driver.errors):
                connection = self._checked_out()
                try:
                    connection.execute("BEGIN")
                    yield connection
                finally:
                    self._hand_back(connection)
        finally:
            self._reader_turns.release()

    def close(self) -> None:
        """Wait for the writer, and close everything; readers that are busy close themselves."""
        if self._process != os.getpid():
            _inherited.extend((self._writer, *self._readers))
            return
        with self._lock:
            self._is_closed = True
            readers, self._readers = self._readers, []
        with self._writer_turn, self._naming.translated(self._path, self._driver.errors):
            for reader in readers:
                reader.close()
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def _check(self) -> None:
        if self._process != os.getpid():
            message = f"this {self._naming.what} was opened before the process forked, and cannot be used in the child"
            raise StoreUnavailable(message, hint="open it in the process that uses it")
        if self._is_closed:
            raise StoreUnavailable(f"the {self._naming.what} is closed")

    @contextmanager
    def _transaction(self, connection: Connection) -> Iterator[None]:
        self._patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
        try:
            yield
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:  # something went wrong; SQLite itself has rolled back after some errors
                connection.execute("ROLLBACK")

    def _checked_out(self) -> Connection:
        with self._lock:
            if self._readers:
                return self._readers.pop()
        return self._open()

    def _hand_back(self, connection: Connection) -> None:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        with self._lock:
            if not self._is_closed:
                self._readers.append(connection)
                return
        connection.close()

    def _patiently(self, work: Callable[[], T]) -> T:
        return patiently(work, seconds=PATIENCE, errors=self._driver.errors)

    def _open(self) -> Connection:
        return self._patiently(self._opened)

    def _opened(self) -> Connection:
        try:
            connection = self._driver.connect(self._path)
        except UnicodeDecodeError as error:  # SQLite names a damaged part by its bytes
            raise self._naming.damaged(f"{self._path}: its tables cannot be read") from error
        with ExitStack() as failing:
            failing.callback(connection.close)
            self._prepare(connection)
            failing.pop_all()
        return connection
