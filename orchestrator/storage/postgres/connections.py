"""Connections to the server: few, shared, checked before use, and with a timeout for each wait."""

import os
import select
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ....protocols import ConfigError, StoreUnavailable
from .errors import refused, translated, without_secrets

if TYPE_CHECKING:
    from psycopg import Connection as _Connection
    from psycopg_pool import ConnectionPool

    Connection = _Connection[tuple[Any, ...]]

_KEEPALIVE: Final = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "application_name": "nearfar"}
_IDLE_SECONDS: Final = 60
"""Seconds after which the server ends an idle transaction, so that a hanging process does not block the others."""


class Connections:
    """A bounded pool of connections in which each statement is a transaction of its own, unless one is begun.

    Args:
        what: name of the data in errors.
        schema: of the tables.
        most: connections.
        patience: seconds to wait for a connection or a lock.
        longest: seconds of a statement.
        settings: further settings of the server.
    """

    def __init__(
        self, address: str, *, what: str, schema: str, most: int, patience: float, longest: float, settings: Mapping[str, str]
    ) -> None:
        self._what = what
        self._patience = patience
        self._settings = {
            **settings,
            # Extensions are usually in one of the latter two.
            "search_path": f"{schema}, public, extensions",
            "lock_timeout": _milliseconds(patience),
            "statement_timeout": _milliseconds(longest),
            "idle_in_transaction_session_timeout": _milliseconds(_IDLE_SECONDS),
            # Compiling takes longer than any of these queries; a plan for one namespace is a bad one for another.
            "jit": "off",
            "plan_cache_mode": "force_custom_plan",
        }
        self._parameters = _parameters(address, patience, what)
        self._most = most
        self._process = os.getpid()
        self._connect_once()
        self._pool = self._opened()

    @contextmanager
    def connection(self) -> Iterator["Connection"]:
        """Lend a connection of the pool to the block."""
        self._check()
        with translated(self._what, self._patience), self._pool.connection() as connection:
            yield connection

    @contextmanager
    def alone(self) -> Iterator["Connection"]:
        """Open a connection outside of the pool, for work that may take long."""
        import psycopg

        self._check()
        with translated(self._what, self._patience), psycopg.connect("", **self._parameters, autocommit=True) as connection:
            self._configure(connection)
            yield connection

    def close(self) -> None:
        if os.getpid() == self._process:
            self._pool.close()

    def _check(self) -> None:
        if os.getpid() != self._process:
            message = f"the {self._what} was opened before this process was forked"
            raise StoreUnavailable(message, hint="open it in the process that uses it")

    def _connect_once(self) -> None:
        """Connect once, to raise errors of the address: a pool would retry silently."""
        import psycopg

        try:
            with psycopg.connect("", **self._parameters) as connection:
                encoding, version = connection.info.parameter_status("server_encoding"), connection.info.server_version
        except psycopg.OperationalError as error:
            raise refused(without_secrets(str(error), self._parameters)) from None
        if encoding != "UTF8":
            raise ConfigError(f"the database is in {encoding}", hint="create it with ENCODING 'UTF8'")
        if version < 140000:
            raise ConfigError("the server is older than Postgres 14", hint="update the server")

    def _opened(self) -> "ConnectionPool[Connection]":
        from psycopg_pool import ConnectionPool

        pool = ConnectionPool(
            "",
            kwargs={**self._parameters, "autocommit": True},
            min_size=1,
            max_size=self._most,
            timeout=self._patience,
            reconnect_timeout=self._patience,  # later callers connect again, rather than wait for a late attempt
            configure=self._configure,
            check=_check,
            open=False,
            name="nearfar",
        )
        pool.open()
        return pool

    def _configure(self, connection: "Connection") -> None:
        calls = ", ".join("set_config(%s, %s, false)" for _ in self._settings)
        connection.execute(f"SELECT {calls}", [part for setting in self._settings.items() for part in setting])


def _parameters(address: str, patience: float, what: str) -> dict[str, Any]:
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        import_module("psycopg_pool")
    except ImportError as error:
        raise ConfigError(f"the {what} in Postgres needs psycopg", hint="pip install 'nearfar[postgres]'") from error
    hint = "postgresql://user:password@host:port/database, with special characters in the password percent-encoded"
    try:
        given = conninfo_to_dict(address)
    except psycopg.ProgrammingError:
        # Its message quotes the address, in which there may be a password.
        raise ConfigError("the address of the Postgres database cannot be read", hint=hint) from None
    if "@" in str(given.get("host", "")):
        raise ConfigError("the address of the Postgres database has one @ too many", hint=hint)
    return {"connect_timeout": max(2, round(patience)), **_KEEPALIVE, "client_encoding": "UTF8", **given}


def _check(connection: "Connection") -> None:
    """Check a connection without a round trip: an idle server sends nothing, unless it has gone or is about to."""
    from psycopg_pool import ConnectionPool

    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    if poll.poll(0):
        ConnectionPool.check_connection(connection)


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))
