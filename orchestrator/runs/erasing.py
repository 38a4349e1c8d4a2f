"""Find the runs and traces that hold something of erased items, and forget them so that no file has any of it."""

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..memory.erasing import Erased, record_of
from ..storage.sqlite import SqliteDatabase
from ..storage.sqlite_files import Naming
from ..storage.tables import Session
from ..task.stores import RunsConfig
from .opening import address_of, open_store
from .store import FILE, RunStore

_TRACES: Final = "traces.db"
_FILES: Final = (FILE, _TRACES, "privacy.db", "budgets.db")
_NAMING: Final = Naming("run store", recovery="check the disk")
_TEXTS: Final = (
    "SELECT title FROM runs WHERE run = ?",
    "SELECT user_name FROM runs WHERE run = ?",
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


def holding(config: RunsConfig, erased: Erased) -> Holding:
    """Search all records of runs for erased items. Raises `StoreUnavailable` and `StoreCorrupt`."""
    runs: Sequence[str] = ()
    traces: Sequence[str] = ()
    if _is_kept(config, FILE):
        with closing(open_store(config)) as store:
            runs = runs_holding(store, erased)
    if _is_kept(config, _TRACES):
        from ..tracing.store import open_traces

        with closing(open_traces(config)) as kept:
            traces = kept.holding(erased)
    return Holding(tuple(runs), tuple(traces))


def runs_holding(store: RunStore, erased: Erased) -> list[str]:
    """Return the runs of a store that hold a part of erased items: in the task, a step, an effect or the outcome."""
    return [run for run, records in run_records(store) if any(map(erased.is_in, records))]


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
        from ..tracing.store import erase_traces

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


def _records(store: RunStore, session: Session, run: str) -> Iterator[Any]:
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
