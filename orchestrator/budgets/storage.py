"""Where a `BudgetBook` keeps its tables: in this process, or in a file that the processes of one user share."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Final, Protocol

from ..sqlite.database import Database
from ..sqlite.errors import Naming
from ..tables import Tables
from .owners import Owners

_AMOUNTS: Final = ", ".join(
    f"{column} BIGINT NOT NULL DEFAULT 0"
    for prefix in ("", "reserved_")
    for column in (f"{prefix}dollars", f"{prefix}tokens", f"{prefix}seconds", f"{prefix}joules")
)
TABLES: Final = Tables(
    part="budgets",
    version=1,
    sql=f"""
CREATE TABLE budgets (
    kind TEXT NOT NULL, name TEXT NOT NULL, used BIGINT NOT NULL, {_AMOUNTS}, unpriced BIGINT NOT NULL DEFAULT 0, PRIMARY KEY (kind, name)
);
CREATE INDEX budgets_by_use ON budgets (used);
CREATE TABLE reservations (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, scopes TEXT NOT NULL,
    dollars BIGINT NOT NULL, tokens BIGINT NOT NULL, seconds BIGINT NOT NULL, joules BIGINT NOT NULL,
    unpriced BIGINT NOT NULL
);
CREATE INDEX reservations_by_owner ON reservations (owner);
CREATE TABLE latest_day (name TEXT NOT NULL);
INSERT INTO latest_day VALUES ('')
""",
)
NAMING: Final = Naming("budgets", "remove the file, and what was spent is forgotten with it")


class Cursor(Protocol):
    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...  # noqa: ANN401 - a row of the query's columns
    def fetchall(self) -> list[Any]: ...


class Connection(Protocol):
    """What SQLite's and psycopg's have in common."""

    def execute(self, statement: str, parameters: Sequence[object] = ..., /) -> Cursor: ...


class Storage(Protocol):
    """Tables of a book. Calls may come from any thread."""

    @property
    def is_shared(self) -> bool:
        """Other processes use them too."""

    def writing(self) -> AbstractContextManager[Connection]:
        """A transaction, kept where the block ends well; what it has entered, nobody else changes before its end."""

    def reading(self) -> AbstractContextManager[Connection]: ...

    def owner(self) -> str:
        """The name under which this process reserves, for as long as it lives."""

    def dead(self, owners: Iterable[str]) -> Iterable[str]:
        """Those of the owners that are known to be dead."""

    def close(self) -> None: ...


class MemoryStorage:
    """For this process alone, with which it is forgotten."""

    is_shared: Final = False

    def __init__(self) -> None:
        self._lock = Lock()
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._connection.executescript(TABLES.sql)

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        with self._lock:
            self._connection.execute("BEGIN")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self._lock:
            yield self._connection

    def owner(self) -> str:
        return ""

    def dead(self, owners: Iterable[str]) -> Iterable[str]:
        return ()

    def close(self) -> None:
        with self._lock, closing(self._connection):
            pass


class FileStorage:
    """The file `budgets.db` in a folder, with a lock for each process that uses it beside it."""

    is_shared: Final = True

    def __init__(self, folder: Path) -> None:
        self._database = Database(folder / "budgets.db", NAMING)
        self._database.require(TABLES)
        self._owners = Owners(folder / "budgets.owners")

    def writing(self) -> AbstractContextManager[Connection]:
        return self._database.writing()

    def reading(self) -> AbstractContextManager[Connection]:
        return self._database.reading()

    def owner(self) -> str:
        return self._owners.own()

    def dead(self, owners: Iterable[str]) -> Iterable[str]:
        return self._owners.dead(owners)

    def close(self) -> None:
        """What is still reserved counts as spent when the next process looks."""
        self._owners.close()
        self._database.close()
