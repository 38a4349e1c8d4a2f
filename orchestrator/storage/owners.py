"""Tell which processes on this machine are alive, by locks that the kernel releases with their process: without clocks or timeouts."""

import contextlib
import json
import os
import shutil
import stat
import tempfile
import weakref
from pathlib import Path
from typing import Final
from uuid import uuid4

from ...protocols import StoreUnavailable
from ...protocols.address import is_readable_path
from ...protocols.system import CLOSED_ON_EXEC, file_locks, is_full
from .sqlite_files import make_private

_held: "Final[weakref.WeakSet[Owner]]" = weakref.WeakSet()


_PREFIX: Final = "nearfar-sockets-"
_SHORT: Final = "/tmp"
_LONGEST: Final = 60
"""Bytes of a parent folder under which a socket's path stays below the 100 that every system allows."""


class Owner:
    """This process, under a unique name in a folder that other processes look into. A closed or dead owner is not alive.

    Raises `StoreUnavailable` if the folder cannot be written, `ConfigError` on systems without file locks.
    """

    def __init__(self, folder: Path) -> None:
        locks = file_locks("telling which processes are alive")
        self.name = uuid4().hex
        self._folder = folder
        try:
            make_private(folder)
            # No other process can find the file before it is locked.
            unnamed = folder / f"{self.name}.new"
            self._file = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | CLOSED_ON_EXEC, 0o600)
            locks.flock(self._file, locks.LOCK_EX | locks.LOCK_NB)
            self._sign()
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

    def _sign(self) -> None:
        """Write the process into the file, for `describe`. On a full disk it stays empty: its lock is what counts."""
        try:
            os.write(self._file, json.dumps({"process": os.getpid()}).encode())
        except OSError as error:
            if not is_full(error):
                raise

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.owner"

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path(name).unlink()


def is_locked(file: Path) -> bool:
    """Return whether a live owner holds the file. Raises `StoreUnavailable` if it cannot be opened."""
    locks = file_locks("telling which processes are alive")
    try:
        opened = os.open(file, os.O_RDWR | CLOSED_ON_EXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        hint = "remove it: it is no file of a running process of yours"
        raise StoreUnavailable(f"{file} cannot be used: {error.strerror}", hint=hint) from error
    try:
        locks.flock(opened, locks.LOCK_SH | locks.LOCK_NB)
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


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_forked)


class SocketFolder:
    """A new folder among the system's temporary ones, for its owner alone.

    It lies in `/tmp` where the folder that `TMPDIR` names is too long for a socket's path, or gRPC would misread it.

    Raises `StoreUnavailable` where nothing can be written there.
    """

    def __init__(self) -> None:
        remove_abandoned()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_parent()))
        self._owner = Owner(self.path)

    def close(self) -> None:
        """Remove the folder."""
        self._owner.close()
        shutil.rmtree(self.path, ignore_errors=True)


def remove_abandoned() -> None:
    """Remove this user's folders whose process has died, however it died. There are none on Windows."""
    if not hasattr(os, "getuid"):
        return
    for folder in _parent().glob(f"{_PREFIX}*"):
        if _is_own_folder(folder) and (owners := list(folder.glob("*.owner"))) and not any(map(is_locked, owners)):
            shutil.rmtree(folder, ignore_errors=True)


def _parent() -> Path:
    """Return the temporary folder, or `/tmp` where no socket can be in that one."""
    usual = os.path.abspath(tempfile.gettempdir())
    return Path(usual if len(os.fsencode(usual)) <= _LONGEST and is_readable_path(usual) else _SHORT)


def _is_own_folder(path: Path) -> bool:
    """Return whether it is a folder of this user's, and no link to one: others may write there, too."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
