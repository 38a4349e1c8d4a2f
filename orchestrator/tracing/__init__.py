"""Traces of runs and their store, next to the store of runs: steps, tool calls, decisions and their cost, in the order of recording."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, ExitStack, closing
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import ConfigDict, Field, TypeAdapter

from ...protocols import Message, NotFound, Sensitivity, Side, StoreCorrupt, StoreError, ToolCall, ToolResult, ToolSpec
from ...protocols.steps import Value
from ..memory.erasing import Erased, record_of
from ..storage import Change, DatabaseSession, T, TableDatabase, Tables, Writer
from ..storage.sqlite import SqliteDatabase
from ..storage.sqlite_files import Naming
from ..task import Task
from ..task.events import (
    ApprovalAsked,
    AttemptEnded,
    AttemptStarted,
    Navigated,
    RoleStarted,
    Routed,
    SubtaskEnded,
    SubtasksPlanned,
    SupervisorSpoke,
)
from ..task.labels import Label, RecalledItem
from ..task.results import Call, SideUsage, Speculation
from ..task.stores import RunsConfig
from ..task.tools import Effect, ToolDeclaration


class TraceEntry(Value):
    """Fields of every entry."""

    at: float
    """Seconds since this process began to work on the run; for showing durations, not for ordering."""
    scope: str = ""
    """The part of the run that it belongs to, such as `subtask 2`; empty: the whole."""


class TracedTool(Value):
    """A tool that the agents could call."""

    spec: ToolSpec
    declared: ToolDeclaration


class RunBegan(TraceEntry):
    """A process began to work on the run, or resumed it."""

    type: Literal["began"] = "began"
    clock: float
    """Seconds since 1970 by this device's clock."""
    task: Task
    tools: tuple[TracedTool, ...]
    agents: Mapping[str, Side]
    """Agents that the task could be given to."""
    recalled: tuple[RecalledItem, ...] = ()
    """Items of the memory that it quotes, by which an erasure finds the trace."""


class AgentStepped(TraceEntry):
    """An agent was asked once, and replied or failed."""

    type: Literal["step"] = "step"
    call: Call
    kept: int
    """Number of leading messages of the request that equal those of the agent's last request in this role."""
    messages: tuple[Message, ...]
    """The further messages of the request."""
    reply: Message
    """The reply, as far as it was received."""
    label: Label
    """Label of the request's content."""
    sensitivity: Sensitivity
    """Sensitivity of the request itself: a part of a long context is for near agents alone, whatever its label."""
    reserved_tokens: int | None = None
    """Tokens reserved in the budget before the step; None: no budget was kept."""
    reserved_dollars: float | None = None
    """US dollars reserved; None: no budget was kept, or the price is unknown."""


class ToolRan(TraceEntry):
    """A tool was called. Its effect is recorded, and no replay calls it again."""

    type: Literal["tool"] = "tool"
    call: ToolCall
    result: ToolResult
    seconds: float
    label: Label
    """Label of the result."""
    effect: Effect


class Labelled(TraceEntry):
    """The run's label has become more private, or less trusted."""

    type: Literal["label"] = "label"
    label: Label


class Happened(TraceEntry):
    """A decision, or the outcome of an attempt or a part."""

    type: Literal["event"] = "event"
    event: Annotated[
        RoleStarted | Routed | AttemptStarted | AttemptEnded | SupervisorSpoke | Navigated | SubtasksPlanned | SubtaskEnded | ApprovalAsked,
        Field(discriminator="type"),
    ]


Outcome = Literal["done", "failed", "waiting", "stopped"]


class RunEnded(TraceEntry):
    """The process stopped working on the run."""

    type: Literal["ended"] = "ended"
    outcome: Outcome
    """`waiting` for approval; `stopped`: cancelled, or out of time."""
    text: str = ""
    """The answer, or why there is none."""
    error: str | None = None
    """Name of the error's class."""
    agent: str | None = None
    """The agent that gave the answer."""
    side: Side | None = None
    reasons: tuple[str, ...] = ()
    recalled: tuple[RecalledItem, ...] = ()
    """Items of the memory that it was told, including those that its tools looked up."""
    near: SideUsage = SideUsage()
    far: SideUsage = SideUsage()
    label: Label = Label()
    speculation: Speculation | None = None
    """How far near ran ahead of far; None: in another strategy than `speculate`."""

    @property
    def dollars(self) -> Decimal | None:
        """Return the US dollars of both sides; None if a price is unknown."""
        return None if self.near.dollars is None or self.far.dollars is None else self.near.dollars + self.far.dollars


class EntriesLost(TraceEntry):
    """A number of entries could not be stored."""

    type: Literal["lost"] = "lost"
    count: int


AnyEntry = Annotated[
    RunBegan | AgentStepped | ToolRan | Labelled | Happened | RunEnded | EntriesLost,
    Field(discriminator="type"),
]
ENTRY: TypeAdapter[AnyEntry] = TypeAdapter(AnyEntry, config=ConfigDict(defer_build=True))


logger = logging.getLogger(__name__)

_NAMING: Final = Naming("trace store", recovery="remove the file: runs continue without their traces")
_TABLES: Final = Tables(
    part="traces",
    version=1,
    sql="""
CREATE TABLE entries (
    number INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, user_name TEXT NOT NULL, type TEXT NOT NULL, content TEXT NOT NULL
);
CREATE INDEX entries_of_run ON entries (run, number);
CREATE INDEX runs_begun ON entries (number) WHERE type = 'began';
""",
)
_MOST_SECONDS: Final = 10.0
"""Seconds that a reader waits for what this process has submitted."""
_INSERT: Final = "INSERT INTO entries (run, user_name, type, content) VALUES (?, ?, ?, ?)"


class TraceLine(NamedTuple):
    """A trace in the list of them."""

    run: str
    began: RunBegan | None
    """None: the trace is damaged, or a newer nearfar wrote it."""
    ended: RunEnded | None
    """None while the run is worked on, or if its process has died."""


class TraceStore:
    """Traces in a database, which is closed with them. Any thread and several processes may use it.

    Raises `StoreUnavailable` and `StoreCorrupt`; the database is then closed, too.

    `keep`: runs whose traces are kept; the oldest are forgotten when the store is opened.
    """

    def __init__(self, database: TableDatabase, *, keep: int = 10_000) -> None:
        self.database = database
        with ExitStack() as failing:
            failing.callback(database.close)
            database.require(_TABLES)
            self._writer = failing.enter_context(closing(Writer(database)))
            self._last: Future[Any] | None = None
            self.forget_all(self._runs_beyond(keep))
            failing.pop_all()

    def submit(self, change: Change[T]) -> "Future[T]":
        """Queue a change behind those submitted before; many changes share a transaction."""
        self._last = submitted = self._writer.submit(change)
        return submitted

    def flush(self) -> None:
        """Wait until all submitted changes are written. Raises `StoreError` if nothing can be written."""
        self.submit(lambda _: None).result()

    def entries(self, run: str, *, user: str | None = None) -> list[AnyEntry]:
        """Return the entries of a `run` in the order in which they were recorded. Raises `NotFound` if the `user` has no such trace; None:
        any user."""
        query = "SELECT content FROM entries WHERE run = ? AND user_name = coalesce(?, user_name) ORDER BY number"
        with self._reading() as session:
            rows = session.execute(query, (run, user)).fetchall()
        if not rows:
            raise NotFound(f"there is no trace of a run {run!r}", hint="nearfar trace list shows them")
        return [_read(run, content) for (content,) in rows]

    def length(self, run: str) -> int:
        """Return the number of entries that the trace of a `run` has by now."""
        with self._reading() as session:
            (length,) = session.execute("SELECT count(*) FROM entries WHERE run = ?", (run,)).fetchone()
        return int(length)

    def ids(self, prefix: str = "", *, limit: int = 10_000) -> list[str]:
        """Return the ids of runs that begin with `prefix`, the newest first, `limit` at most."""
        query = "SELECT run FROM entries WHERE type = 'began' AND substr(run, 1, ?) = ? GROUP BY run ORDER BY max(number) DESC LIMIT ?"
        with self._reading() as session:
            return [run for (run,) in session.execute(query, (len(prefix), prefix, limit)).fetchall()]

    def holding(self, erased: Erased) -> list[str]:
        """Return the runs whose traces hold something of erased items; they are all read, which takes a while."""
        return [run for run, records in self.records() if any(map(erased.is_in, records))]

    def records(self) -> Iterator[tuple[str, Iterator[Any]]]:
        """Yield each run with its entries, as values of JSON; of damaged ones, their text."""
        with self._reading() as session:
            for (run,) in session.execute("SELECT DISTINCT run FROM entries ORDER BY run").fetchall():
                rows = session.execute("SELECT content FROM entries WHERE run = ?", (run,)).fetchall()
                yield run, (record_of(content) for (content,) in rows)

    def newest(self, *, user: str | None = None, limit: int = 100) -> list[TraceLine]:
        """Return the traces of the runs of a `user` (None: of all) that were begun or resumed last, the newest first, `limit` at most."""
        begun = (
            "SELECT run, max(number), min(number) FROM entries WHERE type = 'began' AND user_name = coalesce(?, user_name) "
            "GROUP BY run ORDER BY 2 DESC LIMIT ?"
        )
        with self._reading() as session:
            found = session.execute(begun, (user, limit)).fetchall()
            return [_line(session, run, first, last) for run, last, first in found]

    def forget_all(self, runs: Sequence[str]) -> None:
        """Remove the traces of `runs`, named by their ids."""
        for change in [self.submit(partial(_forget, run=run)) for run in runs]:
            change.result()

    def close(self) -> None:
        """Wait for what is being written."""
        self._writer.close()
        self.database.close()

    def _reading(self) -> AbstractContextManager[DatabaseSession]:
        """Return a session that sees all that was submitted before, as far as it can be written in time."""
        if self._last is not None:
            wait([self._last], _MOST_SECONDS)
        return self.database.reading()

    def _runs_beyond(self, keep: int) -> list[str]:
        newest_first = "SELECT run FROM entries WHERE type = 'began' GROUP BY run ORDER BY max(number) DESC"
        with self.database.reading() as session:
            return [run for (run,) in session.execute(newest_first).fetchall()[keep:]]


def insert_entries(session: DatabaseSession, run: str, user: str, entries: list[tuple[str, str]]) -> None:
    """Insert entries, given as type and content."""
    for type_, content in entries:
        session.execute(_INSERT, (run, user, type_, content))


def has_entries(session: DatabaseSession, run: str) -> bool:
    """Return whether there are entries of a run."""
    return session.execute("SELECT 1 FROM entries WHERE run = ? LIMIT 1", (run,)).fetchone() is not None


def open_traces(config: RunsConfig) -> TraceStore:
    """Open the traces of a `[runs]` section. Raises `StoreUnavailable`, `StoreCorrupt`, and `ConfigError` without an address."""
    if config.postgres_variable is None:
        return TraceStore(SqliteDatabase(config.folder / "traces.db", _NAMING), keep=config.keep)
    from ...protocols.secrets import secret
    from ..storage.postgres import PostgresDatabase

    return TraceStore(PostgresDatabase(secret(config.postgres_variable), what="trace store"), keep=config.keep)


def traces_if_usable(config: RunsConfig) -> TraceStore | None:
    """Open the traces; return None, with a warning, if they cannot be used: recording never fails a run."""
    try:
        return open_traces(config)
    except StoreError as error:
        logger.warning("runs are not traced: %s", error)
        return None


def erase_traces(config: RunsConfig, runs: Sequence[str]) -> None:
    """Remove the traces of forgotten runs, if there are any traces."""
    if config.postgres_variable is None and not (config.folder / "traces.db").exists():
        return
    store = open_traces(config)
    try:
        store.forget_all(runs)
        store.database.scrub()
    finally:
        store.close()


def _forget(session: DatabaseSession, *, run: str) -> None:
    session.execute("DELETE FROM entries WHERE run = ?", (run,))


def _line(session: DatabaseSession, run: str, first: int, last: int) -> TraceLine:
    (began,) = session.execute("SELECT content FROM entries WHERE number = ?", (first,)).fetchone()
    after = "SELECT content FROM entries WHERE run = ? AND number > ? AND type = 'ended' ORDER BY number DESC LIMIT 1"
    ended = session.execute(after, (run, last)).fetchone()
    try:
        opening, ending = _read(run, began), None if ended is None else _read(run, ended[0])
    except StoreCorrupt:  # of this run alone
        return TraceLine(run, None, None)
    return TraceLine(run, opening if isinstance(opening, RunBegan) else None, ending if isinstance(ending, RunEnded) else None)


def _read(run: str, content: str) -> AnyEntry:
    try:
        return ENTRY.validate_json(content)
    except ValueError as error:
        message = f"the trace of run {run} is damaged, or a newer nearfar wrote it"
        raise StoreCorrupt(message, hint="other traces are not affected") from error
