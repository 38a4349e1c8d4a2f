"""The ledger's table in the database of runs: what each effect was meant to be, what somebody said to it, and what came of it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from ....protocols import ApprovalRequest, LedgerConflict, ToolResult
from ...storage.tables import Session, TableDatabase, Tables
from ..run import damaged
from .transactions import EffectConnection

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
Fence = Callable[[Session], None]
"""Raises where the run belongs to somebody else by now."""


class EffectState(StrEnum):
    """How far an effect has come."""

    ASKED = "asked"
    """Somebody is asked whether it may be."""
    APPROVED = "approved"
    DENIED = "denied"
    BEGUN = "begun"
    """Its tool was started. Where nobody runs it any more, nobody knows whether it went through."""
    DONE = "done"
    """Its result is known."""


class Intent(NamedTuple):
    """An effect that is about to be."""

    key: str
    action: str
    ordinal: int
    turn: int
    tool: str
    version: str
    """A hash of what is declared of the tool."""


class Standing(NamedTuple):
    """What the ledger knows of an effect."""

    state: EffectState | None
    """None: nothing, and now it is begun."""
    turn: int
    result: ToolResult | None = None


class EffectRecords:
    """Those of one run, written by the one who owns it. Each method is a part of a transaction, and raises what `fence` raises.

    Args:
        epoch: how many owners the run has had, this one included.
    """

    def __init__(self, database: TableDatabase, run: str, *, epoch: int, fence: Fence) -> None:
        self.run = run
        self._database = database
        self._epoch = epoch
        self._fence = fence

    def begin(self, session: Session, intent: Intent, *, at_work: Collection[str] = ()) -> Standing:
        """Write the intent down, unless the effect was begun before or somebody said no to it.

        An equal effect before it that nobody knows about stands in the way of this one, too: asking twice is not to have it twice.
        Raises `LedgerConflict` where the tool is no longer what it was then.

        Args:
            at_work: keys of effects that this process runs just now; it may change meanwhile.
        """
        self._fence(session)
        self._check(session, intent)
        found = _find(session, intent)
        if found is not None and found.state is not EffectState.APPROVED:
            return found
        if self._is_doubtful(session, intent, at_work):
            return Standing(EffectState.BEGUN, intent.turn)
        self._put(session, intent, EffectState.BEGUN)
        return Standing(None, intent.turn)

    def begin_again(self, session: Session, intent: Intent) -> None:
        """Begin an effect once more: its tool was started by a process that is gone, or has failed and is idempotent."""
        self._fence(session)
        self._put(session, intent, EffectState.BEGUN)

    def finish(self, session: Session, key: str, result: ToolResult) -> None:
        """Write the result down. Raises `LedgerConflict` where it is not this owner's to write."""
        self._fence(session)
        done = session.execute(
            "UPDATE effects SET state = ?, result = ? WHERE key = ? AND state = ? AND epoch = ?",
            (EffectState.DONE, result.model_dump_json(), key, EffectState.BEGUN, self._epoch),
        )
        if done.rowcount != 1:
            message = f"the result of a call of {result.name} is not recorded: another owner of run {self.run} has gone on with it"
            raise LedgerConflict(message, hint="this process has lost the run; the other one finishes it")

    def transaction(self, key: str) -> EffectConnection:
        """One of the effect's tool, in which its result is written down as well. It waits for others to finish writing."""
        return EffectConnection(self._database.alone(), lambda session, result: self.finish(session, key, result))

    def sync(self) -> None:
        """Return when what was written before outlives a power cut, too."""
        self._database.sync()

    def ask(self, session: Session, asked: Sequence[tuple[Intent, ApprovalRequest]]) -> None:
        """Write down what somebody is to decide."""
        self._fence(session)
        for intent, request in asked:
            self._put(session, intent, EffectState.ASKED, request)

    def answer(self, session: Session, answers: Mapping[Intent, bool]) -> None:
        """Write down what somebody said."""
        self._fence(session)
        for intent, is_approved in answers.items():
            self._put(session, intent, EffectState.APPROVED if is_approved else EffectState.DENIED)

    def _check(self, session: Session, intent: Intent) -> None:
        """Raise `LedgerConflict` where the run has called the tool when it was declared otherwise.

        All calls of the tool count, since the same call has another key where the tool has one more argument, or only reads now.
        """
        other = "SELECT count(*) FROM effects WHERE run = ? AND tool = ? AND version <> ?"
        (others,) = session.execute(other, (self.run, intent.tool, intent.version)).fetchone()
        if others:
            message = f"{intent.tool} takes other arguments, or has another effect, than when this run called it"
            raise LedgerConflict(message, hint="go on with the program that the run was begun with, or begin a new run")

    def standings(self, session: Session, intents: Sequence[Intent]) -> list[Standing | None]:
        """What is known of each; None: nothing. What somebody said no to is denied whenever it is tried again."""
        for intent in intents:
            self._check(session, intent)
        return [_find(session, intent) or self._denied_before(session, intent) for intent in intents]

    def _denied_before(self, session: Session, intent: Intent) -> Standing | None:
        before = "SELECT count(*) FROM effects WHERE run = ? AND action = ? AND ordinal < ? AND state = ?"
        (denied,) = session.execute(before, (self.run, intent.action, intent.ordinal, EffectState.DENIED)).fetchone()
        return Standing(EffectState.DENIED, intent.turn) if denied else None

    def _is_doubtful(self, session: Session, intent: Intent, at_work: Collection[str]) -> bool:
        before = "SELECT key, epoch FROM effects WHERE run = ? AND action = ? AND ordinal < ? AND state = ?"
        found = session.execute(before, (self.run, intent.action, intent.ordinal, EffectState.BEGUN))
        return any(epoch != self._epoch or key not in at_work for key, epoch in found.fetchall())

    def _put(self, session: Session, intent: Intent, state: EffectState, request: ApprovalRequest | None = None) -> None:
        said = None if request is None else request.model_dump_json()
        session.execute(_PUT, (self.run, *intent, state, self._epoch, said))


def _find(session: Session, intent: Intent) -> Standing | None:
    found = session.execute("SELECT run, state, turn, result FROM effects WHERE key = ?", (intent.key,)).fetchone()
    if found is None:
        return None
    run, state, turn, result = found
    try:
        return Standing(EffectState(state), turn, None if result is None else ToolResult.model_validate_json(result))
    except ValueError as error:
        raise damaged(run) from error
