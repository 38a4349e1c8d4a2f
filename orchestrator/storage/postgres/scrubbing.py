"""Rewrite the tables of a schema, so that nothing of deleted rows is left in the database's files."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ....protocols import StoreUnavailable

if TYPE_CHECKING:
    from .connections import Connection

_POLL_SECONDS: Final = 0.05
_TABLES: Final = "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r' ORDER BY relname"
_STILL_SEEN: Final = """
SELECT count(*) FROM (
  SELECT unnest(ARRAY[backend_xmin, backend_xid]) AS oldest FROM pg_stat_activity
  WHERE datname = current_database() AND pid <> pg_backend_pid()
  UNION ALL SELECT xmin FROM pg_replication_slots
  UNION ALL SELECT transaction FROM pg_prepared_xacts WHERE database = current_database()
) AS sessions WHERE age(oldest) >= age(%s::xid)
"""
"""Counts the sessions that may still see rows of that transaction's time."""


def scrub(connection: "Connection", schema: str, patience: float) -> None:
    """Rewrite the tables and their indexes without deleted rows: plain VACUUM leaves their bytes in place.

    Raises `StoreUnavailable` if another session still sees deleted rows, and does not end in `patience` seconds.
    """
    tables = [name for (name,) in connection.execute(_TABLES, [schema])]
    longest = connection.execute("SHOW statement_timeout").fetchone()
    connection.execute("SET statement_timeout = 0")
    try:
        _wait_for_others(connection, patience)
        _rewrite(connection, tables)
    finally:
        if not connection.closed:
            connection.execute("SELECT set_config('statement_timeout', %s, false)", longest)


def _rewrite(connection: "Connection", tables: Sequence[str]) -> None:
    from psycopg.errors import InsufficientPrivilege

    for table in tables:
        # ANALYZE replaces the planner's samples of the columns, too.
        connection.execute(f"VACUUM (FULL, ANALYZE) {table}")
    # Without the right to, these two come about by themselves, some time later.
    connection.execute("VACUUM (FULL) pg_statistic")
    with suppress(InsufficientPrivilege):
        connection.execute("CHECKPOINT")


def _wait_for_others(connection: "Connection", patience: float) -> None:
    deadline = time.monotonic() + patience
    now = connection.execute("SELECT pg_current_xact_id()::xid::text").fetchone()
    while connection.execute(_STILL_SEEN, now).fetchone() != (0,):
        if time.monotonic() > deadline:
            message = "deleted rows cannot be scrubbed: another session of the database still sees them"
            raise StoreUnavailable(message, hint="end long transactions, backups and unused replication slots, and erase again")
        time.sleep(_POLL_SECONDS)
