"""Tables in a Postgres database that the processes of several machines share."""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from ....protocols import StoreUnavailable
from ..tables import Rows, Tables, newer, statements
from .connections import Connections
from .scrubbing import scrub

if TYPE_CHECKING:
    from .connections import Connection

_WORDS: Final = (
    ("INTEGER PRIMARY KEY AUTOINCREMENT", "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"),
    ("INTEGER", "bigint"),
    ("BLOB", "bytea"),
    ("REAL", "double precision"),
    (" WITHOUT ROWID", ""),
)
_PARTS: Final = "CREATE TABLE IF NOT EXISTS parts (part text PRIMARY KEY, version bigint NOT NULL)"
_CONNECTIONS: Final = 8
"""Connections of one process."""
_PATIENCE: Final = 10.0
_LONGEST: Final = 60.0


class PostgresDatabase:
    """A schema with the tables of all who `require` them. `what` names the data in errors.

    Raises `ConfigError` if the address makes no sense or psycopg is missing, and `StoreUnavailable` if the server is out of reach.
    """

    def __init__(self, address: str, *, what: str, schema: str = "nearfar_runs") -> None:
        self._schema = schema
        self._connections = Connections(
            address, what=what, schema=schema, most=_CONNECTIONS, patience=_PATIENCE, longest=_LONGEST, settings={}
        )
        with ExitStack() as failing:
            failing.callback(self._connections.close)
            with self.writing() as session:
                # Of several processes that come first, one makes the tables.
                session.execute("SELECT pg_advisory_xact_lock(hashtext('nearfar_runs'))")
                session.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
                session.execute(_PARTS)
            failing.pop_all()

    def require(self, tables: Tables) -> None:
        with self.writing() as session:
            session.execute("SELECT pg_advisory_xact_lock(hashtext('nearfar_runs'))")
            found = session.execute("SELECT version FROM parts WHERE part = ?", (tables.part,)).fetchone()
            if found is None:
                for statement in statements(tables.sql):
                    session.execute(_translated(statement))
                session.execute("INSERT INTO parts VALUES (?, ?)", (tables.part, tables.version))
            elif found[0] != tables.version:
                raise StoreUnavailable(newer(tables.part, found[0], tables.version), hint="update nearfar on this machine")

    def writing(self) -> AbstractContextManager["PostgresSession"]:
        return self._kept(self._connections.connection())

    @contextmanager
    def reading(self) -> Iterator["PostgresSession"]:
        with self._connections.connection() as connection, connection.transaction():
            yield PostgresSession(connection)

    def alone(self) -> AbstractContextManager["PostgresSession"]:
        return self._kept(self._connections.alone())

    def lasting(self) -> AbstractContextManager["Connection"]:
        """Lend a connection outside of transactions, for session locks and the like."""
        return self._connections.connection()

    def sync(self) -> None:
        """Do nothing: a commit is on the server's disk, unless its administrator has turned that off."""

    def scrub(self) -> None:
        """Do nothing: the log is the server's."""

    def rewrite(self) -> None:
        with self._connections.alone() as connection:
            scrub(connection, self._schema, _PATIENCE)

    def close(self) -> None:
        self._connections.close()

    @contextmanager
    def _kept(self, connecting: AbstractContextManager["Connection"]) -> Iterator["PostgresSession"]:
        """Begin a transaction. If the connection breaks during the commit, the server is asked whether it took place."""
        number: str | None = None
        try:
            with connecting as connection, connection.transaction():
                yield PostgresSession(connection)
                row = connection.execute("SELECT pg_current_xact_id_if_assigned()::text").fetchone()
                number = None if row is None else row[0]
        except StoreUnavailable:
            if number is None or not self._was_kept(number):
                raise

    def _was_kept(self, number: str) -> bool:
        """Return whether the transaction of that number was committed; False if the server stays out of reach."""
        give_up_at = time.monotonic() + _PATIENCE
        while time.monotonic() < give_up_at:
            with suppress(StoreUnavailable), self.reading() as session:
                [(status,)] = session.execute("SELECT pg_xact_status(?::xid8)", (number,)).fetchall()
                if status != "in progress":
                    return bool(status == "committed")
            time.sleep(0.05)
        return False


class PostgresSession:
    """A connection that takes `?` for parameters."""

    def __init__(self, connection: "Connection") -> None:
        self.connection = connection
        """psycopg's connection."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Rows:
        return self.connection.execute(sql.replace("%", "%%").replace("?", "%s").encode(), parameters)


def _translated(statement: str) -> str:
    for ours, theirs in _WORDS:
        statement = re.sub(rf"\b{ours}\b" if not ours.startswith(" ") else ours, theirs, statement)
    return statement
