"""Empty the write-ahead log, which still holds old pages."""

import time
from typing import Final

from ....protocols import StoreUnavailable
from .connections import Connection

_POLL_SECONDS: Final = 0.05


def empty_log(connection: Connection, what: str, patience: float) -> None:
    """Empty the log of the database; `what` names the data in errors.

    Raises `StoreUnavailable` if another process still reads an older state after `patience` seconds.
    """
    deadline = time.monotonic() + patience
    while True:
        (is_busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if not is_busy:
            return
        if time.monotonic() > deadline:
            message = f"deleted rows are still in the log of the {what}, since another process reads an older state of it"
            raise StoreUnavailable(message, hint="close the other process and erase again")
        time.sleep(_POLL_SECONDS)
