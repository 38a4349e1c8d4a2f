"""The effects of runs: their records in the ledger, and the transactions in which tools write."""

import os
import re
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from enum import StrEnum
from typing import Any, Final, NamedTuple

from ...protocols import ApprovalRequest, InvalidRequest, LedgerConflict, StoreError, ToolResult
from ..storage import DatabaseSession, Rows, TableDatabase, Tables
from ..storage.sqlite import guarded_transaction
from . import damaged_run

Keep = Callable[[DatabaseSession, ToolResult], None]
"""Records the result within the transaction."""

_WAIT_SECONDS: Final = 10.0
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

    def __init__(self, transaction: AbstractContextManager[DatabaseSession], keep: Keep) -> None:
        self._transaction = transaction
        self._keep = keep
        self._lock = threading.Lock()
        self._session: DatabaseSession | None = transaction.__enter__()
        self._ended = "the call that this transaction belongs to has ended"
        self._expiry = threading.Timer(LONGEST, self._expire)
        self._expiry.daemon = True
        self._expiry.start()

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Rows:
        """Run one `statement` with its `parameters`. Raises `InvalidRequest` for one that would begin or end a transaction, and the
        database's own errors."""
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
        """Run one `statement` for each of the `parameters`. Raises as `execute` does."""
        for row in parameters:
            self.execute(statement, row)

    def commit(self, result: ToolResult) -> None:
        """Commit the writes and the `result` of the tool call. If that raises, nothing is kept."""
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
    def _open(self) -> DatabaseSession:
        if self._session is None:
            raise TransactionEnded(self._ended, hint="begin late, wait for nothing, and write before the tool returns")
        return self._session


def begin_in_file(path: str | os.PathLike[str], key: str) -> EffectConnection:
    """Begin a transaction on a file of the app's own, whose table `nearfar_effects` holds the results of effects by their keys.

    Raises `AlreadyDone` if the effect is among them, and `sqlite3.Error`.
    """
    connection = sqlite3.connect(path, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
    transaction = EffectConnection(guarded_transaction(connection), lambda session, result: _mark(session, key, result))
    with ExitStack() as failing:
        failing.callback(transaction.abandon)
        transaction.execute(_MARKS)
        found = transaction.execute("SELECT result FROM nearfar_effects WHERE key = ?", (key,)).fetchone()
        if found is not None:
            raise AlreadyDone(ToolResult.model_validate_json(found[0]))
        failing.pop_all()
    return transaction


def _mark(session: DatabaseSession, key: str, result: ToolResult) -> None:
    session.execute("INSERT INTO nearfar_effects VALUES (?, ?)", (key, result.model_dump_json()))


TABLES: Final = Tables(
    part="effects",
    version=1,
    sql="""\
CREATE TABLE effects (
    number INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, key TEXT NOT NULL UNIQUE, action TEXT NOT NULL, ordinal INTEGER NOT NULL,
    turn INTEGER NOT NULL, tool TEXT NOT NULL, version TEXT NOT NULL, state TEXT NOT NULL, epoch INTEGER NOT NULL,
    request TEXT, result TEXT
);
CREATE INDEX effects_by_action ON effects (run, action, ordinal);
CREATE INDEX effects_asked ON effects (run) WHERE state = 'asked'""",
)

_PUT: Final = """\
INSERT INTO effects (run, key, action, ordinal, turn, tool, version, state, epoch, request) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET
    state = excluded.state, epoch = excluded.epoch, turn = excluded.turn, request = excluded.request, result = NULL"""
_ANSWER: Final = f"""\
{_PUT.replace("excluded.state", "CASE WHEN effects.state = 'denied' THEN effects.state ELSE excluded.state END")}
RETURNING state"""
Fence = Callable[[DatabaseSession], None]
"""Raises if another process owns the run by now."""


class EffectState(StrEnum):
    """State of an effect."""

    ASKED = "asked"
    """It needs approval."""
    APPROVED = "approved"
    DENIED = "denied"
    BEGUN = "begun"
    """Its tool was started. If no process runs it any more, its outcome is unknown."""
    DONE = "done"
    """Its result is known."""


class EffectIntent(NamedTuple):
    """An effect that is about to happen."""

    key: str
    action: str
    ordinal: int
    turn: int
    tool: str
    version: str
    """A hash of the tool's declaration."""


class EffectEntry(NamedTuple):
    """The ledger's entry for an effect."""

    state: EffectState | None
    """None: there was no entry, and the effect is begun now."""
    turn: int
    result: ToolResult | None = None


class EffectRecords:
    """The effects of one run, written by its owner. Each method is a part of a transaction, and raises `fence`'s errors.

    Args:
        epoch: number of owners that the run has had, this one included.
    """

    def __init__(self, database: TableDatabase, run: str, *, epoch: int, fence: Fence) -> None:
        self.run = run
        self._database = database
        self._epoch = epoch
        self._fence = fence

    def begin(self, session: DatabaseSession, intent: EffectIntent, *, at_work: Collection[str] = ()) -> EffectEntry:
        """Record the intent, unless the effect was begun or denied before.

        An equal earlier effect of unknown outcome blocks this one, too, so that a retry does not have it twice. Raises `LedgerConflict` if
        the tool has been declared differently since.

        Args:
            at_work: keys of effects that this process runs now; it may change meanwhile.
        """
        self._fence(session)
        self._check(session, intent)
        found = _find(session, intent)
        if found is not None and found.state is not EffectState.APPROVED:
            return found
        if self._is_doubtful(session, intent, at_work):
            return EffectEntry(EffectState.BEGUN, intent.turn)
        self._put(session, intent, EffectState.BEGUN)
        return EffectEntry(None, intent.turn)

    def begin_again(self, session: DatabaseSession, intent: EffectIntent) -> None:
        """Record that an effect is begun once more: its process has died, or it has failed and is idempotent."""
        self._fence(session)
        self._put(session, intent, EffectState.BEGUN)

    def finish(self, session: DatabaseSession, key: str, result: ToolResult) -> None:
        """Record the result. Raises `LedgerConflict` if another owner has taken the effect over."""
        self._fence(session)
        done = session.execute(
            "UPDATE effects SET state = ?, result = ? WHERE key = ? AND state = ? AND epoch = ?",
            (EffectState.DONE, result.model_dump_json(), key, EffectState.BEGUN, self._epoch),
        )
        if done.rowcount != 1:
            message = f"the result of a call of {result.name} is not recorded: another process has resumed run {self.run}"
            raise LedgerConflict(message, hint="this process has lost the run; the other one finishes it")

    def transaction(self, key: str) -> EffectConnection:
        """Return a transaction for the effect's tool, in which its result is recorded as well. It waits for other writers."""
        return EffectConnection(self._database.alone(), lambda session, result: self.finish(session, key, result))

    def sync(self) -> None:
        """Return when all earlier commits would survive a power cut."""
        self._database.sync()

    def ask(self, session: DatabaseSession, asked: Sequence[tuple[EffectIntent, ApprovalRequest]]) -> None:
        """Record requests for approval."""
        self._fence(session)
        for intent, request in asked:
            self._put(session, intent, EffectState.ASKED, request)

    def answer(self, session: DatabaseSession, answers: Mapping[EffectIntent, bool]) -> list[bool]:
        """Record decisions and return them. A no stands: another process may have recorded one while this one asked."""
        self._fence(session)
        said: list[bool] = []
        for intent, is_approved in answers.items():
            answered = EffectState.APPROVED if is_approved else EffectState.DENIED
            (state,) = session.execute(_ANSWER, (self.run, *intent, answered, self._epoch, None)).fetchone()
            said.append(state == EffectState.APPROVED)
        return said

    def _check(self, session: DatabaseSession, intent: EffectIntent) -> None:
        """Raise `LedgerConflict` if the run has called the tool when it was declared differently.

        All calls of the tool count, since the same call has another key if the tool has one more argument, or only reads now.
        """
        other = "SELECT count(*) FROM effects WHERE run = ? AND tool = ? AND version <> ?"
        (others,) = session.execute(other, (self.run, intent.tool, intent.version)).fetchone()
        if others:
            message = f"{intent.tool} takes other arguments, or has another effect, than when this run called it"
            raise LedgerConflict(message, hint="resume it with the program that began it, or begin a new run")

    def entries(self, session: DatabaseSession, intents: Sequence[EffectIntent]) -> list[EffectEntry | None]:
        """Return the entry of each intent; None: there is none. A denied effect is denied for every retry."""
        for intent in intents:
            self._check(session, intent)
        return [_find(session, intent) or self._denied_before(session, intent) for intent in intents]

    def _denied_before(self, session: DatabaseSession, intent: EffectIntent) -> EffectEntry | None:
        before = "SELECT count(*) FROM effects WHERE run = ? AND action = ? AND ordinal < ? AND state = ?"
        (denied,) = session.execute(before, (self.run, intent.action, intent.ordinal, EffectState.DENIED)).fetchone()
        return EffectEntry(EffectState.DENIED, intent.turn) if denied else None

    def _is_doubtful(self, session: DatabaseSession, intent: EffectIntent, at_work: Collection[str]) -> bool:
        before = "SELECT key, epoch FROM effects WHERE run = ? AND action = ? AND ordinal < ? AND state = ?"
        found = session.execute(before, (self.run, intent.action, intent.ordinal, EffectState.BEGUN))
        return any(epoch != self._epoch or key not in at_work for key, epoch in found.fetchall())

    def _put(self, session: DatabaseSession, intent: EffectIntent, state: EffectState, request: ApprovalRequest | None = None) -> None:
        said = None if request is None else request.model_dump_json()
        session.execute(_PUT, (self.run, *intent, state, self._epoch, said))


def deny_asked(session: DatabaseSession, run: str) -> None:
    """Deny the calls that a run waits for, which has ended: a later yes would be accepted, and run nothing."""
    session.execute("UPDATE effects SET state = ? WHERE run = ? AND state = ?", (EffectState.DENIED, run, EffectState.ASKED))


def _find(session: DatabaseSession, intent: EffectIntent) -> EffectEntry | None:
    found = session.execute("SELECT run, state, turn, result FROM effects WHERE key = ?", (intent.key,)).fetchone()
    if found is None:
        return None
    run, state, turn, result = found
    try:
        return EffectEntry(EffectState(state), turn, None if result is None else ToolResult.model_validate_json(result))
    except ValueError as error:
        raise damaged_run(run) from error
