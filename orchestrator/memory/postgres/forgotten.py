"""Forgotten items, for the change feed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..engine import MOST_FORGOTTEN, Forgotten, check_told

if TYPE_CHECKING:
    from ...storage.postgres.connections import Connection

_OLDEST = ""
"""Stands for a tag: the row has the position of the last entry that was dropped."""
_NOTE = "INSERT INTO forgotten VALUES (%s, %s) ON CONFLICT (tag) DO UPDATE SET position = excluded.position"


def note(connection: "Connection", items: Sequence[Forgotten]) -> None:
    """Store forgotten items, and drop the oldest beyond `MOST_FORGOTTEN`."""
    if not items:
        return
    with connection.cursor() as cursor:
        cursor.executemany(_NOTE, items)
    query = "SELECT position FROM forgotten WHERE tag <> %s ORDER BY position DESC LIMIT 1 OFFSET %s"
    dropped = connection.execute(query, [_OLDEST, MOST_FORGOTTEN]).fetchone()
    if dropped is not None:
        connection.execute("DELETE FROM forgotten WHERE position <= %s", dropped)
        connection.execute(_NOTE, [*dropped, _OLDEST])


def told(connection: "Connection", after: int, limit: int) -> list[Forgotten]:
    """Return forgotten items, as `Engine.forgotten` does."""
    oldest = connection.execute("SELECT position FROM forgotten WHERE tag = %s", [_OLDEST]).fetchone()
    check_told(after, oldest[0] if oldest else 0)
    query = "SELECT position, tag FROM forgotten WHERE position > %s AND tag <> %s ORDER BY position LIMIT %s"
    return [Forgotten(*columns) for columns in connection.execute(query, [after, _OLDEST, limit])]
