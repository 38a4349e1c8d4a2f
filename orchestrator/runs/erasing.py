"""Open the store of runs, and forget the runs and traces that hold something of items erased from the memory."""

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...protocols import RunBusy, StoreError, StoreUnavailable
from ...protocols.items import ItemAddress
from ..memory.engine import MOST_FORGOTTEN
from ..memory.erasing import Erased, recalled_in, record_of
from ..memory.operation import address_tag
from ..storage import DatabaseSession, Tables
from ..storage.sqlite import SqliteDatabase
from ..storage.sqlite_files import Naming
from ..task.stores import RunsConfig, calls_folder
from ..tracing import TraceStore
from ..util.text import drop_lines
from .sessions import with_later_turns
from .store import FILE, RunStore

if TYPE_CHECKING:
    from ..memory.store import MemoryStore

from functools import partial


def open_store(config: RunsConfig) -> RunStore:
    """Open the store of a `[runs]` section. Raises `ConfigError` if no address is set, `StoreUnavailable` or `StoreCorrupt`.

    A forgotten run's trace, privacy record and budget are forgotten with it.
    """
    store = RunStore.open(config, address=address_of(config) if config.postgres_variable is not None else None)
    store.forgetting += [partial(erase, config) for erase in (_erase_traces, _erase_privacy, _erase_budgets)]
    return store


def address_of(config: RunsConfig) -> str:
    """Return the address of the database that a `[runs]` section names. Raises `ConfigError` where none is set."""
    from ...protocols.secrets import secret

    assert config.postgres_variable is not None, "the caller has looked"
    return secret(config.postgres_variable)


def erase_calls() -> None:
    """Overwrite and remove the calls that near agents keep to draft from. Raises `OSError`."""
    for path in calls_folder().glob("*"):
        with path.open("r+b") as file:
            file.write(bytes(path.stat().st_size))
            file.flush()
            os.fsync(file.fileno())
        path.unlink()


def _erase_traces(config: RunsConfig, runs: Sequence[str]) -> None:
    from ..tracing import erase_traces

    erase_traces(config, runs)


def _erase_privacy(config: RunsConfig, runs: Sequence[str]) -> None:
    from ..safety.outbound_filter import PrivacyRecords

    if (config.folder / "privacy.db").exists():
        with closing(PrivacyRecords(config.folder, keep=config.keep)) as records:
            for run in runs:
                records.forget(run)
            records.database.scrub()


def _erase_budgets(config: RunsConfig, runs: Sequence[str]) -> None:
    """Forget the budgets of runs, since names of tasks are the app's own words."""
    from ..budgets import open_budgets

    if config.postgres_variable is not None or (config.folder / "budgets.db").exists():
        with closing(open_budgets(config)) as book:
            book.forget_tasks(runs)


_TRACES: Final = "traces.db"
_FILES: Final = (FILE, _TRACES, "privacy.db", "budgets.db")
_NAMING: Final = Naming("run store", recovery="check the disk")
_TEXTS: Final = (
    "SELECT title FROM runs WHERE run = ?",
    "SELECT user_name FROM runs WHERE run = ?",
    "SELECT session FROM turns WHERE run = ?",
    "SELECT stopped FROM turns WHERE run = ? AND stopped IS NOT NULL",
    "SELECT content FROM tasks WHERE run = ?",
    "SELECT content FROM outcomes WHERE run = ?",
    "SELECT request FROM effects WHERE run = ? AND request IS NOT NULL",
    "SELECT result FROM effects WHERE run = ? AND result IS NOT NULL",
)
_VALUES: Final = ("SELECT kind, content FROM checkpoints WHERE run = ?", "SELECT kind, content FROM pending WHERE run = ?")


@dataclass(frozen=True, slots=True)
class Holding:
    """Runs whose records hold an erased item."""

    runs: tuple[str, ...] = ()
    """Durable runs."""
    traces: tuple[str, ...] = ()
    """Runs whose trace holds it."""

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.runs, *self.traces)))


def find_holding(config: RunsConfig, erased: Erased) -> Holding:
    """Search all records of runs for erased items. Raises `StoreUnavailable` and `StoreCorrupt`."""
    runs: Sequence[str] = ()
    traces: Sequence[str] = ()
    if _is_kept(config, FILE):
        with closing(open_store(config)) as store:
            runs = find_runs_holding(store, erased)
    if _is_kept(config, _TRACES):
        from ..tracing import open_traces

        with closing(open_traces(config)) as kept:
            traces = kept.holding(erased)
    return Holding(tuple(runs), tuple(traces))


def find_runs_holding(store: RunStore, erased: Erased) -> list[str]:
    """Return the runs of a store that hold a part of erased items: in the task, a step, an effect or the outcome.

    With a turn of a session go its later turns, whose agents were told it.
    """
    return [*with_later_turns(store, [run for run, records in run_records(store) if any(map(erased.is_in, records))])]


def run_records(store: RunStore) -> Iterator[tuple[str, Iterator[Any]]]:
    """Yield each run of a store with all its records as JSON values; read one run's before asking for the next."""
    with store.database.reading() as session:
        for (run,) in session.execute("SELECT run FROM runs ORDER BY number").fetchall():
            yield run, _records(store, session, run)


def forget_holding(config: RunsConfig, held: Holding) -> None:
    """Forget runs, with their traces and other records, and rewrite the files.

    The files are rewritten even without such runs: an earlier erasure may have deleted rows and then failed to rewrite.

    Raises `RunBusy` while a process works on one of the runs; the others are forgotten by then.
    """
    if held.all and _is_kept(config, FILE):
        with closing(open_store(config)) as store:
            store.forget_all(held.all)
    elif held.all and _is_kept(config, _TRACES):
        from ..tracing import erase_traces

        erase_traces(config, held.all)
    rewrite(config)


def rewrite(config: RunsConfig) -> None:
    """Rewrite all records of runs, so that no file holds anything of forgotten ones. Raises `StoreUnavailable`."""
    if config.postgres_variable is not None:
        from ..storage.postgres import PostgresDatabase

        with closing(PostgresDatabase(address_of(config), what="run store")) as shared:
            shared.rewrite()
    for path in filter(Path.exists, (config.folder / name for name in _FILES)):
        with closing(SqliteDatabase(path, _NAMING)) as database:
            database.rewrite()


def _is_kept(config: RunsConfig, file: str) -> bool:
    return config.postgres_variable is not None or (config.folder / file).exists()


def _records(store: RunStore, session: DatabaseSession, run: str) -> Iterator[Any]:
    yield run
    for query in _TEXTS:
        yield from (record_of(content) for (content,) in session.execute(query, (run,)).fetchall())
    for query in _VALUES:
        yield from (_value(store, kind, content) for kind, content in session.execute(query, (run,)).fetchall())


def _value(store: RunStore, kind: str, content: bytes) -> Any:  # noqa: ANN401 - a value of any channel
    """Return the value that a step has stored; of a damaged one, its bytes as text."""
    with suppress(ValueError, TypeError):
        return store.checkpointer.serde.loads_typed((kind, content))
    return content.decode("utf-8", "replace")


class ErasedLogs:
    """The lines of the logs of the router and of `auto` that hold something erased, or that belong to one of `runs`.

    Raises `StoreUnavailable` if a log cannot be read or written.
    """

    def __init__(self, files: Iterable[Path | None], erased: Erased, runs: Collection[str]) -> None:
        self._erased = erased
        self._runs = frozenset(runs)
        self._files = [file for file in files if file is not None and file.exists()]
        try:
            self.lines = sum(self._is_dropped(line) for file in self._files for line in file.read_bytes().split(b"\n") if line)
        except OSError as error:
            raise self._unusable(error) from error

    def drop(self) -> None:
        """Remove the lines."""
        try:
            for file in self._files:
                drop_lines(file, self._is_dropped)
        except OSError as error:
            raise self._unusable(error) from error

    def _is_dropped(self, line: bytes) -> bool:
        record = record_of(line.decode("utf-8", "replace"))
        is_of_run = isinstance(record, dict) and record.get("id") in self._runs
        return is_of_run or self._erased.is_in(record)

    def _unusable(self, error: OSError) -> StoreUnavailable:
        return StoreUnavailable(f"a log of the policy cannot be used: {error.strerror}", hint="[policy.router] log, [policy.auto] reports")


logger = logging.getLogger(__name__)

_ERASURES: Final = Tables("erasures", 1, "CREATE TABLE erasures (memory TEXT PRIMARY KEY, heard TEXT NOT NULL)")

_UNFINISHED: Final = "unfinished"
"""Stands in the place of a memory's erasures while runs are being forgotten and files overwritten."""


def erased_of(memory: "MemoryStore | None", addresses: Set[ItemAddress]) -> Set[ItemAddress]:
    """Return those of the items that were erased from the memory and not written again. Raises `StoreError`."""
    if memory is None or not addresses:
        return frozenset()
    forgotten = {one.tag for one in memory.engine.forgotten(0, limit=MOST_FORGOTTEN)}
    lacking = {address for address in addresses if address_tag(address) in forgotten}
    with memory.engine.transaction() as transaction:
        return lacking - transaction.heads(sorted(lacking)).keys()


class ErasedRuns:
    """Forgets runs and traces that recalled an item erased from the memory, by this or another device or process.

    They are found by the items that the memory has forgotten: it lists the last 10,000. Their database stores which erasures they have
    processed, so that those of a process that died count as well.
    """

    def __init__(self, memory: "MemoryStore", runs: RunStore | None, traces: TraceStore | None) -> None:
        self._memory = memory
        self._runs = runs
        self._traces = traces
        self._databases = [kept.database for kept in (runs, traces) if kept is not None]
        for database in self._databases:
            database.require(_ERASURES)

    def forget(self) -> None:
        """Forget such runs, unless that was done since the last erasure. Raises `StoreError`.

        A run that a process works on stays, and is forgotten when the memory and the runs are opened next.
        """
        erasures = self._memory.erasures()
        processed = self._processed_erasures()
        if erasures == "" or processed == {erasures}:
            return
        if self._traces is not None:
            self._traces.flush()  # else the end of a run might be written after the look at the traces, and stay
        gone = self._find_affected_runs()
        if gone:
            self._note(_UNFINISHED)
        if self._forget_all(gone, is_unfinished=_UNFINISHED in processed):
            self._note(erasures)

    def forget_at_last(self) -> None:
        """Forget such runs before tasks begin. A failure is logged and retried with the next task."""
        try:
            self.forget()
        except StoreError as error:
            logger.warning("runs may still hold items erased from the memory: %s", error)

    def _processed_erasures(self) -> set[str]:
        """Return the erasures that the databases have processed."""
        processed = set()
        for database in self._databases:
            with database.reading() as session:
                row = session.execute("SELECT heard FROM erasures WHERE memory = ?", (self._memory.engine.device,)).fetchone()
            processed.add("" if row is None else str(row[0]))
        return processed

    def _note(self, erasures: str) -> None:
        statement = "INSERT INTO erasures VALUES (?, ?) ON CONFLICT (memory) DO UPDATE SET heard = excluded.heard"
        for database in self._databases:
            with database.writing() as session:
                session.execute(statement, (self._memory.engine.device, erasures))

    def _find_affected_runs(self) -> list[str]:
        """Return the runs that recalled an item which the memory no longer has."""
        recalled: dict[str, set[ItemAddress]] = {}
        for run, records in self._records():
            recalled.setdefault(run, set()).update(address for record in records for address in recalled_in(record))
        gone = erased_of(self._memory, set().union(*recalled.values()))
        affected = [run for run, addresses in recalled.items() if addresses & gone]
        return affected if self._runs is None else [*with_later_turns(self._runs, affected)]

    def _records(self) -> Iterator[tuple[str, Iterator[Any]]]:
        if self._runs is not None:
            yield from run_records(self._runs)
        if self._traces is not None:
            yield from self._traces.records()

    def _forget_all(self, runs: list[str], *, is_unfinished: bool) -> bool:
        """Forget runs and overwrite their data. Return whether none is left.

        `is_unfinished`: other runs were forgotten before, and may not have been overwritten.
        """
        if not (runs or is_unfinished):
            return True
        is_all = True
        if self._runs is not None:
            try:
                self._runs.forget_all(runs)
            except RunBusy as error:
                logger.warning("runs that recalled erased items are not forgotten yet: %s", error)
                runs, is_all = [run for run in runs if not self._is_kept(run)], False
        if self._traces is not None:
            self._traces.forget_all(runs)
        for database in self._databases:
            database.rewrite()
        return is_all

    def _is_kept(self, run: str) -> bool:
        assert self._runs is not None, "the caller has looked"
        return run in self._runs.ids(run, limit=1)
