"""A ledger over a real database, and processes that own its run one after another."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from nearfar.orchestrator.effects.ledger import EffectLedger
from nearfar.orchestrator.effects.occurrences import Occurrences
from nearfar.orchestrator.effects.records import TABLES, EffectRecords
from nearfar.orchestrator.sqlite.database import Database
from nearfar.orchestrator.sqlite.errors import Naming
from nearfar.orchestrator.tables import Session
from nearfar.orchestrator.threads import in_thread
from nearfar.orchestrator.tool_calls import Approver
from nearfar.orchestrator.tools import Tool
from nearfar.protocols import ToolCall, ToolResult, Unavailable

T = TypeVar("T")
NAMING = Naming(what="file of runs", recovery="remove it")


class Run:
    """One run in a file; each `owner` takes it over from the one before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.epoch = 0

    @contextmanager
    def owner(self, approver: Approver | None = None) -> Iterator[EffectLedger]:
        """The ledger of a new owner. What it opens is closed in the end, and nothing else: an intent that is there stays."""
        self.epoch += 1
        with closing(Database(self._path, NAMING)) as database:
            database.require(TABLES)
            fence = Fence(self, self.epoch)
            yield EffectLedger(EffectRecords(database, "run-1", epoch=self.epoch, fence=fence), DirectWriter(database), approver=approver)


class DirectWriter:
    """A transaction for each change."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def write(self, change: Callable[[Session], T]) -> T:
        return await in_thread(self._write, change)

    def _write(self, change: Callable[[Session], T]) -> T:
        with self._database.writing() as session:
            return change(session)


class Fence:
    """Lets only the last owner write."""

    def __init__(self, run: Run, epoch: int) -> None:
        self._run = run
        self._epoch = epoch

    def __call__(self, session: Session) -> None:
        if self._epoch != self._run.epoch:
            raise Unavailable("the run belongs to somebody else")


async def made(ledger: EffectLedger, tool: Tool, *, turn: int = 0, times: int = 1, **arguments: object) -> ToolResult:
    """The result of the last of so many equal calls that a conversation makes."""
    before = Occurrences({}, turn=turn)
    calls = [ToolCall.model_validate({"id": f"{turn}-{number}", "name": tool.name, "arguments": arguments}) for number in range(times)]
    return [await ledger.run(call, tool, before.next(call, tool)) for call in calls][-1]
