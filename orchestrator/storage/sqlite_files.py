"""SQLite files: their drivers, permissions and errors, and how commits reach the disk."""

import contextlib
import errno
import os
import re
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from ...protocols import ConfigError, NearfarError, StoreCorrupt, StoreUnavailable
from ...protocols.system import CLOSED_ON_EXEC

_OWNERS_FOLDER: Final = 0o700


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents, readable by their owner only. Existing folders keep their mode.

    `Path.mkdir(mode=..., parents=True)` applies its mode to the last folder only. Raise `OSError`.
    """
    missing = [part for part in folder.parents if not part.exists()]
    for part in (*reversed(missing), folder):
        try:
            part.mkdir(mode=_OWNERS_FOLDER, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            wrong = next(path for path in (part, *part.parents) if os.path.lexists(path))
            raise NotADirectoryError(errno.ENOTDIR, f"{wrong} is no folder", str(wrong)) from None


PRIMARY_CODE: Final = 0xFF
"""Mask of the primary result code (https://www.sqlite.org/rescode.html)."""
_CORRUPT: Final = frozenset(
    {
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_FORMAT,
        sqlite3.SQLITE_ERROR,  # the statements are right, so the tables are not
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
    }
)
_HINTS: Final[dict[int | None, str]] = {
    sqlite3.SQLITE_BUSY: "another process holds it for very long, or its file system has no locks; try again, or use another disk",
    sqlite3.SQLITE_LOCKED: "another process holds it for very long, or its file system has no locks; try again, or use another disk",
    sqlite3.SQLITE_FULL: "free some disk space; acknowledged writes are kept",
    sqlite3.SQLITE_IOERR: "check the disk: it may be full or failing; acknowledged writes are kept",
    sqlite3.SQLITE_READONLY: "the file and its folder must be writable",
    sqlite3.SQLITE_PERM: "the file and its folder must be readable and writable",
    sqlite3.SQLITE_CANTOPEN: "the file and its folder must be readable and writable",
}


BUSY_SECONDS: Final = 30.0
"""Seconds that SQLite itself waits for a lock."""
_OWN_FILE: Final = "PRAGMA journal_mode = WAL"
"""A setting that is written into the file."""
PRAGMAS: Final = (
    f"busy_timeout = {BUSY_SECONDS * 1000:.0f}",
    "synchronous = NORMAL",  # a commit outlives the death of the process; a power cut may take the last ones
    "secure_delete = ON",  # what is deleted is overwritten with zeros
    "temp_store = MEMORY",  # nothing of what is stored in files of which we do not know
    "cell_size_check = ON",  # damaged pages are noticed when they are read
    "trusted_schema = OFF",
    "journal_size_limit = 4194304",
    "wal_autocheckpoint = 4000",  # pages: what many transactions write to is written to the database once
    "cache_size = -16384",  # KiB for each connection; with the default 2 MiB, searches read most pages again
)
LOG: Final = "-wal"
LOG_INDEX: Final = "-shm"
SUFFIXES: Final = ("", LOG, LOG_INDEX)
"""Suffixes of the database, its write-ahead log, and the log's index, to which SQLite gives the database's permissions."""
_OWNER_ONLY: Final = 0o600
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_UNLOCKED: Final = "?immutable=1"
"""End of the URI of a file that is read as it is (https://www.sqlite.org/uri.html#uriimmutable)."""
_creating: Final = threading.Lock()


@dataclass(frozen=True, slots=True)
class Naming:
    """Names a database in errors."""

    what: str
    """Name of the data, such as `memory store`."""
    recovery: str
    """Advice for a damaged file."""
    otherwise: str = ""
    """Other possible cause if the file is no database, such as `, or the key ...`."""

    @contextmanager
    def translated(self, path: str, kind: type[Exception]) -> Iterator[None]:
        """Raise the driver's errors, which are of this class, as `StoreUnavailable` or `StoreCorrupt`."""
        try:
            yield
        except kind as error:
            raise self.translate(error, path) from error

    def translate(self, error: Exception, path: str) -> NearfarError:
        code = getattr(error, "sqlite_errorcode", None)
        if code is None:  # not SQLite's own error, but the driver's
            kind = None if "decode" not in str(error) else sqlite3.SQLITE_CORRUPT
        else:
            kind = code & PRIMARY_CODE
        if kind == sqlite3.SQLITE_NOTADB:
            return StoreCorrupt(f"{path} is not a {self.what}{self.otherwise}", hint=self.recovery)
        if kind in _CORRUPT:
            return self.damaged(f"{path}: {error}")
        return StoreUnavailable(f"the {self.what} {path} cannot be used: {error}", hint=_HINTS.get(kind, ""))

    def damaged(self, how: str) -> StoreCorrupt:
        return StoreCorrupt(f"the {self.what} is damaged ({how})", hint=self.recovery)


@dataclass(frozen=True, slots=True)
class Driver:
    """Opens connections."""

    connect: Callable[[str], sqlite3.Connection]
    connect_unlocked: Callable[[str], sqlite3.Connection]
    """Opens a file for reading as it is on the disk: without its log, and without a lock that would keep others from changing it."""
    errors: type[Exception]
    """Class of the errors that its connections raise."""


def driver_for(key: Callable[[], str] | None, application: int) -> Driver:
    """Return the driver for plain files, or for files encrypted with a key. The key is asked for at each connection and stored nowhere
    here.

    A file with tables that is not marked as one of `application` stays as it is. Raises `ConfigError` if sqlcipher3 is not installed.
    """
    if key is None:
        return _driver(sqlite3, lambda: None, application)
    try:
        from sqlcipher3 import dbapi2
    except ImportError as error:
        raise ConfigError("an encrypted file needs sqlcipher3", hint="pip install 'nearfar[encryption]'") from error
    return _driver(dbapi2, lambda: _literal(key()), application)


def _driver(
    module: Any,  # noqa: ANN401  # sqlite3, or what has the same names and no types
    key: Callable[[], str | None],
    application: int,
) -> Driver:
    return Driver(
        connect=lambda path: _connect(module, path, key(), application),
        connect_unlocked=lambda path: _connect(module, f"file:{quote(path)}{_UNLOCKED}", key(), application),
        errors=module.Error,
    )


def _literal(key: str) -> str:
    """Return the key as `PRAGMA key` takes it: 64 hexadecimal digits are a key, any other text a passphrase, which takes SQLCipher a
    moment."""
    if not key or "\0" in key:
        raise ConfigError("the key of the file is empty, or has a zero character", hint="64 random hexadecimal digits are best")
    if re.fullmatch("[0-9a-fA-F]{64}", key):
        return f"\"x'{key}'\""
    doubled = key.replace("'", "''")
    return f"'{doubled}'"


def _connect(
    module: Any,  # noqa: ANN401  # sqlite3, or what has the same names and no types
    path: str,
    key: str | None,
    application: int,
) -> sqlite3.Connection:
    # Threads share connections, but never use one at the same time. A file's path is absolute; a database in memory has a `file:` URI.
    connection: sqlite3.Connection = module.connect(
        path, isolation_level=None, check_same_thread=False, cached_statements=256, uri=path.startswith("file:")
    )
    with ExitStack() as failing:
        failing.callback(connection.close)
        if key is not None:
            connection.execute(f"PRAGMA key = {key}")
        for pragma in PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
        if not is_foreign(connection, application) and not path.endswith(_UNLOCKED):
            connection.execute(_OWN_FILE)
        failing.pop_all()
    return connection


def check_plain(connection: sqlite3.Connection, naming: Naming) -> None:
    """Raise `StoreCorrupt` if the file has triggers or views: they could leak or change what is written."""
    found = connection.execute("SELECT type, name FROM sqlite_master WHERE type IN ('trigger', 'view') LIMIT 1").fetchone()
    if found is not None:
        kind, name = found
        raise naming.damaged(f"it has a {kind} that nearfar did not make: {name!r:.80}")


def is_foreign(connection: sqlite3.Connection, application: int) -> bool:
    """Return whether the file has content, but not the mark of the application."""
    (found,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return bool(found != application and (found or tables))


def prepare(path: str, naming: Naming) -> None:
    """Create the file if it is missing, and take others' permissions from it.

    Raises `StoreUnavailable` if the file cannot be opened or a link stands in its place, and `StoreCorrupt` if its log was removed.
    """
    if "\0" in path:
        raise StoreUnavailable(f"the {naming.what} cannot be at {path!r}", hint="a path has no zero character")
    try:
        make_private(Path(path).parent)
        for suffix in SUFFIXES:
            _refuse_other_than_files(path + suffix, naming)
        if _log_was_removed(path):
            raise naming.damaged(f"{path}{LOG}, with the last writes, was removed")
        _create(path)
        if stat.S_IMODE(os.stat(path).st_mode) & _OTHERS:
            os.chmod(path, _OWNER_ONLY)
    except OSError as error:
        message = f"the {naming.what} {path} cannot be opened: {error.strerror}"
        raise StoreUnavailable(message, hint="the file and its folder must be yours, readable and writable") from error


def _create(path: str) -> None:
    # A process that closes a file loses all its locks on it, including SQLite's: it must not be in use before it is closed here.
    with _creating, contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | CLOSED_ON_EXEC, _OWNER_ONLY))


def size(path: str) -> int:
    """Return the bytes that all files of the database take."""
    return sum(os.path.getsize(path + suffix) for suffix in SUFFIXES if os.path.exists(path + suffix))


def _refuse_other_than_files(path: str, naming: Naming) -> None:
    try:
        mode = os.lstat(path).st_mode  # one look: another process may remove the file between two
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise StoreUnavailable(f"{path} is a symbolic link", hint="name the file itself: the target of a link may change")
    if not stat.S_ISREG(mode):
        raise StoreUnavailable(f"{path} is no file", hint=f"name a file for the {naming.what}")


def _log_was_removed(path: str) -> bool:
    """Return whether there is an index without its log, even while other processes open and close the database.

    The first to open it makes the log before the index, and the last to close it removes the index before the log. So the log is there
    as long as one and the same index is.
    """
    index = _birth(path + LOG_INDEX)
    return index is not None and not os.path.exists(path + LOG) and _birth(path + LOG_INDEX) == index


def _birth(path: str) -> tuple[int, int] | None:
    """Return what tells a file from a later one of the same name; None: there is none."""
    with contextlib.suppress(FileNotFoundError):
        found = os.stat(path)
        return (found.st_ino, found.st_ctime_ns)
    return None


FileIdentity = tuple[int, int]


def identity(path: str) -> FileIdentity | None:
    """Return what tells a file that is open from another one of its name; None: there is no file that can be reached."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino)
