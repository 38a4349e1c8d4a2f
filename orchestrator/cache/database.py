"""The cache's file: SQLite, shared by the processes of one user, readable by no other user, and dispensable."""

import json
import logging
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...protocols import Finished, StepReply, StoreCorrupt, StoreError, StoreUnavailable, Usage
from ..storage.sqlite import empty_log, retry_while_busy
from ..storage.sqlite_files import FileIdentity, identity, is_foreign, make_private

if TYPE_CHECKING:
    from ..memory.store import MemoryStore
    from . import AnswerCache


logger = logging.getLogger(__name__)

_WAIT_SECONDS: Final = 5.0
"""Seconds that a process waits for another one's write."""
_APPLICATION: Final = 0x4E664341
"""Marks the file as a cache (`PRAGMA application_id`): nothing else is ever changed or removed."""
_HEADER: Final = b"SQLite format 3\0"
_MARK: Final = slice(68, 72)
"""The bytes of the file that hold the mark."""
_VERSION: Final = 2
_SCHEMA: Final = """
CREATE TABLE answers (
    id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, partition TEXT NOT NULL, category TEXT NOT NULL,
    question TEXT, vector BLOB, reply TEXT NOT NULL, seconds REAL NOT NULL, dollars REAL, expires REAL NOT NULL, used REAL NOT NULL
);
CREATE INDEX answers_by_partition ON answers (partition, id);
CREATE INDEX answers_by_use ON answers (category, used);
CREATE INDEX answers_by_expiry ON answers (expires);
CREATE TABLE lookups (
    category TEXT NOT NULL, outcome TEXT NOT NULL, count INTEGER NOT NULL, tokens INTEGER NOT NULL, dollars REAL NOT NULL,
    seconds REAL NOT NULL, PRIMARY KEY (category, outcome)
) WITHOUT ROWID;
CREATE TABLE judgements (
    id INTEGER PRIMARY KEY, category TEXT NOT NULL, similarity REAL NOT NULL, served INTEGER NOT NULL, is_same INTEGER NOT NULL
);
CREATE INDEX judgements_by_category ON judgements (category, id);
CREATE TABLE plans (
    key TEXT PRIMARY KEY, plan TEXT NOT NULL, tokens INTEGER NOT NULL, dollars REAL NOT NULL, seconds REAL NOT NULL,
    expires REAL NOT NULL, used REAL NOT NULL
);
CREATE INDEX plans_by_use ON plans (used);
CREATE TABLE state (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
_NOT_A_CACHE: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class CacheDatabase:
    """One process's connection; calls may come from any thread, one at a time.

    A damaged cache is removed with a warning and created again: everything in it can be computed. Raises `StoreUnavailable` where the file
    cannot be used, as one of another version, and one that is no cache, which stays as it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._file: FileIdentity | None = None
        self._process = os.getpid()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction that is committed if the block ends well.

        Raises `StoreUnavailable`, and `StoreCorrupt` if the file turned out to be damaged: the next transaction has a new one.
        """
        with self._lock, self._translate_errors():
            connection = self._connect()
            retry_while_busy(lambda: connection.execute("BEGIN IMMEDIATE"), seconds=_WAIT_SECONDS)
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection without a transaction, for single queries. Raises as `transaction` does."""
        with self._lock, self._translate_errors():
            yield self._connect()

    def scrub(self) -> None:
        """Empty the write-ahead log as far as no reader uses an older state of it."""
        with self.reading() as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def rewrite(self) -> None:
        """Rewrite all pages and empty the log, so that no file holds removed data any more. Raises `StoreUnavailable`."""
        with self.reading() as connection:
            retry_while_busy(lambda: connection.execute("VACUUM"), seconds=_WAIT_SECONDS)
            empty_log(connection, "cache", _WAIT_SECONDS)

    def close(self) -> None:
        with self._lock:
            self._close()

    def _connect(self) -> sqlite3.Connection:
        if self._process != os.getpid():  # A connection must not cross a fork, not even to be closed.
            self._connection, self._process = None, os.getpid()
        if self._connection is not None and identity(os.fspath(self.path)) != self._file:  # the user may delete it at any time
            self._connection.close()
            self._connection = None
        if self._connection is None:
            self._connection = retry_while_busy(self._open_or_recreate, seconds=_WAIT_SECONDS)
            self._file = identity(os.fspath(self.path))
        return self._connection

    def _open_or_recreate(self) -> sqlite3.Connection:
        try:
            return self._open()
        except UnicodeDecodeError as error:  # SQLite names a damaged part by its bytes
            self._remove(str(error))
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode not in _NOT_A_CACHE:
                raise
            self._remove(str(error))
        return self._open()

    def _open(self) -> sqlite3.Connection:
        make_private(self.path.parent)
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        connection = sqlite3.connect(self.path, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
        with ExitStack() as failing:
            failing.callback(connection.close)
            self._claim(connection)
            for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "secure_delete = ON"):
                connection.execute(f"PRAGMA {pragma}").fetchone()
            self._prepare(connection)
            failing.pop_all()
        return connection

    def _claim(self, connection: sqlite3.Connection) -> None:
        """Mark a new file, before it has a log: the mark then is in its first page whatever becomes of the rest."""
        if is_foreign(connection, _APPLICATION) and not _is_unmarked_cache(connection):
            raise self._no_cache()
        if connection.execute("PRAGMA application_id").fetchone() != (_APPLICATION,):
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
        os.chmod(self.path, 0o600)

    def _no_cache(self) -> StoreUnavailable:
        hint = "name another file as [cache] path, or remove this one if it is not needed"
        return StoreUnavailable(f"{self.path} is not a cache, and stays as it is", hint=hint)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            for statement in _SCHEMA.split(";\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        connection.execute("COMMIT")
        if version not in (0, _VERSION):
            hint = "remove it, or name another one as [cache] path"
            raise StoreUnavailable(f"{self.path} is a cache of version {version}, and this nearfar knows version {_VERSION}", hint=hint)

    def _remove(self, reason: str) -> None:
        with open(self.path, "rb") as file:
            first = file.read(_MARK.stop)
        if not first.startswith(_HEADER) or first[_MARK] != _APPLICATION.to_bytes(4):
            raise self._no_cache()
        logger.warning("the cache %s is damaged (%s): it is removed and created again; what it held is computed again", self.path, reason)
        for suffix in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self._process == os.getpid():
            with closing(connection):
                try:
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                except sqlite3.Error as error:  # the next process that opens it tries again
                    logger.warning("the log of the cache %s could not be emptied: %s", self.path, error)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Translate errors of the driver and of the file system into those of the error tree."""
        try:
            yield
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) not in _NOT_A_CACHE:
                raise StoreUnavailable(f"the cache {self.path} cannot be used: {error}", hint="the agents go on without it") from error
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()
            self._remove(str(error))
            raise StoreCorrupt(f"the cache {self.path} was damaged: {error}", hint="it is created again") from error
        except OSError as error:
            raise StoreUnavailable(f"the cache {self.path} cannot be used: {error}", hint="check the path, and who may write it") from error


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """An answer as it was stored."""

    id: int
    question: str | None
    """None where it is found by the same request alone."""
    text: str
    finished: Finished
    """The end of the step that computed it."""
    seconds: float
    """Seconds of the step."""
    dollars: Decimal | None
    """Dollars of the step; None if unknown."""


def read_stored(connection: sqlite3.Connection, condition: str, values: tuple[object, ...]) -> StoredAnswer | None:
    """Return the first answer for which an SQL condition holds."""
    query = f"SELECT id, question, reply, seconds, dollars FROM answers WHERE {condition}"
    row = connection.execute(query, values).fetchone()
    if row is None:
        return None
    identifier, question, reply, seconds, dollars = row
    fields = json.loads(reply)
    finished = Finished.model_validate(fields["finished"])
    return StoredAnswer(identifier, question, fields["text"], finished, seconds, None if dollars is None else Decimal(str(dollars)))


def reply_json(reply: StepReply) -> str:
    """Return the answer as JSON, without the performance figures and the provider's encrypted state: another run gets it."""
    finished = reply.finished.model_copy(update={"performance": None, "state": None})
    return json.dumps({"text": reply.text, "finished": finished.model_dump(mode="json")})


def end_of_replay(stored: StoredAnswer) -> Finished:
    """Return the end of a stored answer's stream, which says that nothing was used, and how much was saved."""
    return stored.finished.model_copy(update={"usage": Usage(), "saved": stored.finished.usage})


_CLEARINGS: Final = "clearings"
_ERASURES: Final = "erasures of "


def clearings(connection: sqlite3.Connection) -> int:
    """Return how often the cache was emptied: what was asked before the last time must not be stored after it."""
    return int(_state(connection, _CLEARINGS) or 0)


def clear(connection: sqlite3.Connection) -> int:
    """Remove all answers and plans; returns how many there were."""
    removed = sum(connection.execute(f"DELETE FROM {table}").rowcount for table in ("answers", "plans"))
    _set_state(connection, _CLEARINGS, str(clearings(connection) + 1))
    return removed


class ErasedMemory:
    """Empties a cache when the memory has erased something, in any process: answers and plans may repeat it.

    The last known erasure is kept in the cache's file, so that those of another process, and of one that died, count as well.
    """

    def __init__(self, cache: "AnswerCache", store: "MemoryStore") -> None:
        self._cache = cache
        self._store = store

    def forget(self) -> int:
        """Empty the cache unless it has been since the last erasure; returns how much was in it. Raises `StoreError`."""
        name, erasures = _ERASURES + self._store.engine.device, self._store.erasures()
        with self._cache.database.reading() as connection:
            if (_state(connection, name) or "") == erasures:
                return 0
        removed = self._cache.clear()
        with self._cache.database.transaction() as connection:
            _set_state(connection, name, erasures)
        return removed

    def is_forgotten(self) -> bool:
        """Empty the cache before a task, if needed. Return False, for no cache, if the file or the memory fails."""
        try:
            self.forget()
        except StoreError as error:
            logger.warning("a task goes without the cache, which may repeat what was erased from the memory: %s", error)
            return False
        return True


def _state(connection: sqlite3.Connection, name: str) -> str | None:
    found = connection.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
    return None if found is None else str(found[0])


def _set_state(connection: sqlite3.Connection, name: str, value: str) -> None:
    connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (name, value))


def _is_unmarked_cache(connection: sqlite3.Connection) -> bool:
    """Return whether the file is a cache from before caches were marked: without a mark, with the tables and the version of one."""
    (mark,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return mark == 0 and version == _VERSION and {"answers", "lookups", "judgements", "plans", "state"} <= tables
