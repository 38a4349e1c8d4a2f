"""A private file of tables that several parts and several processes of one user share."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import Final

from ....protocols import StoreUnavailable
from ..tables import Tables, newer, statements
from . import driver, files
from .connections import PATIENCE, Connection, Connections
from .disk import Disk
from .errors import Naming
from .log import empty_log

APPLICATION: Final = 0x4E667264
"""Marks the file as one of nearfar's (`PRAGMA application_id`)."""
_FORBIDDEN: Final = (sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)


class Database:
    """The file at `path`, which is made where it is missing, for its owner alone, with the tables of those who `require` them.

    Calls may come from any thread; a process that was forked opens its own. Raises `StoreUnavailable` where the file cannot be used,
    and `StoreCorrupt` where it is damaged or another program's.
    """

    def __init__(self, path: str | os.PathLike[str], naming: Naming) -> None:
        self.path = os.path.abspath(path)
        self.naming = naming
        files.prepare(self.path, naming)
        self._disk = Disk(self.path)
        self._connections = Connections(self.path, driver.of(None, APPLICATION), naming, lambda _: None)
        with ExitStack() as failing:
            failing.callback(self._connections.close)
            with self.writing() as connection:
                self._claim(connection)
            failing.pop_all()

    def require(self, tables: Tables) -> None:
        """Make the tables where they are missing. Raises `StoreUnavailable`, and touches nothing, where a newer nearfar made them."""
        with self.writing() as connection:
            found = connection.execute("SELECT version FROM parts WHERE part = ?", (tables.part,)).fetchone()
            if found is None:
                for statement in statements(tables.sql):
                    connection.execute(statement)
                connection.execute("INSERT INTO parts VALUES (?, ?)", (tables.part, tables.version))
            elif found[0] != tables.version:
                message = f"{self.path}: {newer(tables.part, found[0], tables.version)}"
                raise StoreUnavailable(message, hint="update nearfar on this machine")

    def writing(self) -> AbstractContextManager[Connection]:
        """The connection that writes, within a transaction (`BEGIN IMMEDIATE`) that is kept when the block ends well; never nested."""
        return self._connections.writing()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection that sees one state of the database for the whole block, while others write."""
        with self._connections.reading() as connection:
            yield connection

    def alone(self) -> AbstractContextManager[Connection]:
        """A transaction on a connection that is used for nothing else. Raises `sqlite3.Error`."""
        return guarded(driver.of(None, APPLICATION).connect(self.path))

    def sync(self) -> None:
        """Return when what was committed before outlives a power cut, too."""
        try:
            self._disk.sync()
        except OSError as error:
            raise StoreUnavailable(f"{self.path} cannot be kept: {error.strerror}", hint="look at the disk") from error

    def scrub(self) -> None:
        """Empty the write-ahead log as far as nobody reads an older state of it."""
        with self._connections.outside() as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def rewrite(self) -> None:
        """Write all pages anew and empty the log: `secure_delete` leaves the copies of rows that are in gaps of pages.

        Raises `StoreUnavailable` where another process reads an older state for long.
        """
        with self._connections.outside() as connection:
            connection.execute("VACUUM")
            empty_log(connection, self.naming.what, PATIENCE)

    def close(self) -> None:
        self._connections.close()

    def _claim(self, connection: Connection) -> None:
        if driver.is_anothers(connection, APPLICATION):
            raise self.naming.damaged(f"{self.path} is another program's database")
        driver.check_plain(connection, self.naming)
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application == APPLICATION:
            return
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute("CREATE TABLE parts (part TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID")


@contextmanager
def guarded(connection: Connection) -> Iterator[Connection]:
    """A transaction on a connection that is used for nothing else, and closed with it; nothing that is run in it can end it."""
    with closing(connection):  # which drops what is not kept
        connection.execute("BEGIN IMMEDIATE")
        connection.set_authorizer(_authorize)
        yield connection
        connection.set_authorizer(None)
        connection.execute("COMMIT")


def _authorize(action: int, *_: object) -> int:
    return sqlite3.SQLITE_DENY if action in _FORBIDDEN else sqlite3.SQLITE_OK
