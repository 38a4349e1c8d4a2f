"""Owners of runs: processes of one machine are known by a kernel lock, those of several by heartbeats in the database."""

import threading
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol
from uuid import uuid4

from ...protocols import RunBusy, StoreError
from ..storage.owners import Owner
from ..storage.tables import DatabaseSession, TableDatabase, Tables
from .run import Lease


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
