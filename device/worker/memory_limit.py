"""A limit on the memory of this process while it deals with what a stranger wrote."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil


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
