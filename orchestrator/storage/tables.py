"""Interface of databases whose tables several rooms and processes share: SQLite or Postgres."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from ...protocols import StoreUnavailable


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one room, which no other room touches."""

    part: str
    version: int
    sql: str
    """The statements that create them, each followed by `;` and a line end, in SQLite's dialect.

    For Postgres, `BLOB`, `INTEGER`, `REAL`, `INTEGER PRIMARY KEY AUTOINCREMENT` and `WITHOUT ROWID` are translated.
    """


class Rows(Protocol):
    """Result of a statement."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...  # noqa: ANN401 - a row's columns are of any type
    def fetchall(self) -> list[Any]: ...


class DatabaseSession(Protocol):
    """A connection within a transaction. Statements are in the SQL that both databases read, with `?` for parameters."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Rows: ...


class TableDatabase(Protocol):
    """A database. Calls may come from any thread. Raises `StoreUnavailable` if it cannot be used, and `StoreCorrupt` if it is damaged."""

    def require(self, tables: Tables) -> None:
        """Create the tables if they are missing. Raises `StoreUnavailable`, and changes nothing, if a newer nearfar created them."""
        ...

    def writing(self) -> AbstractContextManager[DatabaseSession]:
        """Begin a transaction that is committed when the block ends without an error; never nested. SQLite has one writer, Postgres
        many."""
        ...

    def reading(self) -> AbstractContextManager[DatabaseSession]: ...

    def alone(self) -> AbstractContextManager[DatabaseSession]:
        """Begin a transaction on a connection of its own, which may take long without blocking other users of the pool.

        No statement in it can end it. Raises the driver's own errors, too.
        """
        ...

    def sync(self) -> None:
        """Return when all earlier commits would survive a power cut."""
        ...

    def scrub(self) -> None:
        """Empty the log of writes, if there is one and no reader uses an older state: quick, and enough if nothing has to be erased."""
        ...

    def rewrite(self) -> None:
        """Remove deleted rows from all files. It takes as long as copying the tables.

        Raises `StoreUnavailable` while a reader still sees deleted rows.
        """
        ...

    def close(self) -> None: ...


def create_if_missing(session: DatabaseSession, tables: Tables, *, where: str = "", translate: Callable[[str], str] = str) -> None:
    """Create the tables if they are missing, in SQL as `translate` returns it. `where` begins the error if a newer nearfar created them."""
    found = session.execute("SELECT version FROM parts WHERE part = ?", (tables.part,)).fetchone()
    if found is None:
        for statement in filter(str.strip, tables.sql.split(";\n")):
            session.execute(translate(statement))
        session.execute("INSERT INTO parts VALUES (?, ?)", (tables.part, tables.version))
    elif found[0] != tables.version:
        problem = f"they are of version {found[0]}, and this one knows version {tables.version}"
        message = f"{where}the {tables.part} were written by a newer nearfar: {problem}"
        raise StoreUnavailable(message, hint="update nearfar on this machine")
