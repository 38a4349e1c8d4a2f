"""Which processes live: each holds a lock of the operating system, which ends with the process however that ends, and with no clock."""

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Final
from uuid import uuid4
from weakref import WeakSet

from ...protocols import StoreUnavailable

_OWNER_ONLY: Final = 0o600


class Owners:
    """The files in a folder, one for each process that has reserved something, locked for as long as it lives.

    Raises `StoreUnavailable` where the folder cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()
        self._own: tuple[str, int] | None = None
        """Name and descriptor of this process's file."""
        _all.add(self)

    def own(self) -> str:
        """The name of this process, which is locked from now on."""
        with self._lock, self._translated():
            while self._own is None:
                self._own = self._begun(uuid4().hex)
            return self._own[0]

    def dead(self, names: Iterable[str]) -> Iterator[str]:
        """Those of the names, and of the files, whose processes have ended. A file is locked by us while it is looked at, and removed."""
        with self._translated():
            files = set(os.listdir(self._folder)) if self._folder.is_dir() else set()
        yield from sorted(set(names) - files)
        for name in sorted(files):
            with self._translated():
                descriptor = self._taken(name)
            if descriptor is None:
                continue
            try:
                yield name
                with self._translated(), suppress(FileNotFoundError):
                    os.unlink(self._folder / name)
            finally:
                os.close(descriptor)

    def close(self) -> None:
        """This process has ended as far as others are concerned."""
        with self._lock, self._translated():
            if self._own is not None:
                (self._folder / self._own[0]).unlink(missing_ok=True)
            self.leave()

    def leave(self) -> None:
        """Give up the lock, or this process's part in it, without a look at anything that another thread may hold."""
        own, self._own, self._lock = self._own, None, Lock()
        if own is not None:
            os.close(own[1])

    def _begun(self, name: str) -> tuple[str, int] | None:
        """The file made and locked; None where somebody has taken it for a dead one's in between."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / name
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ONLY)
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                return name, descriptor
        os.close(descriptor)
        return None

    def _taken(self, name: str) -> int | None:
        """The file of a process that has ended, locked by us; None where it lives, or somebody else has it."""
        try:
            descriptor = os.open(self._folder / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            message = f"the locks of budgets in {self._folder} cannot be used: {error.strerror}"
            raise StoreUnavailable(message, hint="look at the folder's permissions, and whether its disk is full") from error


_all: Final[WeakSet[Owners]] = WeakSet()


def _leave_to_parent() -> None:
    """A process that was forked shares the lock of its parent, which would hold on after the parent's death."""
    for owners in _all:
        owners.leave()


os.register_at_fork(after_in_child=_leave_to_parent)
