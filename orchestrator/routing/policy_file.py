"""The policy of a `nearfar.toml` that may be edited while tasks run."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from threading import Lock

from ...protocols import ConfigError, Side
from ..config import load_config
from ..task import Policy
from .check import require_usable

logger = logging.getLogger(__name__)

_Stamp = tuple[int, int, int]
"""Of one content of a file: when it was written, how long it is, and which file it is."""


class PolicyFile:
    """Reads the file again when it has changed. A policy is replaced as a whole; one that cannot be used leaves the old one in force.

    Args:
        path: of the file.
        agents: that the policy may name; None: not looked at.

    Raises `ConfigError` where the file cannot be used from the start. Calls may come from any thread.
    """

    def __init__(self, path: Path, agents: Mapping[str, Side] | None = None) -> None:
        self.problem: str | None = None
        """Why the newest content is not in force; None where it is."""
        self._path = path
        self._agents = agents
        self._lock = Lock()
        self._stamp = self._look()
        self._policy = self._read()

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
            policy = self._read()
        except ConfigError as error:
            self.problem = str(error)
            logger.warning("%s changed and cannot be used; the policy read before stays in force: %s", self._path, error)
        else:
            self._policy, self.problem = policy, None
            logger.info("%s changed; tasks that start now are served under the new policy", self._path)
        self._stamp = stamp  # taken before the file was read, so that a change in between is seen next time

    def _read(self) -> Policy:
        policy = load_config(self._path).policy
        if self._agents is not None:
            require_usable(policy, self._agents)
        return policy

    def _look(self) -> _Stamp | None:
        """None where there is no file, as for a moment while an editor replaces it."""
        try:
            seen = os.stat(self._path)
        except OSError:
            return None
        return (seen.st_mtime_ns, seen.st_size, seen.st_ino)
