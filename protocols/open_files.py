"""The limit of open files of this process, which bounds the connections of its servers and clients.

Systems allow 256 (macOS) or 1,024 (Linux) files by default, and usually far more on request.
"""

from contextlib import suppress
from typing import Final

from .limits import CALLS_UPSTREAM, CONNECTIONS

_WANTED: Final = 2 * CONNECTIONS
"""Files to ask for. macOS grants 10,240 and refuses more, even if its limit says "unlimited"."""
_WHERE_UNKNOWN: Final = 1024
"""Limit assumed on Windows, which has none."""
_SHARE_OF_CALLERS: Final = 2
_SHARE_OF_PROVIDER: Final = 4


def open_file_limit() -> int:
    """Return how many files this process may have open at once (`RLIMIT_NOFILE`)."""
    try:
        import resource
    except ModuleNotFoundError:
        return _WHERE_UNKNOWN
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _WANTED if soft == resource.RLIM_INFINITY else soft


def ask_for_open_files() -> None:
    """Raise the limit of this process and its children as far as a server needs and the system grants.

    Use it in programs that are servers and nothing else: `select.select` fails with file numbers above 1,024, so a library must not do
    this.
    """
    try:
        import resource
    except ModuleNotFoundError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if open_file_limit() < wanted:
        with suppress(OSError, ValueError):  # where the system refuses, the limit stays as it is
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections() -> int:
    """Return how many connections a server of this process takes: half of its files, `CONNECTIONS` at most."""
    return max(min(CONNECTIONS, open_file_limit() // _SHARE_OF_CALLERS), 1)


def most_calls_upstream() -> int:
    """Return how many calls of a provider this process has open at once: a quarter of its files, `CALLS_UPSTREAM` at most."""
    return max(min(CALLS_UPSTREAM, open_file_limit() // _SHARE_OF_PROVIDER), 1)
