"""Run third-party code without access to a network."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

_REFUSED: Final = frozenset(
    {
        *("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"),
        *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty"),
    }
)
"""Audit events of Python (PEP 578): what reaches a network, and what starts a process that could."""
_this_thread: Final = threading.local()


class NetworkRefused(RuntimeError):
    """Raised when code that has to stay offline tries to reach a network, or to start a process that could."""


@contextmanager
def without_network() -> Iterator[None]:
    """Let this thread open no connection, look up no name and start no process within the block: attempts raise `NetworkRefused`.

    It covers what goes through Python's own modules in this thread, not threads that it starts, nor machine code that calls the system.
    """
    _watch()
    before = getattr(_this_thread, "is_offline", False)
    _this_thread.is_offline = True
    try:
        yield
    finally:
        _this_thread.is_offline = before


@cache
def _watch() -> None:
    """Install the audit hook, once per process and only if needed: it cannot be removed."""
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _REFUSED and getattr(_this_thread, "is_offline", False):
        raise NetworkRefused(event)
