"""Tables in a database that several parts and processes share, be it SQLite's or Postgres's."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Tables:
    """Those of one part, which no other part touches."""

    part: str
    version: int
    sql: str
    """The statements that make them, each with `;` and the end of a line behind it, as SQLite reads them.

    For Postgres, `BLOB`, `INTEGER`, `REAL`, `INTEGER PRIMARY KEY AUTOINCREMENT` and `WITHOUT ROWID` are put into its own words.
    """


class Rows(Protocol):
    """What a statement has found or changed."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...  # noqa: ANN401 - a row's columns are of any type
    def fetchall(self) -> list[Any]: ...


class Session(Protocol):
    """A connection within a transaction. Statements are in the SQL that both databases read, with `?` for parameters."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Rows: ...


class TableDatabase(Protocol):
    """Raises `StoreUnavailable` where it cannot be used, and `StoreCorrupt` where it is damaged. Calls may come from any thread."""

    def require(self, tables: Tables) -> None:
        """Make the tables where they are missing. Raises `StoreUnavailable`, and touches nothing, where a newer nearfar made them."""
        ...

    def writing(self) -> AbstractContextManager[Session]:
        """A transaction that is kept when the block ends well; never nested. SQLite lets one at a time write, Postgres many."""
        ...

    def reading(self) -> AbstractContextManager[Session]: ...

    def alone(self) -> AbstractContextManager[Session]:
        """A transaction on a connection that is used for nothing else, and closed with it: however long it takes, nobody lacks one.

        What is run in it cannot end it. Raises the driver's own errors, too.
        """
        ...

    def sync(self) -> None:
        """Return when what was committed before outlives a power cut, too."""
        ...

    def scrub(self) -> None:
        """Empty the log of writes, where there is one and nobody reads an older state: quick, and enough where nothing has to be erased."""
        ...

    def rewrite(self) -> None:
        """Let nothing of what was deleted be in any file. It takes as long as copying the tables.

        Raises `StoreUnavailable` where somebody still reads what was deleted."""
        ...

    def close(self) -> None: ...


def statements(sql: str) -> Iterable[str]:
    return (statement for statement in sql.split(";\n") if statement.strip())


def newer(part: str, found: int, known: int) -> str:
    return f"the {part} were written by a newer nearfar: they are of version {found}, and this one knows version {known}"
