"""The policy of a `nearfar.toml` that may be edited while tasks run."""

import logging
import os
from pathlib import Path
from threading import Lock

from ...protocols import ConfigError
from ..config import load_config
from ..task import Policy

logger = logging.getLogger(__name__)

_Stamp = tuple[int, int, int]
"""Of one content of a file: when it was written, how long it is, and which file it is."""


class PolicyFile:
    """Reads the file again when it has changed. A policy is replaced as a whole; one that cannot be used leaves the old one in force.

    Raises `ConfigError` where the file cannot be used from the start. Calls may come from any thread.
    """

    def __init__(self, path: Path) -> None:
        self.problem: str | None = None
        """Why the newest content is not in force; None where it is."""
        self._path = path
        self._lock = Lock()
        self._stamp = self._look()
        self._policy = load_config(path).policy

    @property
    def current(self) -> Policy:
        """The policy in force. Whoever holds one keeps it, whatever becomes of the file."""
        stamp = self._look()
        if stamp != self._stamp:
            with self._lock:
                self._reload(stamp)
        return self._policy

    def _reload(self, stamp: _Stamp | None) -> None:
        if stamp == self._stamp:
            return  # another thread was quicker
        try:
            policy = load_config(self._path).policy
        except ConfigError as error:
            self.problem = str(error)
            logger.warning("%s changed and cannot be used; the policy read before stays in force: %s", self._path, error)
        else:
            self._policy, self.problem = policy, None
            logger.info("%s changed; tasks that start now are served under the new policy", self._path)
        self._stamp = stamp  # taken before the file was read, so that a change in between is seen next time

    def _look(self) -> _Stamp | None:
        """None where there is no file, as for a moment while an editor replaces it."""
        try:
            seen = os.stat(self._path)
        except OSError:
            return None
        return (seen.st_mtime_ns, seen.st_size, seen.st_ino)
