"""Writes of a tool that are kept together with the record of its result, or not at all."""

import os
import re
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import Any, Final

from ...protocols import InvalidRequest, ToolResult
from ..tables import Rows, Session

Keep = Callable[[Session, ToolResult], None]
"""Writes the result down within the transaction."""

_PATIENCE: Final = 10.0
"""Seconds that a tool waits for others to finish writing a file of its own."""
_CONTROL: Final = re.compile(r"\s*(abort|begin|commit|end|prepare|rollback|start)\b(?!\s+to\b)", re.IGNORECASE)
_FORBIDDEN: Final = (sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)
_MARKS: Final = "CREATE TABLE IF NOT EXISTS nearfar_effects (key TEXT PRIMARY KEY, result TEXT NOT NULL) WITHOUT ROWID"


class AlreadyDone(BaseException):
    """The tool has written all this before the process died, and its result is known."""

    def __init__(self, result: ToolResult) -> None:
        super().__init__("the effect is there already")
        self.result = result


class EffectConnection:
    """A connection within a transaction that is ended for the tool: kept when it returns, dropped when it fails.

    Statements have `?` for parameters, whatever the database.
    """

    def __init__(self, transaction: AbstractContextManager[Session], keep: Keep) -> None:
        self._transaction = transaction
        self._keep = keep
        self._lock = threading.Lock()
        self._session: Session | None = transaction.__enter__()

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Rows:
        """Run one statement. Raises `InvalidRequest` for one that would begin or end a transaction, and the database's own errors."""
        if _CONTROL.match(statement):
            raise InvalidRequest("the transaction of an effect is begun and ended for the tool", hint="return to keep it, raise to drop it")
        with self._lock:
            return self._open.execute(statement, parameters)

    def executemany(self, statement: str, parameters: Iterable[Sequence[Any]]) -> None:
        """Run one statement for each of the parameters. Raises as `execute` does."""
        for row in parameters:
            self.execute(statement, row)

    def commit(self, result: ToolResult) -> None:
        """Keep what was written, and the result with it. Where that raises, nothing is kept."""
        with self._lock:
            self._keep(self._open, result)
            self._session = None
            self._transaction.__exit__(None, None, None)

    def abandon(self) -> None:
        """Drop what was written, unless it is kept already. A thread of the tool that still runs can write no more."""
        with self._lock:
            if self._session is not None:
                self._session = None
                dropped = InvalidRequest("the call has failed")
                self._transaction.__exit__(type(dropped), dropped, None)

    @property
    def _open(self) -> Session:
        if self._session is None:
            raise InvalidRequest("the call that this transaction belongs to has ended", hint="write before the tool returns")
        return self._session


@contextmanager
def alone(connection: sqlite3.Connection) -> Iterator[Session]:
    """A transaction on a connection that is used for nothing else, and closed with it; nothing that is run in it can end it."""
    with closing(connection):  # which drops what is not kept
        connection.execute("BEGIN IMMEDIATE")
        connection.set_authorizer(_authorize)
        yield connection
        connection.set_authorizer(None)
        connection.execute("COMMIT")


def begin_in_file(path: str | os.PathLike[str], key: str) -> EffectConnection:
    """A transaction on a file of the app's own, in which a table `nearfar_effects` keeps the results of effects by their keys.

    Raises `AlreadyDone` where the effect is among them, and `sqlite3.Error`.
    """
    connection = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
    transaction = EffectConnection(alone(connection), lambda session, result: _mark(session, key, result))
    with ExitStack() as failing:
        failing.callback(transaction.abandon)
        transaction.execute(_MARKS)
        found = transaction.execute("SELECT result FROM nearfar_effects WHERE key = ?", (key,)).fetchone()
        if found is not None:
            raise AlreadyDone(ToolResult.model_validate_json(found[0]))
        failing.pop_all()
    return transaction


def _mark(session: Session, key: str, result: ToolResult) -> None:
    session.execute("INSERT INTO nearfar_effects VALUES (?, ?)", (key, result.model_dump_json()))


def _authorize(action: int, *_: object) -> int:
    return sqlite3.SQLITE_DENY if action in _FORBIDDEN else sqlite3.SQLITE_OK
