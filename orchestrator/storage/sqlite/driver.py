"""SQLite as the standard library has it, or SQLCipher, which encrypts the file."""

import re
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from ....protocols import ConfigError
from .errors import Naming

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


@dataclass(frozen=True, slots=True)
class Driver:
    """Opens connections."""

    connect: Callable[[str], sqlite3.Connection]
    errors: type[Exception]
    """Class of the errors that its connections raise."""


def of(key: Callable[[], str] | None, application: int) -> Driver:
    """Return the driver for plain files, or for files encrypted with a key. The key is asked for at each connection and stored nowhere
    here.

    A file with tables that is not marked as one of `application` stays as it is. Raises `ConfigError` if sqlcipher3 is not installed.
    """
    if key is None:
        return Driver(lambda path: _connect(sqlite3, path, None, application), sqlite3.Error)
    try:
        from sqlcipher3 import dbapi2
    except ImportError as error:
        raise ConfigError("an encrypted file needs sqlcipher3", hint="pip install 'nearfar[encryption]'") from error
    return Driver(lambda path: _connect(dbapi2, path, _literal(key()), application), dbapi2.Error)


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
        if not is_anothers(connection, application):
            connection.execute(_OWN_FILE)
        failing.pop_all()
    return connection


def check_plain(connection: sqlite3.Connection, naming: Naming) -> None:
    """Raise `StoreCorrupt` if the file has triggers or views: they could leak or change what is written."""
    found = connection.execute("SELECT type, name FROM sqlite_master WHERE type IN ('trigger', 'view') LIMIT 1").fetchone()
    if found is not None:
        kind, name = found
        raise naming.damaged(f"it has a {kind} that nearfar did not make: {name!r:.80}")


def is_anothers(connection: sqlite3.Connection, application: int) -> bool:
    """Return whether the file has content, but not the mark of the application."""
    (found,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return bool(found != application and (found or tables))
