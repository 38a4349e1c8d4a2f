"""Who of the processes on this machine is alive, by locks that the kernel releases with their process: no clock and no patience."""

import contextlib
import fcntl
import json
import os
import weakref
from pathlib import Path
from typing import Final
from uuid import uuid4

from ...protocols import StoreUnavailable
from ...protocols.folders import make_private

_held: "Final[weakref.WeakSet[Owner]]" = weakref.WeakSet()


class Owner:
    """This process, under a name of its own in a folder that others look into. Closed, or dead by whatever cause, it is not alive.

    Raises `StoreUnavailable` where the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.name = uuid4().hex
        self._folder = folder
        try:
            make_private(folder)
            # Nobody finds the file before it is locked.
            unnamed = folder / f"{self.name}.new"
            self._file = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(self._file, json.dumps({"process": os.getpid()}).encode())
            unnamed.rename(self._path(self.name))
        except OSError as error:
            raise StoreUnavailable(f"{folder} cannot be used: {error.strerror}", hint="look at the disk and the permissions") from error
        _held.add(self)

    def is_alive(self, name: str) -> bool:
        """Whether the owner of that name is. Its file is removed where it is not."""
        if name == self.name:
            return True
        if is_locked(self._path(name)):
            return True
        self._remove(name)
        return False

    def sweep(self) -> None:
        """Remove the files of those that are dead."""
        for path in self._folder.glob("*.owner"):
            self.is_alive(path.stem)

    def describe(self, name: str) -> str:
        """For a message to the user: `process 4711`."""
        try:
            return f"process {json.loads(self._path(name).read_bytes())['process']}"
        except (OSError, ValueError, KeyError):
            return "another process"

    def close(self) -> None:
        """Give up the name, and with it all that is owned under it."""
        if self in _held:
            _held.discard(self)
            self._remove(self.name)
            os.close(self._file)

    def let_go(self) -> None:
        """In a forked child, which would else keep the lock of its parent alive."""
        os.close(self._file)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.owner"

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path(name).unlink()


def is_locked(file: Path) -> bool:
    """Return whether an owner that lives holds the file."""
    try:
        opened = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(opened)


def _forked() -> None:
    for owner in list(_held):
        owner.let_go()
    _held.clear()


os.register_at_fork(after_in_child=_forked)
