"""Owners of runs: who may write to one, and the watch for a wish that it be cancelled."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import uuid4

from ...protocols import ApprovalRequest, Cancelled, RunBusy, StoreError
from ...protocols.steps import Value
from ..storage import DatabaseSession, TableDatabase, Tables
from ..storage.owners import Owner
from ..task.results import Attempt, Result
from ..util.runtime import in_thread
from . import Lease, Run, RunFailure, parse_record
from .ledger import pending_requests

if TYPE_CHECKING:
    from .store import RunStore


def check_lease(session: DatabaseSession, lease: Lease, *, steps: int = 0) -> bool:
    """Check the lease and lock it for the whole transaction; add to the run's steps. Return whether the run is to be cancelled.

    Raises `RunBusy` if another process has taken the run over.
    """
    statement = "UPDATE runs SET steps = steps + ? WHERE run = ? AND epoch = ? AND owner IS NOT NULL RETURNING is_cancelled"
    found = session.execute(statement, (steps, lease.run, lease.epoch)).fetchone()
    if found is None:
        raise RunBusy(f"run {lease.run} was taken over by another process", hint="this one writes nothing more into it")
    return bool(found[0])


BEAT_SECONDS: Final = 3.0
DEAD_SECONDS: Final = 15.0
"""Seconds without a heartbeat, by the database's clock, after which other processes may take over an owner's runs."""

_OWNERS: Final = Tables(
    "owners", 1, "CREATE TABLE owners (owner text PRIMARY KEY, name text NOT NULL, beat timestamptz NOT NULL DEFAULT clock_timestamp());\n"
)


class Owners(Protocol):
    """This process, and the others that work on runs."""

    name: str

    @property
    def lock(self) -> str:
        """Suffix of a query that locks the rows which it is about to change."""
        ...

    def is_alive(self, session: DatabaseSession, owner: str) -> bool: ...
    def describe(self, session: DatabaseSession, owner: str) -> str: ...
    def close(self) -> None: ...


class LocalOwners:
    """Processes of one machine."""

    lock: Final = ""  # SQLite lets only one write

    def __init__(self, folder: Path) -> None:
        self._owner = Owner(folder)
        self._owner.sweep()
        self.name = self._owner.name

    def is_alive(self, session: DatabaseSession, owner: str) -> bool:
        return self._owner.is_alive(owner)

    def describe(self, session: DatabaseSession, owner: str) -> str:
        return self._owner.describe(owner)

    def close(self) -> None:
        self._owner.close()


class SharedOwners:
    """Processes of several machines, which send heartbeats to the database."""

    lock: Final = " FOR UPDATE SKIP LOCKED"

    def __init__(
        self, database: TableDatabase, description: str, *, beat_seconds: float = BEAT_SECONDS, dead_seconds: float = DEAD_SECONDS
    ) -> None:
        self.name = uuid4().hex
        self._database = database
        self._beat_seconds = beat_seconds
        self._dead_seconds = dead_seconds
        self._ended = threading.Event()
        database.require(_OWNERS)
        with database.writing() as session:
            session.execute("DELETE FROM owners WHERE beat < clock_timestamp() - interval '1 day'")
            session.execute("INSERT INTO owners (owner, name) VALUES (?, ?)", (self.name, description))
        self._thread = threading.Thread(target=self._beat, name="nearfar-heartbeat", daemon=True)
        self._thread.start()

    def is_alive(self, session: DatabaseSession, owner: str) -> bool:
        query = "SELECT beat > clock_timestamp() - make_interval(secs => ?) FROM owners WHERE owner = ?"
        found = session.execute(query, (self._dead_seconds, owner)).fetchone()
        return found is not None and bool(found[0])

    def describe(self, session: DatabaseSession, owner: str) -> str:
        found = session.execute("SELECT name FROM owners WHERE owner = ?", (owner,)).fetchone()
        return "another process" if found is None else str(found[0])

    def stop(self) -> None:
        """Send no more heartbeats, as if this process hung."""
        self._ended.set()
        self._thread.join()

    def close(self) -> None:
        self.stop()
        # Where the server is away, this process is soon taken for dead.
        with suppress(StoreError), self._database.writing() as session:
            session.execute("DELETE FROM owners WHERE owner = ?", (self.name,))

    def _beat(self) -> None:
        while not self._ended.wait(self._beat_seconds):
            try:
                with self._database.writing() as session:
                    session.execute("UPDATE owners SET beat = clock_timestamp() WHERE owner = ?", (self.name,))
            except StoreError:
                continue  # The server may come back in time. If not, others take over, and later writes of this process raise `RunBusy`.


_NEXT: Final = "branch:to:"
"""LangGraph's prefix for the channel that starts a node."""


class RunDetails(Value):
    """Details of one run."""

    run: Run
    prompt: str
    tools: tuple[str, ...]
    agents: tuple[str, ...]
    next: tuple[str, ...] = ()
    """Nodes that a resumed run starts with; none if it has ended, or has not begun."""
    attempts: tuple[Attempt, ...] = ()
    calls: int = 0
    """Number of calls of agents."""
    waits_for: tuple[ApprovalRequest, ...] = ()
    answer: str | None = None
    failure: RunFailure | None = None


def read_details(store: "RunStore", run: str, *, user: str | None = None) -> RunDetails:
    """Return the details of a run.

    Raises `NotFound` if the user has no such run, `StoreCorrupt` if its record is damaged.
    """
    run_line = store.show(run, user=user)
    kept = store.task(run)
    prompts = [message.text for message in kept.task.messages if message.role == "user"]
    outcome = store.outcome(run)
    shown = RunDetails(
        run=run_line, prompt=prompts[-1], tools=kept.tools, agents=kept.agents, waits_for=pending_requests(store.database, run)
    )
    if isinstance(outcome, str):
        result = parse_record(Result, run, outcome)
        return shown.model_copy(update={"attempts": result.attempts, "calls": len(result.calls), "answer": result.text})
    found = store.checkpointer.get_tuple({"configurable": {"thread_id": run}})
    state = {} if found is None else found.checkpoint["channel_values"]
    return shown.model_copy(update={**_fields_of_state(state), "failure": outcome})


def _fields_of_state(state: Mapping[str, Any]) -> Mapping[str, object]:
    attempts: Iterable[Any] = [*state.get("attempts", ()), *([state["draft"]] if state.get("draft") else [])]
    return {
        "attempts": tuple(Attempt.model_validate(attempt) for attempt in attempts),
        "calls": len(state.get("calls", ())),
        "next": tuple(sorted(channel.removeprefix(_NEXT) for channel in state if channel.startswith(_NEXT))),
    }


logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
"""Seconds between two looks at the store, for all runs of the process at once."""


class CancellationWatch:
    """Cancels what agents are saying as soon as it notices a request, but never a running tool, whose outcome would be unknown."""

    def __init__(self, store: "RunStore") -> None:
        self._store = store
        self._under_way: dict[str, tuple[asyncio.Task[object], Callable[[], bool]]] = {}
        self._cut_off: set[str] = set()
        self._looking: asyncio.Task[None] | None = None

    @contextmanager
    def cancel_on_request(self, run: str, is_in_tool: Callable[[], bool]) -> Iterator[None]:
        """Raise `Cancelled` within the block once the run's cancellation is requested, unless one of its tools is at work."""
        task = asyncio.current_task()
        assert task is not None, "it is awaited"
        self._under_way[run] = task, is_in_tool
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            yield
        except asyncio.CancelledError:
            if run not in self._cut_off:
                raise
            task.uncancel()
            raise Cancelled(f"run {run} was cancelled") from None
        finally:
            del self._under_way[run]
            self._cut_off.discard(run)
            if not self._under_way:
                self._looking.cancel()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                asked = await in_thread(self._store.to_be_cancelled)
            except StoreError as error:  # a run hears of it behind its step in any case
                logger.warning("requests to cancel runs could not be read: %s", error)
                continue
            for run in self._under_way.keys() & asked - self._cut_off:
                task, is_in_tool = self._under_way[run]
                if not is_in_tool():
                    self._cut_off.add(run)
                    task.cancel()
