"""Wait for other processes at moments that SQLite's own busy timeout does not cover."""

import sqlite3
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

_PAUSE: Final = 0.01
_PRIMARY: Final = 0xFF


def patiently(work: Callable[[], T], *, seconds: float, errors: type[Exception] = sqlite3.Error) -> T:
    """Return the value of `work`, retried for so many seconds while SQLite is busy.

    SQLite says at once that it is busy, whatever its timeout (https://www.sqlite.org/c3ref/busy_handler.html), while another process
    makes
    the file, recovers its log, or is the last to close it. `errors`: class of the driver's errors.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return work()
        except errors as error:
            if getattr(error, "sqlite_errorcode", 0) & _PRIMARY != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE)
