"""Running code of others such that it reaches no network, whatever it tries."""

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
    """Something that was to stay on this device tried to reach a network, or to start what could."""


@contextmanager
def without_network() -> Iterator[None]:
    """Within, this thread opens no connection, looks up no name and starts no process: what tries raises `NetworkRefused`.

    It holds for what goes through Python's own modules in this thread: not in threads that it starts, nor for machine code
    that calls the system.
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
    """Once per process, and only in those that need it: such a hook cannot be taken away again."""
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _REFUSED and getattr(_this_thread, "is_offline", False):
        raise NetworkRefused(event)
