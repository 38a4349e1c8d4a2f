"""Forgetting the runs and traces that recalled what was erased from the memory beside them, whoever erased it."""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from ...protocols import RunBusy, StoreError
from ...protocols.namespaces import ItemAddress
from ..memory.engine import MOST_FORGOTTEN
from ..memory.erasing import recalled_in
from ..memory.item import address_tag
from ..storage.tables import Tables
from ..tracing.store import TraceStore
from .erasing import run_records
from .store import RunStore

if TYPE_CHECKING:
    from ..memory.store import MemoryStore

logger = logging.getLogger(__name__)

_TABLES: Final = Tables("erasures", 1, "CREATE TABLE erasures (memory TEXT PRIMARY KEY, heard TEXT NOT NULL)")

_UNFINISHED: Final = "unfinished"
"""Stands for the erasures that a database has heard of, from the first run that is forgotten until all are overwritten."""


class ErasedRuns:
    """Forgets runs and traces when the memory has erased an item that they recalled, also one that another device or process erased.

    They are found by the items that the memory has forgotten, of which it tells the last 10,000. Their database notes the erasures that
    they have heard of, so that those of a process that died count as well.
    """

    def __init__(self, memory: "MemoryStore", runs: RunStore | None, traces: TraceStore | None) -> None:
        self._memory = memory
        self._runs = runs
        self._traces = traces
        self._databases = [kept.database for kept in (runs, traces) if kept is not None]
        for database in self._databases:
            database.require(_TABLES)

    def forget(self) -> None:
        """Forget them unless that was done since the last erasure. Raises `StoreError`.

        A run that somebody works on stays, and is forgotten by the next to open the memory and the runs.
        """
        erasures = self._memory.erasures()
        heard = self._heard()
        if erasures == "" or heard == {erasures}:
            return
        gone = self._without_their_items()
        if gone:
            self._note(_UNFINISHED)
        if self._are_forgotten(gone, is_unfinished=_UNFINISHED in heard):
            self._note(erasures)

    def forget_at_last(self) -> None:
        """The same when tasks begin: where it fails, they go on, and the next to begin tries again."""
        try:
            self.forget()
        except StoreError as error:
            logger.warning("runs may still hold what was erased from the memory: %s", error)

    def _heard(self) -> set[str]:
        """Return what the databases have heard of."""
        heard = set()
        for database in self._databases:
            with database.reading() as session:
                row = session.execute("SELECT heard FROM erasures WHERE memory = ?", (self._memory.engine.device,)).fetchone()
            heard.add("" if row is None else str(row[0]))
        return heard

    def _note(self, erasures: str) -> None:
        statement = "INSERT INTO erasures VALUES (?, ?) ON CONFLICT (memory) DO UPDATE SET heard = excluded.heard"
        for database in self._databases:
            with database.writing() as session:
                session.execute(statement, (self._memory.engine.device, erasures))

    def _without_their_items(self) -> list[str]:
        """The runs that recalled an item of which the memory has nothing any more."""
        recalled: dict[str, set[ItemAddress]] = {}
        for run, records in self._records():
            recalled.setdefault(run, set()).update(address for record in records for address in recalled_in(record))
        forgotten = {one.tag for one in self._memory.engine.forgotten(0, limit=MOST_FORGOTTEN)}
        lacking = {address for address in set().union(*recalled.values()) if address_tag(address) in forgotten}
        with self._memory.engine.transaction() as transaction:
            gone = lacking - transaction.heads(sorted(lacking)).keys()  # the rest was written anew
        return [run for run, addresses in recalled.items() if addresses & gone]

    def _records(self) -> Iterator[tuple[str, Iterator[Any]]]:
        if self._runs is not None:
            yield from run_records(self._runs)
        if self._traces is not None:
            yield from self._traces.records()

    def _are_forgotten(self, runs: list[str], *, is_unfinished: bool) -> bool:
        """Forget runs and overwrite them. `is_unfinished`: others were forgotten before, and may not have been overwritten."""
        if not (runs or is_unfinished):
            return True
        is_all = True
        if self._runs is not None:
            try:
                self._runs.forget_all(runs)
            except RunBusy as error:
                logger.warning("runs that recalled what was erased are not forgotten yet: %s", error)
                runs, is_all = [run for run in runs if not self._is_kept(run)], False
        if self._traces is not None:
            self._traces.forget_all(runs)
        for database in self._databases:
            database.rewrite()
        return is_all

    def _is_kept(self, run: str) -> bool:
        assert self._runs is not None, "the caller has looked"
        return run in self._runs.ids(run, limit=1)
