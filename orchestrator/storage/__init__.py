"""SQLite and Postgres: one way to open, lock, migrate and recover a database.

Several rooms share a database. Changes of many runs at about the same time share one transaction (group commit).
"""

import asyncio
import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from ...protocols import NearfarError, StoreError, StoreUnavailable


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one room, which no other room touches."""

    part: str
    version: int
    sql: str
    """The statements that create them, each followed by `;` and a line end, in SQLite's dialect.

    For Postgres, `BLOB`, `INTEGER`, `REAL`, `INTEGER PRIMARY KEY AUTOINCREMENT` and `WITHOUT ROWID` are translated.
    """


class Rows(Protocol):
    """Result of a statement."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...  # noqa: ANN401 - a row's columns are of any type
    def fetchall(self) -> list[Any]: ...


class DatabaseSession(Protocol):
    """A connection within a transaction. Statements are in the SQL that both databases read, with `?` for parameters."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Rows: ...


class TableDatabase(Protocol):
    """A database. Calls may come from any thread. Raises `StoreUnavailable` if it cannot be used, and `StoreCorrupt` if it is damaged."""

    def require(self, tables: Tables) -> None:
        """Create the tables if they are missing. Raises `StoreUnavailable`, and changes nothing, if a newer nearfar created them."""
        ...

    def writing(self) -> AbstractContextManager[DatabaseSession]:
        """Begin a transaction that is committed when the block ends without an error; never nested. SQLite has one writer, Postgres
        many."""
        ...

    def reading(self) -> AbstractContextManager[DatabaseSession]: ...

    def alone(self) -> AbstractContextManager[DatabaseSession]:
        """Begin a transaction on a connection of its own, which may take long without blocking other users of the pool.

        No statement in it can end it. Raises the driver's own errors, too.
        """
        ...

    def sync(self) -> None:
        """Return when all earlier commits would survive a power cut."""
        ...

    def scrub(self) -> None:
        """Empty the log of writes, if there is one and no reader uses an older state: quick, and enough if nothing has to be erased."""
        ...

    def rewrite(self) -> None:
        """Remove deleted rows from all files. It takes as long as copying the tables.

        Raises `StoreUnavailable` while a reader still sees deleted rows.
        """
        ...

    def close(self) -> None: ...


def create_if_missing(session: DatabaseSession, tables: Tables, *, where: str = "", translate: Callable[[str], str] = str) -> None:
    """Create the tables if they are missing, in SQL as `translate` returns it. `where` begins the error if another nearfar created them."""
    found = session.execute("SELECT version FROM parts WHERE part = ?", (tables.part,)).fetchone()
    if found is None:
        for statement in filter(str.strip, tables.sql.split(";\n")):
            session.execute(translate(statement))
        session.execute("INSERT INTO parts VALUES (?, ?)", (tables.part, tables.version))
    elif found[0] != tables.version:
        is_newer = found[0] > tables.version
        problem = f"they are of version {found[0]}, and this one knows version {tables.version}"
        message = f"{where}the {tables.part} were written by {'a newer' if is_newer else 'an older'} nearfar: {problem}"
        raise StoreUnavailable(message, hint="update nearfar on this machine" if is_newer else "move the file away, or name another one")


T = TypeVar("T")
Change = Callable[[DatabaseSession], T]
"""A part of a transaction. If it raises, it is undone, and the rest of the transaction stays."""

_MOST: Final = 500
"""Most changes in one transaction."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A change, and the future that waits for its commit."""

    change: Change[Any]
    future: "Future[Any] | asyncio.Future[Any]"
    loop: asyncio.AbstractEventLoop | None
    """The event loop of the future; None: it belongs to a thread."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome of a change."""

    waiting: _Waiting
    value: object
    failure: Exception | None

    def tell(self) -> None:
        future = self.waiting.future
        if future.done():  # the caller was cancelled; its change is committed all the same
            return
        if self.failure is None:
            future.set_result(self.value)
        else:
            future.set_exception(self.failure)


class Writer:
    """One thread that writes for all of this process."""

    def __init__(self, database: TableDatabase) -> None:
        self._database = database
        self._process = os.getpid()
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="nearfar-runs", daemon=True)
        self._is_closed = False
        self._lock = threading.Lock()
        self._thread.start()

    def submit(self, change: Change[T]) -> "Future[T]":
        """Return a future that is done when the change is committed. It fails as the change does, or with a `StoreError`; nothing is
        kept then."""
        future: Future[T] = Future()
        self._put(_Waiting(change, future, None))
        return future

    async def write(self, change: Change[T]) -> T:
        """Commit a change and return its value. If the caller is cancelled, the change is committed all the same."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._put(_Waiting(change, future, loop))
        return await future

    def close(self) -> None:
        """Wait until everything is written."""
        if self._process != os.getpid():
            return
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._queue.put(None)
        self._thread.join()

    def _put(self, waiting: _Waiting) -> None:
        with self._lock:
            if self._is_closed or self._process != os.getpid():
                raise StoreUnavailable("the store of runs is closed, or belongs to the process that this one was forked from")
            self._queue.put(waiting)

    def _work(self) -> None:
        is_open = True
        while is_open:
            batch = [self._queue.get()]
            while len(batch) < _MOST and not self._queue.empty():
                batch.append(self._queue.get())
            is_open = None not in batch
            _tell(self._written([each for each in batch if each is not None]))

    def _written(self, batch: list[_Waiting]) -> list[_Outcome]:
        try:
            return self._kept(batch)
        except _NotBegunError as error:
            return _failed(batch, error.reason)
        except Exception:  # a thread's boundary: each that fails by itself is told below
            return self._written_each(batch)

    def _written_each(self, batch: list[_Waiting]) -> list[_Outcome]:
        """Commit each change by itself: one that fails, for example as too large for the disk, must not fail the others.

        The log is emptied before, which makes room.
        """
        with suppress(StoreError):
            self._database.scrub()
        outcomes: list[_Outcome] = []
        for place, each in enumerate(batch):
            try:
                outcomes += self._kept([each])
            except _NotBegunError as error:  # as all others would find out, one after the other, each by waiting
                return outcomes + _failed(batch[place:], error.reason)
            except Exception as error:  # a thread's boundary: raised in the caller
                outcomes += _failed([each], error)
        return outcomes

    def _kept(self, batch: list[_Waiting]) -> list[_Outcome]:
        """Commit a batch in one transaction. Raises `_NotBegunError` if none can be begun, and any error that undid all of it."""
        with ExitStack() as ending:
            try:
                session = ending.enter_context(self._database.writing())
            except Exception as error:
                raise _NotBegunError(error) from error
            return [_Outcome(each, *_applied(session, each.change)) for each in batch]


class _NotBegunError(Exception):
    """No transaction could be begun."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


def _failed(batch: list[_Waiting], error: Exception) -> list[_Outcome]:
    return [_Outcome(each, None, error) for each in batch]


def _tell(outcomes: list[_Outcome]) -> None:
    """Wake each event loop once, for all of its coroutines that wait."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Outcome]] = {}
    for outcome in outcomes:
        if outcome.waiting.loop is None:
            outcome.tell()
        else:
            by_loop.setdefault(outcome.waiting.loop, []).append(outcome)
    for loop, its in by_loop.items():
        with suppress(RuntimeError):  # It was closed, and no caller waits in it.
            loop.call_soon_threadsafe(_tell_all, its)


def _tell_all(outcomes: list[_Outcome]) -> None:
    for outcome in outcomes:
        outcome.tell()


def _applied(session: DatabaseSession, change: Change[T]) -> tuple[T | None, NearfarError | None]:
    session.execute("SAVEPOINT change")
    try:
        value = change(session)
    except NearfarError as error:
        session.execute("ROLLBACK TO SAVEPOINT change")
        session.execute("RELEASE SAVEPOINT change")
        return None, error
    session.execute("RELEASE SAVEPOINT change")
    return value, None
