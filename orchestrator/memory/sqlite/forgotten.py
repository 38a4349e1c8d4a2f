"""Forgotten items, for the change feed."""

from collections.abc import Sequence

from ...storage.sqlite.connections import Connection
from ..engine import MOST_FORGOTTEN, Forgotten, check_told

_OLDEST = ""
"""Stands for a tag: the row has the position of the last entry that was dropped."""


def note(connection: Connection, items: Sequence[Forgotten]) -> None:
    """Store forgotten items, and drop the oldest beyond `MOST_FORGOTTEN`."""
    connection.executemany("INSERT OR REPLACE INTO forgotten VALUES (?, ?)", items)
    query = "SELECT position FROM forgotten WHERE tag <> ? ORDER BY position DESC LIMIT 1 OFFSET ?"
    dropped = connection.execute(query, (_OLDEST, MOST_FORGOTTEN)).fetchone()
    if dropped is not None:
        connection.execute("DELETE FROM forgotten WHERE position <= ?", dropped)
        connection.execute("INSERT INTO forgotten VALUES (?, ?)", (*dropped, _OLDEST))


def told(connection: Connection, after: int, limit: int) -> list[Forgotten]:
    """Return forgotten items, as `Engine.forgotten` does."""
    oldest = connection.execute("SELECT position FROM forgotten WHERE tag = ?", (_OLDEST,)).fetchone()
    check_told(after, oldest[0] if oldest else 0)
    query = "SELECT position, tag FROM forgotten WHERE position > ? AND tag <> ? ORDER BY position LIMIT ?"
    return [Forgotten(*columns) for columns in connection.execute(query, (after, _OLDEST, limit))]
