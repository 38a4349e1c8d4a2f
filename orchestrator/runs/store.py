"""`RunStore`: the runs of one user on this machine, or of many on several."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from ...protocols import Cancelled, IdempotencyConflict, InvalidRequest, NotFound, RunBusy, StoreCorrupt, StoreUnavailable
from ..storage import Change, DatabaseSession, TableDatabase, Tables, Writer
from ..storage.sqlite import SqliteDatabase
from ..storage.sqlite_files import Naming
from ..task.stores import RunsConfig
from ..util.runtime import in_thread
from . import ATTACHMENTS, VERSION, KeptTask, Lease, Run, RunFailure, RunState, damaged_run, parse_record, title
from .effects import TABLES as EFFECTS
from .effects import deny_asked
from .leases import LocalOwners, Owners, SharedOwners, check_lease
from .sessions import RESPONSES, SESSIONS

if TYPE_CHECKING:
    from .checkpointer import RunCheckpointer


TABLES: Final = Tables(
    part="runs",
    version=2,
    sql="""
CREATE TABLE runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL UNIQUE, user_name TEXT NOT NULL, state TEXT NOT NULL,
    strategy TEXT NOT NULL, title TEXT NOT NULL, digest TEXT NOT NULL, version INTEGER NOT NULL, began REAL NOT NULL,
    owner TEXT, epoch INTEGER NOT NULL, steps INTEGER NOT NULL, is_cancelled INTEGER NOT NULL, ended INTEGER, ended_at REAL
);
CREATE INDEX runs_by_state ON runs (state, number);
CREATE INDEX runs_by_user ON runs (user_name, number);
CREATE INDEX runs_by_user_and_state ON runs (user_name, state, number);
CREATE INDEX runs_by_end ON runs (ended) WHERE ended IS NOT NULL;
CREATE TABLE tasks (run TEXT PRIMARY KEY, content TEXT NOT NULL);
CREATE TABLE outcomes (run TEXT PRIMARY KEY, content TEXT NOT NULL);
CREATE TABLE checkpoints (
    run TEXT NOT NULL, namespace TEXT NOT NULL, sequence INTEGER NOT NULL, checkpoint TEXT NOT NULL, parent TEXT,
    version INTEGER NOT NULL, kind TEXT NOT NULL, content BLOB NOT NULL, checksum INTEGER NOT NULL, metadata TEXT NOT NULL,
    PRIMARY KEY (run, namespace, checkpoint)
);
CREATE TABLE pending (
    run TEXT NOT NULL, namespace TEXT NOT NULL, checkpoint TEXT NOT NULL, task TEXT NOT NULL, place INTEGER NOT NULL,
    path TEXT NOT NULL, channel TEXT NOT NULL, kind TEXT NOT NULL, content BLOB NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (run, namespace, checkpoint, task, place)
);
""",
)
"""`sequence` numbers a thread's checkpoints; of a run, each graph's last is kept. `pending` is what tasks of the step behind one wrote.

`ended` numbers the runs in the order in which they ended.
"""


logger = logging.getLogger(__name__)

FILE: Final = "runs.db"
NAMING: Final = Naming("run store", recovery="name another [runs] folder, or move the file away: its runs are then forgotten")
_COLUMNS: Final = "run, number, user_name, state, strategy, title, steps, epoch, owner, began, ended_at, version"
_ENDED: Final = (RunState.DONE, RunState.FAILED, RunState.CANCELLED)
_SECONDS_PER_DAY: Final = 86_400
_TABLES: Final = ("checkpoints", "pending", "attachments", "effects", "tasks", "outcomes", "turns", "responses", "runs")


class RunStore:
    """The store of runs. Calls that are not awaited wait for the database; they may come from any thread.

    Raises `StoreUnavailable` if the database cannot be used now, and `StoreCorrupt` if it, or its record of a run, is damaged.

    Args:
        database: opened by `open`, and closed with the store.
        owners: says which processes are alive.
        keep, keep_days: see `RunsConfig`.

    Arguments of several functions:
        run: the run's id, which is its task's idempotency key
        runs: ids of runs
        user: the user on whose behalf it was begun; None: any
        limit: most runs to return
    """

    def __init__(self, database: TableDatabase, owners: Owners, *, keep: int = 10_000, keep_days: float | None = None) -> None:
        self.database = database
        self.owners = owners
        self._keep = keep
        self._keep_days = keep_days
        self._leases: set[Lease] = set()
        """Leases of this process."""
        self.forgetting: list[Callable[[Sequence[str]], None]] = []
        """Callbacks that get the runs about to be forgotten, and forget other records of them."""
        database.require(TABLES)
        database.require(EFFECTS)
        database.require(SESSIONS)
        database.require(RESPONSES)
        database.require(ATTACHMENTS)
        self.writer = Writer(database)

    @classmethod
    def open(cls, config: RunsConfig | None = None, *, address: str | None = None) -> Self:
        """Open the store in the folder of a `[runs]` section (`config`), or in Postgres at `address`."""
        config = config or RunsConfig()
        database: TableDatabase
        with ExitStack() as failing:
            if address is None:
                database = failing.enter_context(closing(SqliteDatabase(config.folder / FILE, NAMING)))
                owners: Owners = failing.enter_context(closing(LocalOwners(config.folder / "owners")))
            else:
                from ..storage.postgres import PostgresDatabase

                database = failing.enter_context(closing(PostgresDatabase(address, what="run store")))
                owners = failing.enter_context(closing(SharedOwners(database, f"process {os.getpid()} on {socket.gethostname()}")))
            store = cls(database, owners, keep=config.keep, keep_days=config.keep_days)
            failing.pop_all()
        return store

    @property
    def checkpointer(self) -> "RunCheckpointer":
        """Return a checkpointer for the graphs of runs."""
        from .checkpointer import RunCheckpointer

        return RunCheckpointer(self.database, self.writer)

    async def begin(self, kept: KeptTask, digest: str) -> Lease:
        """Store a task and begin to work on it. Raises `RunBusy` if another process was quicker."""
        return await self._take_lease(partial(self._begin, kept=kept, digest=digest))

    async def claim(self, run: str, *, user: str = "") -> Lease:
        """Begin to work on a run that no process works on.

        Raises `NotFound` if the user has no such run, `RunBusy` that names the process which works on it, `Cancelled` if it was cancelled,
        and `InvalidRequest` if it is done.
        """
        try:
            return await self._take_lease(partial(self._claim, run=run, user=user))
        except Cancelled:  # the process that should have noticed has died
            await self.writer.write(partial(self._cancel, run=run, user=user))
            raise

    def forget_lease(self, lease: Lease) -> None:
        """Forget a lease in this process, without writing to the database."""
        self._leases.discard(lease)

    async def release(self, lease: Lease, *, waiting: bool = False) -> None:
        """Stop working on a run that has not ended. A lease that another process has taken over is left alone."""
        await self.writer.write(partial(self._release, lease=lease, state=RunState.WAITING if waiting else RunState.RUNNING))
        self.forget_lease(lease)

    async def finish(self, lease: Lease, outcome: str | RunFailure, *, task: KeptTask | None = None) -> None:
        """Store the outcome: the result as JSON, or the failure. Raises `RunBusy` if another process has taken the run over.

        A run that failed after a request to cancel it counts as cancelled. `task`: what is to be kept of its task from now on.
        """
        await self.writer.write(partial(self._finish, lease=lease, outcome=outcome, task=task))
        self.forget_lease(lease)

    async def find(self, run: str, *, user: str, digest: str) -> Run | None:
        """Return the run of an idempotency key; None if the key is new. Raises `IdempotencyConflict` if it is another task's: `digest` is
        the hash of the task that is about to begin."""
        return await in_thread(self._find, run, user, digest)

    def list(self, *, state: RunState | None = None, user: str | None = None, limit: int = 100) -> list[Run]:
        """Return runs, the newest first; `state` None: those in any state, `user` None: those of all users."""
        conditions = {"state": state, "user_name": user}
        given = {column: value for column, value in conditions.items() if value is not None}
        where = " AND ".join([*(f"{column} = ?" for column in given), "1 = 1"])
        query = f"SELECT {_COLUMNS} FROM runs WHERE {where} ORDER BY number DESC LIMIT ?"
        with self.database.reading() as session:
            return [*self._runs(session, session.execute(query, (*given.values(), limit)).fetchall())]

    def waiting(self) -> int:
        """Return the number of runs that wait for an approval."""
        with self.database.reading() as session:
            return int(session.execute("SELECT count(*) FROM runs WHERE state = ?", (RunState.WAITING,)).fetchone()[0])

    def ids(self, prefix: str = "", *, limit: int = 10_000) -> "Sequence[str]":
        """Return the ids of runs that begin with `prefix`, the newest first."""
        query = "SELECT run FROM runs WHERE substr(run, 1, ?) = ? ORDER BY number DESC LIMIT ?"
        with self.database.reading() as session:
            return [run for (run,) in session.execute(query, (len(prefix), prefix, limit)).fetchall()]

    def orphans(self, *, user: str | None = None) -> "Sequence[Run]":
        """Runs whose process has died, or gave them up when it was interrupted; the oldest first."""
        query = f"SELECT {_COLUMNS} FROM runs WHERE state = 'running' ORDER BY number"
        with self.database.reading() as session:
            runs = self._runs(session, session.execute(query).fetchall())
        return [run for run in runs if run.is_orphaned and user in (None, run.user)]

    def show(self, run: str, *, user: str | None = None) -> Run:
        """Return a run. Raises `NotFound` if the user has no such run."""
        with self.database.reading() as session:
            return self._read_run(session, run, user)

    def task(self, run: str) -> KeptTask:
        """Return the stored task of a run. Raises `StoreUnavailable` if a newer nearfar has written it."""
        with self.database.reading() as session:
            row = session.execute("SELECT content FROM tasks WHERE run = ?", (run,)).fetchone()
        return parse_record(KeptTask, run, "" if row is None else row[0])

    def outcome(self, run: str) -> str | RunFailure | None:
        """Return the result of a run as JSON, or its failure; None if it has not ended."""
        query = "SELECT state, content FROM runs JOIN outcomes ON runs.run = outcomes.run WHERE runs.run = ?"
        with self.database.reading() as session:
            found = session.execute(query, (run,)).fetchone()
        if found is None or found[0] not in _ENDED:
            return None
        return str(found[1]) if found[0] == RunState.DONE else parse_record(RunFailure, run, found[1])

    def to_be_cancelled(self) -> set[str]:
        """Return the runs of this process whose cancellation is requested."""
        query = "SELECT run FROM runs WHERE state = 'running' AND owner = ? AND is_cancelled = 1"
        with self.database.reading() as session:
            return {run for (run,) in session.execute(query, (self.owners.name,)).fetchall()}

    def cancel(self, run: str, *, user: str | None = None) -> Run:
        """Cancel a run: at once if no process works on it, else within a second, or when its running tools are done.

        A run that has ended stays as it is.
        """
        self.writer.submit(partial(self._cancel, run=run, user=user)).result()
        return self.show(run, user=user)

    def forget(self, run: str, *, user: str | None = None) -> None:
        """Remove all records of a run. Raises `RunBusy` while a process works on it.

        The run is ended first and its row removed last: a run that was half forgotten when the process died cannot be resumed, only
        forgotten.
        """
        self.writer.submit(partial(self._end_idle, run=run, user=user)).result()
        self._forget([run])

    def forget_all(self, runs: Sequence[str]) -> None:
        """Remove all records of runs, here and elsewhere.

        Raises `RunBusy` that names the runs which a process works on, after the others are forgotten.
        """
        idle, busy = [], []
        for run in runs:
            try:
                self.writer.submit(partial(self._end_idle, run=run, user=None)).result()
            except RunBusy:
                busy.append(run)
                continue
            except NotFound:  # only other records of it exist, such as its trace
                pass
            idle.append(run)
        self._forget(idle)
        if busy:
            raise RunBusy(f"a process works on run {', '.join(busy)}", hint="wait, or end it with: nearfar runs cancel; then try again")

    def tidy(self) -> int:
        """Forget the oldest ended runs beyond the limits. Return their number."""
        with self.database.reading() as session:
            late = 0.0 if self._keep_days is None else time.time() - self._keep_days * _SECONDS_PER_DAY
            query = "SELECT run FROM runs WHERE version <= ? AND (ended <= (SELECT max(ended) FROM runs) - ? OR ended_at < ?)"
            old = [run for (run,) in session.execute(query, (VERSION, self._keep, late)).fetchall()]
        idle = []
        for run in old:
            with suppress(RunBusy, NotFound):  # Another process has just resumed or forgotten it.
                self.writer.submit(partial(self._end_idle, run=run, user=None)).result()
                idle.append(run)
        if idle:
            self._forget(idle)
        return len(idle)

    def close(self) -> None:
        """Wait for pending writes. Runs that this process has not ended can be resumed by others."""
        self.writer.close()
        self.owners.close()
        self.database.close()

    def _forget(self, runs: Sequence[str]) -> None:
        for forget in self.forgetting:
            forget(runs)
        for run in runs:
            self.writer.submit(partial(self._drop, run=run)).result()
        self.database.scrub()

    def _drop(self, session: DatabaseSession, *, run: str) -> None:
        for table in _TABLES:
            session.execute(f"DELETE FROM {table} WHERE run = ?", (run,))

    async def _take_lease(self, taking: Change[Lease]) -> Lease:
        """Take a lease and return it. If the caller is cancelled meanwhile, the lease is given back."""
        taken: set[Lease] = set()

        def take(session: DatabaseSession) -> Lease:
            lease = taking(session)
            taken.add(lease)
            return lease

        try:
            return await self.writer.write(take)
        except asyncio.CancelledError:
            self.writer.submit(partial(self._give_back, taken=taken))
            raise

    def _give_back(self, session: DatabaseSession, *, taken: Iterable[Lease]) -> None:
        for lease in taken:
            self.forget_lease(lease)
            if self._read_run(session, lease.run, None).owner == self.owners.name:  # else it was not kept
                self._release(session, lease=lease, state=RunState.RUNNING)

    def _begin(self, session: DatabaseSession, *, kept: KeptTask, digest: str) -> Lease:
        task = kept.task
        run = task.idempotency_key
        row = (run, task.user, RunState.RUNNING, task.policy.strategy, title(task), digest, VERSION, time.time(), self.owners.name)
        insert = (
            "INSERT INTO runs (run, user_name, state, strategy, title, digest, version, began, owner, epoch, steps, is_cancelled) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 1, 0, 0) ON CONFLICT (run) DO NOTHING"
        )
        if session.execute(insert, row).rowcount != 1:
            raise RunBusy(f"run {run} was begun by another process at the same time", hint="ask again: its result is then returned")
        session.execute("INSERT INTO tasks (run, content) VALUES (?, ?)", (run, kept.model_dump_json()))
        if task.turn is not None:
            session.execute("INSERT INTO turns (run, user_name, session) VALUES (?, ?, ?)", (run, task.user, task.session))
        return self._note_lease(Lease(run, 1))

    def _claim(self, session: DatabaseSession, *, run: str, user: str) -> Lease:
        known = self._read_run(session, run, user)
        self._check_free(session, known)
        if known.state is RunState.CANCELLED or self._is_cancelled(session, run):
            raise Cancelled(f"run {run} was cancelled", hint="begin it again under another key")
        if known.state is RunState.DONE:
            raise InvalidRequest(f"run {run} is done")
        free = f"SELECT epoch FROM runs WHERE run = ? AND epoch = ?{self.owners.lock}"
        if session.execute(free, (run, known.epoch)).fetchone() is None:
            raise RunBusy(f"run {run} is being taken over by another process just now")
        epoch = known.epoch + 1
        update = "UPDATE runs SET owner = ?, epoch = ?, state = 'running', ended = NULL, ended_at = NULL WHERE run = ?"
        session.execute(update, (self.owners.name, epoch, run))
        session.execute("DELETE FROM outcomes WHERE run = ?", (run,))
        return self._note_lease(Lease(run, epoch))

    def _note_lease(self, lease: Lease) -> Lease:
        """Note a lease within the transaction, so that no other claim of this process comes in between."""
        self._leases.add(lease)
        return lease

    def _check_free(self, session: DatabaseSession, known: Run) -> None:
        if known.owner is not None and not known.is_orphaned:
            who = "this process" if known.owner == self.owners.name else self.owners.describe(session, known.owner)
            raise RunBusy(f"{who} works on run {known.id}", hint="wait for it, or end it with: nearfar runs cancel")

    def _release(self, session: DatabaseSession, *, lease: Lease, state: RunState) -> None:
        statement = "UPDATE runs SET owner = NULL, state = ? WHERE run = ? AND epoch = ? AND owner IS NOT NULL RETURNING is_cancelled"
        found = session.execute(statement, (state, lease.run, lease.epoch)).fetchone()
        if found is not None and found[0]:
            self._end(session, lease.run, RunState.CANCELLED)

    def _finish(self, session: DatabaseSession, *, lease: Lease, outcome: str | RunFailure, task: KeptTask | None) -> None:
        from .checkpointer import drop_checkpoints

        is_cancelled, has_failed = check_lease(session, lease), isinstance(outcome, RunFailure)
        state = RunState.DONE if not has_failed else RunState.CANCELLED if is_cancelled else RunState.FAILED
        content = outcome.model_dump_json() if isinstance(outcome, RunFailure) else outcome
        self._end(session, lease.run, state)
        insert = "INSERT INTO outcomes (run, content) VALUES (?, ?) ON CONFLICT (run) DO UPDATE SET content = excluded.content"
        session.execute(insert, (lease.run, content))
        if task is not None:
            session.execute("UPDATE tasks SET content = ? WHERE run = ?", (task.model_dump_json(), lease.run))
        if state is RunState.DONE:
            drop_checkpoints(session, run=lease.run)

    def _end(self, session: DatabaseSession, run: str, state: RunState) -> None:
        statement = (
            "UPDATE runs SET owner = NULL, state = ?, ended = (SELECT coalesce(max(ended), 0) + 1 FROM runs), ended_at = ? WHERE run = ?"
        )
        session.execute(statement, (state, time.time(), run))
        if state is not RunState.FAILED:  # which may be resumed
            deny_asked(session, run)

    def _is_cancelled(self, session: DatabaseSession, run: str) -> bool:
        found = session.execute("SELECT is_cancelled FROM runs WHERE run = ?", (run,)).fetchone()
        return found is not None and bool(found[0])

    def _cancel(self, session: DatabaseSession, *, run: str, user: str | None) -> None:
        known = self._read_run(session, run, user)
        if known.state in _ENDED:
            return
        session.execute("UPDATE runs SET is_cancelled = 1 WHERE run = ?", (run,))
        if known.owner is None or known.is_orphaned:
            self._end(session, run, RunState.CANCELLED)

    def _end_idle(self, session: DatabaseSession, *, run: str, user: str | None) -> None:
        """End a run, so that it cannot be resumed. Raises `RunBusy` while a process works on it."""
        known = self._read_run(session, run, user)
        self._check_free(session, known)
        if known.state not in (RunState.DONE, RunState.CANCELLED):
            self._end(session, run, RunState.CANCELLED)

    def _find(self, run: str, user: str, digest: str) -> Run | None:
        with self.database.reading() as session:
            row = session.execute("SELECT digest, user_name FROM runs WHERE run = ?", (run,)).fetchone()
            if row is None:
                return None
            if tuple(row) != (digest, user):
                message = f"the idempotency key {run!r} was used for another task"
                raise IdempotencyConflict(message, hint="give each task a key of its own")
            return self._read_run(session, run, user)

    def _read_run(self, session: DatabaseSession, run: str, user: str | None) -> Run:
        row = session.execute(f"SELECT {_COLUMNS} FROM runs WHERE run = ?", (run,)).fetchone()
        if row is None or user not in (None, row[2]):  # Users must not learn of the runs of others.
            raise NotFound(f"there is no run {run!r}", hint="nearfar runs list shows them; one of another user is found under their name")
        version = row[-1]
        if isinstance(version, int) and version > VERSION:
            message = f"run {run} is of version {version}, and this nearfar knows version {VERSION}"
            raise StoreUnavailable(message, hint="update nearfar on this machine")
        return self._run(session, row)

    def _runs(self, session: DatabaseSession, rows: Iterable[Sequence[Any]]) -> Sequence[Run]:
        """Return the runs whose rows can be read. A damaged one is logged and left out."""
        runs = []
        for row in rows:
            try:
                runs.append(self._run(session, row))
            except StoreCorrupt as error:
                logger.warning("%s", error)
        return runs

    def _run(self, session: DatabaseSession, row: Sequence[Any]) -> Run:
        run, number, user, state, strategy, said, steps, epoch, owner, began, ended, _ = row
        is_orphaned = state == RunState.RUNNING and not self._is_worked_on(session, owner, Lease(run, epoch))
        known = {"id": run, "number": number, "user": user, "state": state, "strategy": strategy, "title": said, "steps": steps}
        try:
            return Run.model_validate({**known, "epoch": epoch, "owner": owner, "is_orphaned": is_orphaned, "began": began, "ended": ended})
        except ValueError as error:
            raise damaged_run(run) from error

    def _is_worked_on(self, session: DatabaseSession, owner: str | None, lease: Lease) -> bool:
        if owner == self.owners.name:
            return lease in self._leases
        return owner is not None and self.owners.is_alive(session, owner)
