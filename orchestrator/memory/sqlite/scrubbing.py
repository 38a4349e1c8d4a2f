"""Making unreadable what was deleted."""

from typing import Final

from ...storage.sqlite.connections import Connection
from ...storage.sqlite.log import empty_log

PATIENCE: Final = 30.0
"""Seconds that readers of older states have, to finish."""
MOST_REMOVALS: Final = 10_000


def scrub(connection: Connection) -> None:
    """`secure_delete` overwrites what is deleted, but not everything that was ever copied. This gets the rest.

    Words are left in older segments of the index, until segments are merged. Where SQLite has moved rows to other pages, copies of them
    stay in the gaps, until all pages are written anew. The pages of before are left in the log, until it is emptied, which needs all
    readers to be of the present: raises `StoreUnavailable` where one is not, and the next scrub, or the next to open the store, goes on.
    """
    connection.execute("UPDATE replica SET is_dirty = 1")
    forget_removals(connection)
    connection.execute("INSERT INTO words (words) VALUES ('optimize')")
    connection.execute("VACUUM")
    empty_log(connection, "memory store", PATIENCE)
    connection.execute("UPDATE replica SET is_dirty = 0")


def is_due(connection: Connection) -> bool:
    """Whether something was forgotten since the last scrub, as when the process died before it."""
    (is_dirty,) = connection.execute("SELECT is_dirty FROM replica").fetchone()
    return bool(is_dirty)


def forget_removals(connection: Connection) -> None:
    """Have everybody who keeps vectors in memory read them anew, without those that are gone."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM removals")
    connection.execute("UPDATE replica SET generation = generation + 1")
    connection.execute("COMMIT")


def has_many_removals(connection: Connection) -> bool:
    (removals,) = connection.execute("SELECT count(*) FROM removals").fetchone()
    return int(removals) > MOST_REMOVALS
