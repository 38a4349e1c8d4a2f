"""Tables in a Postgres database that the processes of several machines share."""

import os
import re
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ...protocols import ConfigError, InvalidRequest, NearfarError, StoreCorrupt, StoreUnavailable
from . import Rows, Tables, create_if_missing

if TYPE_CHECKING:
    import psycopg
    from psycopg import Connection as _Connection
    from psycopg_pool import ConnectionPool

    Connection = _Connection[tuple[Any, ...]]


_UNAVAILABLE: Final = {
    "25006": "this server takes no writes: connect to the primary one",
    "40001": "others write to the same tables; try again",
    "40P01": "others write to the same tables; try again",
    "53100": "free some disk space on the server; acknowledged writes are kept",
    "53200": "the server is out of memory; acknowledged writes are kept",
    "53300": "the server has no connection left: raise its max_connections, or let each process have fewer",
    "55P03": "another process is writing for very long; try again",
    "57014": "the statement took too long; try again",
}
"""Hints by SQLSTATE (https://www.postgresql.org/docs/current/errcodes-appendix.html)."""
_CORRUPT: Final = frozenset({"XX001", "XX002", "3F000", "42P01", "42703"})
"""Damaged data and indexes; a schema, table or column that is missing."""
_RESTORE: Final = "restore the database from a backup; data on other devices come back by sync"


_KEEPALIVE: Final = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "application_name": "nearfar"}
_IDLE_SECONDS: Final = 60
"""Seconds after which the server ends an idle transaction, so that a hanging process does not block the others."""
_POLL_SECONDS: Final = 0.05
_TABLES: Final = "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r' ORDER BY relname"
_STILL_SEEN: Final = """
SELECT count(*) FROM (
  SELECT unnest(ARRAY[backend_xmin, backend_xid]) AS oldest FROM pg_stat_activity
  WHERE datname = current_database() AND pid <> pg_backend_pid()
  UNION ALL SELECT xmin FROM pg_replication_slots
  UNION ALL SELECT transaction FROM pg_prepared_xacts WHERE database = current_database()
) AS sessions WHERE age(oldest) >= age(%s::xid)
"""
"""Counts the sessions that may still see rows of that transaction's time."""
_WORDS: Final = (
    ("INTEGER PRIMARY KEY AUTOINCREMENT", "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"),
    ("INTEGER", "bigint"),
    ("BLOB", "bytea"),
    ("REAL", "double precision"),
    (" WITHOUT ROWID", ""),
)
_PARTS: Final = "CREATE TABLE IF NOT EXISTS parts (part text PRIMARY KEY, version bigint NOT NULL)"
_CONNECTIONS: Final = 8
"""Connections of one process."""
_LOCK_TIMEOUT: Final = 10.0
_LONGEST: Final = 60.0


@contextmanager
def translate_errors(what: str, lock_timeout: float) -> Iterator[None]:
    """Raise psycopg's errors as nearfar's, naming the data `what`. Errors that show a defect of nearfar stay as they are."""
    import psycopg
    from psycopg_pool import PoolTimeout

    try:
        yield
    except PoolTimeout as error:
        hint = "check that the server is up and can be reached, and that other tasks do not hold all connections"
        raise StoreUnavailable(f"no connection to Postgres within {lock_timeout:g} s", hint=hint) from error
    except psycopg.Error as error:
        meaning = _meaning(error, what)
        if meaning is None:
            raise
        raise meaning from error


def _meaning(error: "psycopg.Error", what: str) -> NearfarError | None:
    import psycopg

    state = error.sqlstate or ""
    text = str(error).strip().partition("\n")[0]
    if state in _CORRUPT:
        return StoreCorrupt(f"the {what} in Postgres is damaged: {text}", hint=_RESTORE)
    if isinstance(error, psycopg.DataError):
        return InvalidRequest(f"Postgres cannot keep this: {text}", hint="texts may have no NUL in them")
    if state == "42501":
        return ConfigError(f"the user may not use the {what}: {text}", hint="connect as the user that created it, or grant the rights")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) or state in _UNAVAILABLE:
        return StoreUnavailable(f"Postgres cannot be used: {text}", hint=_UNAVAILABLE.get(state, "check that the server is up; try again"))
    return None


class PostgresConnections:
    """A bounded pool of connections in which each statement is a transaction of its own, unless one is begun.

    Args:
        what: name of the data in errors.
        schema: of the tables.
        most: connections.
        lock_timeout: seconds to wait for a connection or a lock.
        longest: seconds of a statement.
        settings: further settings of the server.
    """

    def __init__(
        self, address: str, *, what: str, schema: str, most: int, lock_timeout: float, longest: float, settings: Mapping[str, str]
    ) -> None:
        self._what = what
        self._lock_timeout = lock_timeout
        self._settings = {
            **settings,
            # Extensions are usually in one of the latter two.
            "search_path": f"{schema}, public, extensions",
            "lock_timeout": _milliseconds(lock_timeout),
            "statement_timeout": _milliseconds(longest),
            "idle_in_transaction_session_timeout": _milliseconds(_IDLE_SECONDS),
            # Compiling takes longer than any of these queries; a plan for one namespace is a bad one for another.
            "jit": "off",
            "plan_cache_mode": "force_custom_plan",
        }
        self._parameters = _parameters(address, lock_timeout, what)
        self._process = os.getpid()
        self._connect_once()
        self._pool = self._open_pool(most)

    @contextmanager
    def connection(self) -> Iterator["Connection"]:
        """Lend a connection of the pool to the block."""
        self._check()
        with translate_errors(self._what, self._lock_timeout), self._pool.connection() as connection:
            yield connection

    @contextmanager
    def alone(self) -> Iterator["Connection"]:
        """Open a connection outside of the pool, for work that may take long."""
        import psycopg

        self._check()
        with translate_errors(self._what, self._lock_timeout), psycopg.connect("", **self._parameters, autocommit=True) as connection:
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
            message = str(error).strip().partition("\n")[0]
            for secret in (str(value) for name, value in self._parameters.items() if "pass" in name and value):
                message = message.replace(secret, "***")
            hint = "check that the server is up, and its address, user and password"
            raise StoreUnavailable(f"cannot connect to Postgres: {message}", hint=hint) from None
        if encoding != "UTF8":
            raise ConfigError(f"the database is in {encoding}", hint="create it with ENCODING 'UTF8'")
        if version < 140000:
            raise ConfigError("the server is older than Postgres 14", hint="update the server")

    def _open_pool(self, most: int) -> "ConnectionPool[Connection]":
        from psycopg_pool import ConnectionPool

        return ConnectionPool(
            "",
            kwargs={**self._parameters, "autocommit": True},
            min_size=1,
            max_size=most,
            timeout=self._lock_timeout,
            reconnect_timeout=self._lock_timeout,  # later callers connect again, rather than wait for a late attempt
            configure=self._configure,
            check=_check,
            open=True,
            name="nearfar",
        )

    def _configure(self, connection: "Connection") -> None:
        calls = ", ".join("set_config(%s, %s, false)" for _ in self._settings)
        connection.execute(f"SELECT {calls}", [part for setting in self._settings.items() for part in setting])


def _parameters(address: str, lock_timeout: float, what: str) -> dict[str, Any]:
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
    return {"connect_timeout": max(2, round(lock_timeout)), **_KEEPALIVE, "client_encoding": "UTF8", **given}


def _check(connection: "Connection") -> None:
    from psycopg_pool import ConnectionPool

    if is_broken(connection):
        ConnectionPool.check_connection(connection)


def is_broken(connection: "Connection") -> bool:
    """Return whether a connection seems broken, without a round trip: an idle server sends nothing, unless it has gone or is about to."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


def scrub(connection: "Connection", schema: str, lock_timeout: float) -> None:
    """Rewrite the tables and their indexes without deleted rows: plain VACUUM leaves their bytes in place.

    Raises `StoreUnavailable` if another session still sees deleted rows, and does not end in `lock_timeout` seconds.
    """
    tables = [name for (name,) in connection.execute(_TABLES, [schema])]
    longest = connection.execute("SHOW statement_timeout").fetchone()
    connection.execute("SET statement_timeout = 0")
    try:
        _wait_for_others(connection, lock_timeout)
        _rewrite(connection, tables)
    finally:
        if not connection.closed:
            connection.execute("SELECT set_config('statement_timeout', %s, false)", longest)


def _rewrite(connection: "Connection", tables: Sequence[str]) -> None:
    from psycopg.errors import InsufficientPrivilege

    for table in tables:
        # ANALYZE replaces the planner's samples of the columns, too.
        connection.execute(f"VACUUM (FULL, ANALYZE) {table}")
    # Without the right to, these two come about by themselves, some time later.
    connection.execute("VACUUM (FULL) pg_statistic")
    with suppress(InsufficientPrivilege):
        connection.execute("CHECKPOINT")


def _wait_for_others(connection: "Connection", lock_timeout: float) -> None:
    deadline = time.monotonic() + lock_timeout
    now = connection.execute("SELECT pg_current_xact_id()::xid::text").fetchone()
    while connection.execute(_STILL_SEEN, now).fetchone() != (0,):
        if time.monotonic() > deadline:
            message = "deleted rows cannot be scrubbed: another session of the database still sees them"
            raise StoreUnavailable(message, hint="end long transactions, backups and unused replication slots, and erase again")
        time.sleep(_POLL_SECONDS)


_SCHEMA: Final = "nearfar_runs"


class PostgresDatabase:
    """A schema with the tables of all who `require` them. `what` names the data in errors.

    Raises `ConfigError` if the address makes no sense or psycopg is missing, and `StoreUnavailable` if the server is out of reach.
    """

    def __init__(self, address: str, *, what: str) -> None:
        self._connections = PostgresConnections(
            address, what=what, schema=_SCHEMA, most=_CONNECTIONS, lock_timeout=_LOCK_TIMEOUT, longest=_LONGEST, settings={}
        )
        with ExitStack() as failing:
            failing.callback(self._connections.close)
            with self.writing() as session:
                # Of several processes that come first, one makes the tables.
                session.execute("SELECT pg_advisory_xact_lock(hashtext('nearfar_runs'))")
                session.execute(f"CREATE SCHEMA IF NOT EXISTS {_SCHEMA}")
                session.execute(_PARTS)
            failing.pop_all()

    def require(self, tables: Tables) -> None:
        with self.writing() as session:
            session.execute("SELECT pg_advisory_xact_lock(hashtext('nearfar_runs'))")
            create_if_missing(session, tables, translate=_translate)

    def writing(self) -> AbstractContextManager["PostgresSession"]:
        return self._kept(self._connections.connection())

    @contextmanager
    def reading(self) -> Iterator["PostgresSession"]:
        with self._connections.connection() as connection, connection.transaction():
            yield PostgresSession(connection)

    def alone(self) -> AbstractContextManager["PostgresSession"]:
        return self._kept(self._connections.alone())

    def lasting(self) -> AbstractContextManager["Connection"]:
        """Lend a connection outside of transactions, for session locks and the like."""
        return self._connections.connection()

    def sync(self) -> None:
        """Do nothing: a commit is on the server's disk, unless its administrator has turned that off."""

    def scrub(self) -> None:
        """Do nothing: the log is the server's."""

    def rewrite(self) -> None:
        with self._connections.alone() as connection:
            scrub(connection, _SCHEMA, _LOCK_TIMEOUT)

    def close(self) -> None:
        self._connections.close()

    @contextmanager
    def _kept(self, connecting: AbstractContextManager["Connection"]) -> Iterator["PostgresSession"]:
        """Begin a transaction. If the connection breaks during the commit, the server is asked whether it took place."""
        number: str | None = None
        try:
            with connecting as connection, connection.transaction():
                yield PostgresSession(connection)
                row = connection.execute("SELECT pg_current_xact_id_if_assigned()::text").fetchone()
                number = None if row is None else row[0]
        except StoreUnavailable:
            if number is None or not self._was_kept(number):
                raise

    def _was_kept(self, number: str) -> bool:
        """Return whether the transaction of that number was committed; False if the server stays out of reach."""
        give_up_at = time.monotonic() + _LOCK_TIMEOUT
        while time.monotonic() < give_up_at:
            with suppress(StoreUnavailable), self.reading() as session:
                [(status,)] = session.execute("SELECT pg_xact_status(?::xid8)", (number,)).fetchall()
                if status != "in progress":
                    return bool(status == "committed")
            time.sleep(0.05)
        return False


class PostgresSession:
    """A connection that takes `?` for parameters."""

    def __init__(self, connection: "Connection") -> None:
        self.connection = connection
        """psycopg's connection."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Rows:
        return self.connection.execute(sql.replace("%", "%%").replace("?", "%s").encode(), parameters)


def _translate(statement: str) -> str:
    for ours, theirs in _WORDS:
        statement = re.sub(rf"\b{ours}\b" if not ours.startswith(" ") else ours, theirs, statement)
    return statement
