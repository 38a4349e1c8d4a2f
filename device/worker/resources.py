"""The CPU threads of a worker process, and a limit on its memory while it reads untrusted content."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import psutil

from ..hardware.processors import usable_cores

_SMALL_MODEL: Final = 20_000_000
"""Parameters below which one token is less work than waking a second thread."""


@dataclass(frozen=True, slots=True)
class Threads:
    """CPU threads of a pass. Reading the weights for one token is bound by memory, computing several by the cores."""

    single: int
    batch: int
    """At most so many for several tokens, and no fewer than `single`, whichever is faster."""


def threads_for(parameters: int) -> Threads:
    """Return the threads for a model of so many weights."""
    if parameters < _SMALL_MODEL:
        return Threads(1, 1)
    usable = usable_cores()
    return Threads(max(usable // 2, 1), max(min(psutil.cpu_count(logical=False) or 1, usable), 1))


@contextmanager
def limited_memory(more: int) -> Iterator[None]:
    """Let the process take at most `more` bytes of address space beyond what it has until the block ends.

    A damaged file can ask for any amount, and Linux would grant it until it ends some other process. Beyond the limit, Python raises
    `MemoryError`, and a library does what it does where there is no memory. Some systems, such as macOS, keep no such limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    _set(psutil.Process().memory_info().vms + more, hard)
    try:
        yield
    finally:
        _set(soft, hard)


def _set(soft: int, hard: int) -> None:
    with suppress(ValueError, OSError):  # Some systems have no such limit, and a limit cannot be raised beyond one that is set already.
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
