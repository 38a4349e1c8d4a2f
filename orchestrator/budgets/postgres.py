"""Which processes live, of all that share a Postgres database: each holds a lock of the server's, which ends with its connection."""

import secrets
import select
from contextlib import ExitStack
from threading import Lock
from typing import TYPE_CHECKING

from ..storage.postgres.database import PostgresDatabase

if TYPE_CHECKING:
    from ..storage.postgres.connections import Connection


class ServerOwner:
    """This process, by an advisory lock. Where the connection breaks, it goes on under another name, and what it had reserved counts.

    Raises `StoreUnavailable` where the server cannot be reached.
    """

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._lock = Lock()
        self._holding = ExitStack()
        self._held: tuple[str, Connection] | None = None

    @property
    def name(self) -> str:
        with self._lock:
            if self._held is None or _is_broken(self._held[1]):
                self._holding.close()
                connection = self._holding.enter_context(self._database.lasting())
                key = secrets.randbits(62)
                connection.execute("SELECT pg_advisory_lock(%s)", [key])
                self._held = (str(key), connection)
            return self._held[0]

    def is_alive(self, name: str) -> bool:
        """Return whether a process holds the lock of that name."""
        with self._database.writing() as session:
            (is_free,) = session.execute("SELECT pg_try_advisory_xact_lock(?)", (int(name),)).fetchone()
        return not is_free

    def close(self) -> None:
        with self._lock:
            if self._held is not None and not _is_broken(self._held[1]):
                self._held[1].execute("SELECT pg_advisory_unlock_all()")
            self._held = None
            self._holding.close()


def _is_broken(connection: "Connection") -> bool:
    """Return whether the connection is broken: an idle server sends nothing, unless it has gone."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))
