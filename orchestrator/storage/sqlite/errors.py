"""Translate SQLite's errors into nearfar's."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from ....protocols import NearfarError, StoreCorrupt, StoreUnavailable

_PRIMARY: Final = 0xFF
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
    sqlite3.SQLITE_BUSY: "another process is writing for very long; try again",
    sqlite3.SQLITE_LOCKED: "another process is writing for very long; try again",
    sqlite3.SQLITE_FULL: "free some disk space; acknowledged writes are kept",
    sqlite3.SQLITE_IOERR: "check the disk: it may be full or failing; acknowledged writes are kept",
    sqlite3.SQLITE_READONLY: "the file and its folder must be writable",
    sqlite3.SQLITE_PERM: "the file and its folder must be readable and writable",
    sqlite3.SQLITE_CANTOPEN: "the folder must exist and be writable",
}


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
            kind = code & _PRIMARY
        if kind == sqlite3.SQLITE_NOTADB:
            return StoreCorrupt(f"{path} is not a {self.what}{self.otherwise}", hint=self.recovery)
        if kind in _CORRUPT:
            return self.damaged(f"{path}: {error}")
        return StoreUnavailable(f"the {self.what} {path} cannot be used: {error}", hint=_HINTS.get(kind, ""))

    def damaged(self, how: str) -> StoreCorrupt:
        return StoreCorrupt(f"the {self.what} is damaged ({how})", hint=self.recovery)
