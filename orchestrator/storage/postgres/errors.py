"""Translate Postgres's errors into nearfar's."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ....protocols import ConfigError, InvalidRequest, NearfarError, StoreCorrupt, StoreUnavailable

if TYPE_CHECKING:
    import psycopg

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


@contextmanager
def translated(what: str, patience: float) -> Iterator[None]:
    """Raise psycopg's errors as nearfar's, naming the data `what`. Errors that show a defect of nearfar stay as they are."""
    import psycopg
    from psycopg_pool import PoolTimeout

    try:
        yield
    except PoolTimeout as error:
        hint = "check that the server is up and can be reached, and that other tasks do not hold all connections"
        raise StoreUnavailable(f"no connection to Postgres within {patience:g} s", hint=hint) from error
    except psycopg.Error as error:
        meaning = _meaning(error, what)
        if meaning is None:
            raise
        raise meaning from error


def refused(message: str) -> StoreUnavailable:
    """Return the error for a server that cannot be reached, or refuses the connection."""
    return StoreUnavailable(
        f"cannot connect to Postgres: {message}", hint="check that the server is up, and its address, user and password"
    )


def without_secrets(message: str, parameters: Mapping[str, Any]) -> str:
    """Return the first line of a driver's message, without any password."""
    secrets = [str(value) for name, value in parameters.items() if "pass" in name and value]
    line = message.strip().partition("\n")[0]
    for secret in secrets:
        line = line.replace(secret, "***")
    return line


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
