"""The storage of a `BudgetBook`: in this process, or in a database that several processes share."""

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Final, Protocol
from weakref import finalize

from ..storage import DatabaseSession, TableDatabase, Tables
from ..storage.postgres import is_broken

if TYPE_CHECKING:
    from ..storage.postgres import Connection, PostgresDatabase


_AMOUNTS: Final = ", ".join(
    f"{prefix}{measure} BIGINT NOT NULL DEFAULT 0" for prefix in ("", "reserved_") for measure in ("dollars", "tokens", "seconds", "joules")
)
TABLES: Final = Tables(
    part="budgets",
    version=1,
    sql=f"""
CREATE TABLE budgets (
    kind TEXT NOT NULL, name TEXT NOT NULL, used BIGINT NOT NULL, {_AMOUNTS}, unpriced BIGINT NOT NULL DEFAULT 0, PRIMARY KEY (kind, name)
);
CREATE INDEX budgets_by_use ON budgets (used);
CREATE TABLE budget_reservations (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, scopes TEXT NOT NULL,
    dollars BIGINT NOT NULL, tokens BIGINT NOT NULL, seconds BIGINT NOT NULL, joules BIGINT NOT NULL, unpriced BIGINT NOT NULL
);
CREATE INDEX budget_reservations_by_owner ON budget_reservations (owner);
CREATE TABLE budget_day (latest TEXT NOT NULL);
INSERT INTO budget_day VALUES ('');
""",
)


class Owning(Protocol):
    """This process, as others see it: by a lock that ends with it however it ends, and by no clock."""

    @property
    def name(self) -> str: ...
    def is_alive(self, name: str, /) -> bool: ...
    def close(self) -> None: ...


class MemoryStorage:
    """The tables of a book for this process alone, with which they are forgotten. Calls may come from any thread."""

    is_shared: bool = False
    """Other processes use the tables too."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        finalize(self, self._connection.close)  # a book without a database is dropped, not closed
        self._connection.executescript(TABLES.sql)

    @contextmanager
    def writing(self) -> Iterator[DatabaseSession]:
        """Begin a transaction that is committed if the block ends without an error. Its rows are locked for others until then."""
        with self._lock:
            self._connection.execute("BEGIN")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    @contextmanager
    def reading(self) -> Iterator[DatabaseSession]:
        with self._lock:
            yield self._connection

    def owner(self) -> str:
        """Return the name under which this process reserves, for as long as it lives."""
        return ""

    def is_alive(self, owner: str) -> bool:
        return owner == self.owner()

    def scrub(self) -> None:
        """Do nothing: there is no file."""

    def close(self) -> None:
        with self._lock, closing(self._connection):
            pass


class SharedStorage:
    """The tables of a book in a database that several processes use; it and `owning` are closed with this."""

    is_shared: Final = True

    def __init__(self, database: TableDatabase, owning: Owning) -> None:
        database.require(TABLES)
        self._database = database
        self._owning = owning

    def writing(self) -> AbstractContextManager[DatabaseSession]:
        return self._database.writing()

    def reading(self) -> AbstractContextManager[DatabaseSession]:
        return self._database.reading()

    def owner(self) -> str:
        return self._owning.name

    def is_alive(self, owner: str) -> bool:
        return self._owning.is_alive(owner)

    def scrub(self) -> None:
        self._database.scrub()

    def close(self) -> None:
        """Close the database. The next process counts what is still reserved as spent."""
        self._owning.close()
        self._database.close()


class ServerOwner:
    """This process, by an advisory lock. Where the connection breaks, it goes on under another name, and what it had reserved counts.

    Raises `StoreUnavailable` where the server cannot be reached.
    """

    def __init__(self, database: "PostgresDatabase") -> None:
        self._database = database
        self._lock = Lock()
        self._holding = ExitStack()
        self._held: tuple[str, Connection] | None = None

    @property
    def name(self) -> str:
        with self._lock:
            if self._held is None or is_broken(self._held[1]):
                self._holding.close()
                connection = self._holding.enter_context(self._database.lasting())
                key = secrets.randbits(62)
                connection.execute("SELECT pg_advisory_lock(%s)", [key])
                self._held = (str(key), connection)
            return self._held[0]

    def is_alive(self, name: str) -> bool:
        """Return whether a process holds the lock of that name."""
        with self._database.writing() as session:
            (is_free,) = session.execute("SELECT pg_try_advisory_xact_lock(?)", (int(name),)).fetchone()
        return not is_free

    def close(self) -> None:
        with self._lock:
            if self._held is not None and not is_broken(self._held[1]):
                self._held[1].execute("SELECT pg_advisory_unlock_all()")
            self._held = None
            self._holding.close()
