"""Make deleted data unreadable."""

from typing import Final

from ...storage.sqlite.connections import Connection
from ...storage.sqlite.log import empty_log

PATIENCE: Final = 30.0
"""Seconds to wait for readers of older states to finish."""
MOST_REMOVALS: Final = 10_000


def scrub(connection: Connection) -> None:
    """Remove the copies of deleted data that `secure_delete` leaves.

    Older segments of the index keep words until segments are merged. Pages keep copies of rows that SQLite has moved, until all pages
    are rewritten. The log keeps earlier pages until it is emptied, which needs all readers to be at the present state: raises
    `StoreUnavailable` if one is not; the next scrub, or the next process that opens the store, continues.
    """
    connection.execute("UPDATE replica SET is_dirty = 1")
    forget_removals(connection)
    connection.execute("INSERT INTO words (words) VALUES ('optimize')")
    connection.execute("VACUUM")
    empty_log(connection, "memory store", PATIENCE)
    connection.execute("UPDATE replica SET is_dirty = 0")


def is_due(connection: Connection) -> bool:
    """Return whether data was deleted since the last scrub, as when the process died before it."""
    (is_dirty,) = connection.execute("SELECT is_dirty FROM replica").fetchone()
    return bool(is_dirty)


def forget_removals(connection: Connection) -> None:
    """Make all processes that keep vectors in memory read them again, without the removed ones."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM removals")
    connection.execute("UPDATE replica SET generation = generation + 1")
    connection.execute("COMMIT")


def has_many_removals(connection: Connection) -> bool:
    (removals,) = connection.execute("SELECT count(*) FROM removals").fetchone()
    return int(removals) > MOST_REMOVALS
