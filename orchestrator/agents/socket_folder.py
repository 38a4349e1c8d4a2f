"""A private folder for a process's sockets, removed with the process, or by the next one where it was killed."""

import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

from ...protocols.address import is_readable_path
from ..storage.owners import Owner, is_locked

_PREFIX: Final = "nearfar-sockets-"
_SHORT: Final = "/tmp"
_LONGEST: Final = 60
"""Bytes of a parent folder under which a socket's path stays below the 100 that every system allows."""


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
    """Remove this user's folders whose process has died, however it died."""
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
