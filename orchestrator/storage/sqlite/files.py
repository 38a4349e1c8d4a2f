"""The files of a database: for their owner alone, and where they are said to be."""

import contextlib
import os
import stat
import threading
from pathlib import Path
from typing import Final

from ....protocols import StoreUnavailable
from ....protocols.folders import make_private
from .errors import Naming

LOG: Final = "-wal"
LOG_INDEX: Final = "-shm"
SUFFIXES: Final = ("", LOG, LOG_INDEX)
"""Of the database, its write-ahead log, and the index of that, which SQLite gives the database's permissions."""
_OWNER_ONLY: Final = 0o600
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO

_creating: Final = threading.Lock()


def prepare(path: str, naming: Naming) -> None:
    """Make the file where it is missing, and take others' permissions from it.

    Raises `StoreUnavailable` where the file cannot be opened or a link stands in its place, and `StoreCorrupt` where its log was removed.
    """
    if "\0" in path:
        raise StoreUnavailable(f"the {naming.what} cannot be at {path!r}", hint="a path has no zero character")
    try:
        make_private(Path(path).parent)
        for suffix in SUFFIXES:
            _refuse_other_than_files(path + suffix, naming)
        if _log_was_removed(path):
            raise naming.damaged(f"{path}{LOG}, with the last writes, was removed")
        _create(path)
        if stat.S_IMODE(os.stat(path).st_mode) & _OTHERS:
            os.chmod(path, _OWNER_ONLY)
    except OSError as error:
        message = f"the {naming.what} {path} cannot be opened: {error.strerror}"
        raise StoreUnavailable(message, hint="look at the folder's permissions") from error


def _create(path: str) -> None:
    # A process that closes a file gives up all locks that it has on it, SQLite's among them: nobody may use it before it is closed here.
    with _creating, contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ONLY))


def size(path: str) -> int:
    """Bytes that all files of the database take."""
    return sum(os.path.getsize(path + suffix) for suffix in SUFFIXES if os.path.exists(path + suffix))


def _refuse_other_than_files(path: str, naming: Naming) -> None:
    try:
        mode = os.lstat(path).st_mode  # one look: another process may remove the file between two
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise StoreUnavailable(f"{path} is a symbolic link", hint="name the file itself: what stands behind a link may change")
    if not stat.S_ISREG(mode):
        raise StoreUnavailable(f"{path} is no file", hint=f"name a file for the {naming.what}")


def _log_was_removed(path: str) -> bool:
    """Find out whether there is an index without its log, also while other processes open and close the database.

    The first to open it makes the log before the index, and the last to close it removes the index before the log. So an index that is
    there between two looks at a missing log has none, unless somebody opened and closed the database in between.
    """
    return not os.path.exists(path + LOG) and os.path.exists(path + LOG_INDEX) and not os.path.exists(path + LOG)
