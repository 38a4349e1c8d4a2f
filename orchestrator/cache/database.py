"""The cache's file: SQLite, shared by the processes of one user, readable by nobody else, and no loss where it is lost."""

import logging
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

from ...protocols import StoreCorrupt, StoreUnavailable
from ...protocols.folders import make_private
from ..storage.sqlite.driver import is_anothers
from ..storage.sqlite.log import empty_log
from ..storage.sqlite.patience import patiently

logger = logging.getLogger(__name__)

_PATIENCE: Final = 5.0
"""Seconds that a process waits for another one's write."""
_APPLICATION: Final = 0x4E664341
"""Marks the file as a cache (`PRAGMA application_id`): nothing else is ever changed or removed."""
_HEADER: Final = b"SQLite format 3\0"
_MARK: Final = slice(68, 72)
"""Where the mark stands in the file."""
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

    A cache that is damaged is removed with a warning and begun anew: it holds nothing that cannot be computed. Raises
    `StoreUnavailable` where the file cannot be used, as one of another version, and one that is no cache, which stays as it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._process = os.getpid()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction that is kept where the block ends well.

        Raises `StoreUnavailable`, and `StoreCorrupt` where the file turned out to be damaged: the next transaction has a new one.
        """
        with self._lock, self._translated():
            connection = self._opened()
            patiently(lambda: connection.execute("BEGIN IMMEDIATE"), seconds=_PATIENCE)
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection without a transaction, for single queries. Raises as `transaction` does."""
        with self._lock, self._translated():
            yield self._opened()

    def scrub(self) -> None:
        """Empty the write-ahead log as far as nobody reads an older state of it."""
        with self.reading() as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def rewrite(self) -> None:
        """Write all pages anew and empty the log, so that what was removed is in no file any more. Raises `StoreUnavailable`."""
        with self.reading() as connection:
            patiently(lambda: connection.execute("VACUUM"), seconds=_PATIENCE)
            empty_log(connection, "cache", _PATIENCE)

    def close(self) -> None:
        with self._lock:
            self._close()

    def _opened(self) -> sqlite3.Connection:
        if self._process != os.getpid():  # A connection must not cross a fork, not even to be closed.
            self._connection, self._process = None, os.getpid()
        if self._connection is None:
            self._connection = patiently(self._open_or_begin_anew, seconds=_PATIENCE)
        return self._connection

    def _open_or_begin_anew(self) -> sqlite3.Connection:
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
        connection = sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
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
        if is_anothers(connection, _APPLICATION) and not _is_unmarked_cache(connection):
            raise self._no_cache()
        if connection.execute("PRAGMA application_id").fetchone() != (_APPLICATION,):
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
        os.chmod(self.path, 0o600)

    def _no_cache(self) -> StoreUnavailable:
        hint = "name another file as [cache] path, or remove this one if nobody needs it"
        return StoreUnavailable(f"{self.path} is no cache, and stays as it is", hint=hint)

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
        logger.warning("the cache %s is damaged (%s): it is removed and begun anew; what it held is computed again", self.path, reason)
        for suffix in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self._process == os.getpid():
            with closing(connection):
                try:
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                except sqlite3.Error as error:  # whoever opens it next tries again
                    logger.warning("the log of the cache %s stays beside it: %s", self.path, error)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """The errors of the driver and of the file system as errors of the tree."""
        try:
            yield
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) not in _NOT_A_CACHE:
                raise StoreUnavailable(f"the cache {self.path} cannot be used: {error}", hint="the agents go on without it") from error
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()
            self._remove(str(error))
            raise StoreCorrupt(f"the cache {self.path} was damaged: {error}", hint="it has been begun anew") from error
        except OSError as error:
            raise StoreUnavailable(f"the cache {self.path} cannot be used: {error}", hint="check the path, and who may write it") from error


def _is_unmarked_cache(connection: sqlite3.Connection) -> bool:
    """Return whether the file is a cache from before caches were marked: without a mark, with the tables and the version of one."""
    (mark,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return mark == 0 and version == _VERSION and {"answers", "lookups", "judgements", "plans", "state"} <= tables
