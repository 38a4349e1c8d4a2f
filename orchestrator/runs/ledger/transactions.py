"""A tool's transaction: its writes are committed together with the record of its result, or not at all."""

import os
import re
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any, Final

from ....protocols import InvalidRequest, StoreError, ToolResult
from ...storage.sqlite import guarded_transaction
from ...storage.tables import Rows, Session

Keep = Callable[[Session, ToolResult], None]
"""Records the result within the transaction."""

_PATIENCE: Final = 10.0
"""Seconds that a tool waits for other writers of a file of its own."""
LONGEST: Final = 10.0
"""Seconds that a transaction may stay open: fewer than other writers wait."""
_CONTROL: Final = re.compile(r"\s*(abort|begin|commit|end|prepare|rollback|start)\b(?!\s+to\b)", re.IGNORECASE)
_ROLLED_BACK: Final = "the tool's writes were dropped: SQLite rolled its transaction back at a statement that failed"
_MARKS: Final = "CREATE TABLE IF NOT EXISTS nearfar_effects (key TEXT PRIMARY KEY, result TEXT NOT NULL) WITHOUT ROWID"


class AlreadyDone(BaseException):
    """Raised when the effect was committed before the process died: its result is known."""

    def __init__(self, result: ToolResult) -> None:
        super().__init__("the effect is there already")
        self.result = result


class TransactionEnded(InvalidRequest):
    """Raised when a transaction was open for too long, or its call is over."""


class EffectConnection:
    """A connection within a transaction that is ended for the tool: committed when it returns, dropped when it fails.

    Parameters of statements are `?` for any database.
    """

    def __init__(self, transaction: AbstractContextManager[Session], keep: Keep) -> None:
        self._transaction = transaction
        self._keep = keep
        self._lock = threading.Lock()
        self._session: Session | None = transaction.__enter__()
        self._ended = "the call that this transaction belongs to has ended"
        self._expiry = threading.Timer(LONGEST, self._expire)
        self._expiry.daemon = True
        self._expiry.start()

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Rows:
        """Run one statement. Raises `InvalidRequest` for one that would begin or end a transaction, and the database's own errors."""
        if _CONTROL.match(statement):
            raise InvalidRequest("the transaction of an effect is begun and ended for the tool", hint="return to keep it, raise to drop it")
        with self._lock:
            session = self._open
            try:
                return session.execute(statement, parameters)
            finally:
                if isinstance(session, sqlite3.Connection) and not session.in_transaction:  # what came later would be kept at once
                    self._ended = _ROLLED_BACK
                    self._drop()

    def executemany(self, statement: str, parameters: Iterable[Sequence[Any]]) -> None:
        """Run one statement for each of the parameters. Raises as `execute` does."""
        for row in parameters:
            self.execute(statement, row)

    def commit(self, result: ToolResult) -> None:
        """Commit the writes and the result. If that raises, nothing is kept."""
        with self._lock:
            self._keep(self._open, result)
            self._session = None
            self._expiry.cancel()
            self._transaction.__exit__(None, None, None)

    def abandon(self) -> None:
        """Drop the writes, unless they are committed. A thread of the tool that still runs can write no more."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._session is not None:
            self._session = None
            self._expiry.cancel()
            dropped = InvalidRequest("the call has failed")
            self._transaction.__exit__(type(dropped), dropped, None)

    def _expire(self) -> None:
        self._ended = f"the tool's writes were dropped: its transaction was open for more than {LONGEST:g} s"
        with suppress(StoreError, sqlite3.Error):  # the server has gone, and the transaction with it
            self.abandon()

    @property
    def _open(self) -> Session:
        if self._session is None:
            raise TransactionEnded(self._ended, hint="begin late, wait for nothing, and write before the tool returns")
        return self._session


def begin_in_file(path: str | os.PathLike[str], key: str) -> EffectConnection:
    """Begin a transaction on a file of the app's own, whose table `nearfar_effects` holds the results of effects by their keys.

    Raises `AlreadyDone` if the effect is among them, and `sqlite3.Error`.
    """
    connection = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
    transaction = EffectConnection(guarded_transaction(connection), lambda session, result: _mark(session, key, result))
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
