"""A private SQLite file of tables that several rooms and processes of one user share: one connection writes, several read."""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from typing import Final, TypeVar

from ...protocols import StoreError, StoreUnavailable
from ...protocols.system import CLOSED_ON_EXEC
from . import Tables, create_if_missing
from .sqlite_files import LOG, LOG_INDEX, PRIMARY_CODE, Driver, FileIdentity, Naming, check_plain, driver_for, identity, is_foreign, prepare

T = TypeVar("T")
_PAUSE: Final = 0.01
Connection = sqlite3.Connection
READERS: Final = 8
"""Most readers at a time; further ones wait."""
LOCK_TIMEOUT: Final = 30.0
"""Seconds that a thread or process waits for another writer."""
_inherited: Final[list[object]] = []
"""Connections of the parent process. Even to close one here would break the locks of the parent."""
_POLL_SECONDS: Final = 0.05
APPLICATION: Final = 0x4E667264
"""Marks the file as one of nearfar's (`PRAGMA application_id`)."""
_NO_ROOM: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
"""Results of SQLite where it cannot create the log and its index."""
_INDEX_BYTES: Final = 32768
"""Least size of the index of a log that a process uses (https://www.sqlite.org/walformat.html)."""
_FORBIDDEN: Final = (sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)


class Disk:
    """The disk under a database. Callers that wait while it is busy share its next flush. Raises `OSError` if it fails."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._turn = threading.Lock()
        self._asked = 0
        self._kept = 0
        """Number of calls that have been served."""

    def sync(self) -> None:
        """Return when all earlier commits would survive a power cut."""
        self._asked += 1  # Two that count as one are served by the same turn, which neither has begun.
        mine = self._asked
        with self._turn:
            if self._kept >= mine:
                return
            served = self._asked
            for path in (self._path + LOG, os.path.dirname(self._path)):
                _sync(path)
            self._kept = served


def _sync(path: str) -> None:
    try:
        opened = os.open(path, os.O_RDONLY | CLOSED_ON_EXEC)
    except FileNotFoundError:
        return  # The log was taken into the database just now, which SQLite does by way of the disk.
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def retry_while_busy(work: Callable[[], T], *, seconds: float, errors: type[Exception] = sqlite3.Error) -> T:
    """Return the value of `work`, retried for so many seconds while SQLite is busy.

    SQLite says at once that it is busy, whatever its timeout (https://www.sqlite.org/c3ref/busy_handler.html), while another process makes
    the file, recovers its log, or is the last to close it. `errors`: class of the driver's errors.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return work()
        except errors as error:
            if getattr(error, "sqlite_errorcode", 0) & PRIMARY_CODE != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE)


class SqliteConnections:
    """The connections of one process to a file. Calls may come from any thread. `prepare` is called with each new connection.

    The context managers raise `StoreUnavailable` and `StoreCorrupt` in the place of the driver's errors.
    """

    def __init__(self, path: str, driver: Driver, naming: Naming, prepare: Callable[[Connection], None]) -> None:
        self._path = path
        self._log_paths = (path + LOG, path + LOG_INDEX)
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
        self._file: FileIdentity | None = None
        self._logs: dict[str, FileIdentity] = {}
        """The log and its index since the writer was opened. SQLite removes them only with the last connection of all processes."""
        self._unlocked: dict[Connection, tuple[Exception, tuple[int, int, int]]] = {}
        """Connections that read the file as it is, with the reason and the state of the file."""

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Lend the writing connection, within a transaction that is committed when the block ends without an error. One thread at a
        time."""
        self._check()
        if not self._writer_turn.acquire(timeout=LOCK_TIMEOUT):
            raise StoreUnavailable(f"{self._path} has been written for more than {LOCK_TIMEOUT:.0f} s", hint="do not nest transactions")
        try:
            with self._naming.translated(self._path, self._driver.errors):
                self._check()
                connection = self._opened_writer()
                retry_while_busy(lambda: connection.execute("BEGIN IMMEDIATE"), seconds=LOCK_TIMEOUT, errors=self._driver.errors)
                try:
                    self._check_files()
                    with self._unchanged(connection):
                        yield connection
                    connection.execute("COMMIT")
                finally:
                    if connection.in_transaction:  # something went wrong; SQLite itself has rolled back after some errors
                        connection.execute("ROLLBACK")
                    if connection in self._unlocked:
                        self._writer = None
                        self._close(connection)
        finally:
            self._writer_turn.release()

    @contextmanager
    def outside(self) -> Iterator[Connection]:
        """Lend the writing connection outside of a transaction, for statements that SQLite does not run within one."""
        self._check()
        with self._writer_turn, self._naming.translated(self._path, self._driver.errors):
            self._check()
            connection = self._opened_writer()
            self._check_files()
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Lend a connection that sees one state of the database for the whole block."""
        self._check()
        if not self._reader_turns.acquire(timeout=LOCK_TIMEOUT):
            raise StoreUnavailable(f"{self._path} has been read by {READERS} others for more than {LOCK_TIMEOUT:.0f} s")
        try:
            with self._naming.translated(self._path, self._driver.errors):
                connection = self._checked_out()
                try:
                    self._check_file()
                    connection.execute("BEGIN")
                    with self._unchanged(connection):
                        yield connection
                finally:
                    self._hand_back(connection)
        finally:
            self._reader_turns.release()

    def close(self) -> None:
        """Wait for the writer, and close all connections; busy readers close themselves."""
        if self._process != os.getpid():
            _inherited.extend((self._writer, *self._readers))
            return
        with self._lock:
            self._is_closed = True
            readers, self._readers = self._readers, []
        with self._writer_turn, self._naming.translated(self._path, self._driver.errors):
            for reader in readers:
                self._close(reader)
            if self._writer is not None:
                self._close(self._writer)
                self._writer = None

    def _check(self) -> None:
        if self._process != os.getpid():
            message = f"this {self._naming.what} was opened before the process forked, and cannot be used in the child"
            raise StoreUnavailable(message, hint="open it in the process that uses it")
        if self._is_closed:
            raise StoreUnavailable(f"the {self._naming.what} is closed")

    def _opened_writer(self) -> Connection:
        if self._writer is None:
            self._writer, self._logs = self._open(), {}
        return self._writer

    def _checked_out(self) -> Connection:
        with self._lock:
            if self._readers:
                return self._readers.pop()
        return self._open()

    def _hand_back(self, connection: Connection) -> None:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        with self._lock:
            if not self._is_closed and connection not in self._unlocked:
                self._readers.append(connection)
                return
        self._close(connection)

    def _close(self, connection: Connection) -> None:
        self._unlocked.pop(connection, None)
        connection.close()

    def _open(self) -> Connection:
        if self._file is not None:
            self._check_file()  # else SQLite would create an empty one
        try:
            connection = retry_while_busy(self._connect, seconds=LOCK_TIMEOUT, errors=self._driver.errors)
        except self._driver.errors as error:
            connection = self._open_unlocked(error)
        self._file = self._file or identity(self._path)
        return connection

    def _open_unlocked(self, reason: Exception) -> Connection:
        """Open the file for reading only, for one block, where SQLite cannot create the files by which it locks it: on a full disk, or in a
        folder that cannot be written. No other process has it open then. Raise `reason` if this is not so, or the log has writes."""
        before = _stamp(self._path)
        if getattr(reason, "sqlite_errorcode", 0) & PRIMARY_CODE not in _NO_ROOM or before is None:
            raise reason
        try:
            connection = self._connect(unlocked=True)
        except self._driver.errors:
            raise reason from None
        self._unlocked[connection] = (reason, before)
        return connection

    def _unchanged(self, connection: Connection) -> AbstractContextManager[None]:
        """Return a context for a block on the connection, which may have opened the file without locks."""
        return self._read_unlocked(*self._unlocked[connection]) if connection in self._unlocked else nullcontext()

    @contextmanager
    def _read_unlocked(self, reason: Exception, before: tuple[int, int, int]) -> Iterator[None]:
        """Raise the reason why the file was opened without locks if the block writes, or if the file was changed while it was read."""
        try:
            yield
        except self._driver.errors:
            raise reason from None
        except StoreError:
            if _stamp(self._path) != before:
                raise reason from None
            raise
        if _stamp(self._path) != before:
            raise reason

    def _check_file(self) -> None:
        if identity(self._path) != self._file:
            raise self._lost(self._path)

    def _check_files(self) -> None:
        """Raise `StoreUnavailable` if what is written now would go into a file without a name, and end with the connection."""
        self._check_file()
        for path in self._log_paths:
            found = identity(path)
            if found is not None and path not in self._logs:  # on a new file, SQLite makes them with the first transaction
                self._logs[path] = found
            elif self._logs.get(path) != found:
                raise self._lost(path)

    def _lost(self, path: str) -> StoreUnavailable:
        message = f"{path} was removed or replaced while this process had the {self._naming.what} open"
        return StoreUnavailable(message, hint="put the file back, or restart the program")

    def _connect(self, *, unlocked: bool = False) -> Connection:
        try:
            connection = (self._driver.connect_unlocked if unlocked else self._driver.connect)(self._path)
        except UnicodeDecodeError as error:  # SQLite names a damaged part by its bytes
            raise self._naming.damaged(f"{self._path}: its tables cannot be read") from error
        with ExitStack() as failing:
            failing.callback(connection.close)
            self._prepare(connection)
            failing.pop_all()
        return connection


def _stamp(path: str) -> tuple[int, int, int] | None:
    """Return what changes with each write to a file; None: there is none, its log has writes, or a process has it open."""
    with suppress(OSError):
        found = os.stat(path)
        if _size(path + LOG) == 0 and _size(path + LOG_INDEX) < _INDEX_BYTES:
            return (found.st_ino, found.st_size, found.st_mtime_ns)
    return None


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0


def empty_log(connection: Connection, what: str, seconds: float) -> None:
    """Empty the log of the database; `what` names the data in errors.

    Raises `StoreUnavailable` if another process still reads an older state after `seconds` seconds.
    """
    deadline = time.monotonic() + seconds
    while True:
        (is_busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if not is_busy:
            return
        if time.monotonic() > deadline:
            message = f"deleted rows are still in the log of the {what}, since another process reads an older state of it"
            raise StoreUnavailable(message, hint="close the other process and erase again")
        time.sleep(_POLL_SECONDS)


class SqliteDatabase:
    """The file at `path`, created for its owner alone if missing, with the tables of all who `require` them.

    Calls may come from any thread; a forked process opens its own. Raises `StoreUnavailable` if the file cannot be used, and `StoreCorrupt`
    if it is damaged or another program's.
    """

    def __init__(self, path: str | os.PathLike[str], naming: Naming) -> None:
        self.path = os.path.abspath(path)
        self.naming = naming
        prepare(self.path, naming)
        self._disk = Disk(self.path)
        self._connections = SqliteConnections(self.path, driver_for(None, APPLICATION), naming, lambda _: None)
        with ExitStack() as failing:
            failing.callback(self._connections.close)
            with self.writing() as connection:
                self._claim(connection)
            failing.pop_all()

    def require(self, tables: Tables) -> None:
        with self.writing() as connection:
            create_if_missing(connection, tables, where=f"{self.path}: ")

    def writing(self) -> AbstractContextManager[Connection]:
        return self._connections.writing()

    def reading(self) -> AbstractContextManager[Connection]:
        return self._connections.reading()

    def alone(self) -> AbstractContextManager[Connection]:
        """Begin a transaction on a connection of its own. Raises `sqlite3.Error`."""
        return guarded_transaction(driver_for(None, APPLICATION).connect(self.path))

    def sync(self) -> None:
        try:
            self._disk.sync()
        except OSError as error:
            raise StoreUnavailable(f"{self.path} cannot be kept: {error.strerror}", hint="check the disk") from error

    def scrub(self) -> None:
        with self._connections.outside() as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def rewrite(self) -> None:
        """Rewrite all pages and empty the log: `secure_delete` leaves copies of rows in gaps of pages.

        Raises `StoreUnavailable` if another process reads an older state for long.
        """
        with self._connections.outside() as connection:
            connection.execute("VACUUM")
            empty_log(connection, self.naming.what, LOCK_TIMEOUT)

    def close(self) -> None:
        self._connections.close()

    def _claim(self, connection: Connection) -> None:
        if is_foreign(connection, APPLICATION):
            raise self.naming.damaged(f"{self.path} is another program's database")
        check_plain(connection, self.naming)
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application == APPLICATION:
            return
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute("CREATE TABLE parts (part TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID")


@contextmanager
def guarded_transaction(connection: Connection) -> Iterator[Connection]:
    """Begin a transaction on a connection, and close the connection with it. No statement in it can end the transaction."""
    with closing(connection):  # which drops what is not kept
        connection.execute("BEGIN IMMEDIATE")
        connection.set_authorizer(_authorize)
        yield connection
        connection.set_authorizer(None)
        connection.execute("COMMIT")


def _authorize(action: int, *_: object) -> int:
    return sqlite3.SQLITE_DENY if action in _FORBIDDEN else sqlite3.SQLITE_OK
