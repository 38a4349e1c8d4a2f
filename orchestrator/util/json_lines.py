"""Files of JSON lines that several processes append to, each line at once and under a lock."""

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO


def append_line(path: Path, line: bytes) -> None:
    """Append a line, whose newline is added. What a process left unfinished that died while it wrote is removed.

    Raises `OSError`, and changes nothing, where the file ends with something else than a line of JSON: it is somebody else's.
    A new file is for its owner alone: there may be words of tasks in it.
    """
    with os.fdopen(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _cut_torn_line(file)
        file.write(line + b"\n")


def drop_lines(path: Path, goes: Callable[[bytes], bool]) -> None:
    """Remove lines, in place and under the lock of those who append. Raises `OSError`."""
    with path.open("rb+", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        before = file.read()
        kept = b"".join(line + b"\n" for line in whole_lines(before) if line and not goes(line))
        file.seek(0)
        file.write(kept + bytes(len(before) - len(kept)))  # what goes is overwritten before the file is cut
        os.fsync(file.fileno())
        file.truncate(len(kept))


def read_lines(path: Path) -> list[bytes]:
    """Return the whole lines of a file. A pipe is not waited for. Raises `OSError`."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        return whole_lines(file.read() or b"")


def whole_lines(data: bytes) -> list[bytes]:
    """The lines of a file; a last one without its newline was cut off while it was written, and is left out."""
    return data[: data.rfind(b"\n") + 1].split(b"\n")


def _cut_torn_line(file: IO[bytes]) -> None:
    if file.seek(0, os.SEEK_END) == 0:
        return
    file.seek(-1, os.SEEK_END)
    if file.read() != b"\n":
        file.seek(0)
        data = file.read()
        whole = data.rfind(b"\n") + 1
        if data[whole : whole + 1] not in (b"{", b"\0"):  # a power cut may leave zeros
            raise OSError(errno.EINVAL, "it ends with something else than a line of JSON")
        file.truncate(whole)
