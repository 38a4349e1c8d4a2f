"""Emptying a cache, so that it repeats nothing that was erased elsewhere."""

import logging
import sqlite3
from typing import TYPE_CHECKING, Final

from ...protocols import StoreError

if TYPE_CHECKING:
    from ..memory.store import MemoryStore
    from .answers import AnswerCache

logger = logging.getLogger(__name__)

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
        """Empty the cache before a task, if needed. Return False where the file or the memory fails, so that the task has to do without
        the cache."""
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
