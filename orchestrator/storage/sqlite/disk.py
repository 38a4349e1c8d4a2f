"""Flush commits to the disk: SQLite leaves that to the operating system here (`synchronous = NORMAL`)."""

import os
import threading

from . import files


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
            for path in (self._path + files.LOG, os.path.dirname(self._path)):
                _sync(path)
            self._kept = served


def _sync(path: str) -> None:
    try:
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # The log was taken into the database just now, which SQLite does by way of the disk.
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
