"""Tell which processes on this machine are alive, by locks that the kernel releases with their process: without clocks or timeouts."""

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
    """This process, under a unique name in a folder that other processes look into. A closed or dead owner is not alive.

    Raises `StoreUnavailable` if the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.name = uuid4().hex
        self._folder = folder
        try:
            make_private(folder)
            # No other process can find the file before it is locked.
            unnamed = folder / f"{self.name}.new"
            self._file = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(self._file, json.dumps({"process": os.getpid()}).encode())
            unnamed.rename(self._path(self.name))
        except OSError as error:
            raise StoreUnavailable(f"{folder} cannot be used: {error.strerror}", hint="check the disk and the permissions") from error
        _held.add(self)

    def is_alive(self, name: str) -> bool:
        """Return whether the owner of that name is alive. The file of a dead one is removed."""
        if name == self.name:
            return True
        if is_locked(self._path(name)):
            return True
        self._remove(name)
        return False

    def sweep(self) -> None:
        """Remove the files of dead owners."""
        for path in self._folder.glob("*.owner"):
            self.is_alive(path.stem)

    def describe(self, name: str) -> str:
        """Return the owner's process for a message to the user: `process 4711`."""
        try:
            return f"process {json.loads(self._path(name).read_bytes())['process']}"
        except (OSError, ValueError, KeyError):
            return "another process"

    def close(self) -> None:
        """Give up the name, and all that is owned under it."""
        if self in _held:
            _held.discard(self)
            self._remove(self.name)
            os.close(self._file)

    def let_go(self) -> None:
        """Close the lock file in a forked child, which would otherwise keep its parent's lock alive."""
        os.close(self._file)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.owner"

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path(name).unlink()


def is_locked(file: Path) -> bool:
    """Return whether a live owner holds the file."""
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
