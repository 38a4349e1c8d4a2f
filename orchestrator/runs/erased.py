"""Forget the runs and traces that recalled items which were later erased from the memory."""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from ...protocols import RunBusy, StoreError
from ...protocols.namespaces import ItemAddress
from ..memory.engine import MOST_FORGOTTEN
from ..memory.erasing import recalled_in
from ..memory.operation import address_tag
from ..storage.tables import Tables
from ..tracing.store import TraceStore
from .erasing import run_records
from .store import RunStore

if TYPE_CHECKING:
    from ..memory.store import MemoryStore

logger = logging.getLogger(__name__)

_TABLES: Final = Tables("erasures", 1, "CREATE TABLE erasures (memory TEXT PRIMARY KEY, heard TEXT NOT NULL)")

_UNFINISHED: Final = "unfinished"
"""Stands in the place of a memory's erasures while runs are being forgotten and files overwritten."""


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
            database.require(_TABLES)

    def forget(self) -> None:
        """Forget such runs, unless that was done since the last erasure. Raises `StoreError`.

        A run that a process works on stays, and is forgotten when the memory and the runs are opened next.
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
        """Forget such runs before tasks begin. A failure is logged and retried with the next task."""
        try:
            self.forget()
        except StoreError as error:
            logger.warning("runs may still hold items erased from the memory: %s", error)

    def _heard(self) -> set[str]:
        """Return the erasures that the databases have processed."""
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
        """Return the runs that recalled an item which the memory no longer has."""
        recalled: dict[str, set[ItemAddress]] = {}
        for run, records in self._records():
            recalled.setdefault(run, set()).update(address for record in records for address in recalled_in(record))
        forgotten = {one.tag for one in self._memory.engine.forgotten(0, limit=MOST_FORGOTTEN)}
        lacking = {address for address in set().union(*recalled.values()) if address_tag(address) in forgotten}
        with self._memory.engine.transaction() as transaction:
            gone = lacking - transaction.heads(sorted(lacking)).keys()  # the others were written again
        return [run for run, addresses in recalled.items() if addresses & gone]

    def _records(self) -> Iterator[tuple[str, Iterator[Any]]]:
        if self._runs is not None:
            yield from run_records(self._runs)
        if self._traces is not None:
            yield from self._traces.records()

    def _are_forgotten(self, runs: list[str], *, is_unfinished: bool) -> bool:
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
