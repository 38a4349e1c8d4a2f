"""The policy of a `nearfar.toml` that may be edited while tasks run."""

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import Final

from ...protocols import ConfigError, Side
from ..routing.policy_check import require_usable
from ..task.policy import Policy
from .config import load_config

logger = logging.getLogger(__name__)

SETTLED: Final = 0.1
"""Seconds after the last change from which a file counts as written to its end: editors that write in place empty it first."""

_Stamp = tuple[int, int, int]
"""Identifies one content of a file: the time of writing in nanoseconds, the size in bytes, and the inode."""


class PolicyFile:
    """Reads the file again when it has changed. A policy is replaced as a whole; one that cannot be used leaves the old one in force.

    A file that was replaced, as most editors do, is never seen half written. One that is written in place is read once it has rested.

    Args:
        path: of the file.
        agents: that the policy may name; None: not looked at.
        now: seconds since the epoch, as file systems have them.

    Raises `ConfigError` where the file cannot be used from the start. Calls may come from any thread.
    """

    def __init__(self, path: Path, agents: Mapping[str, Side] | None = None, *, now: Callable[[], float] = time.time) -> None:
        self.problem: str | None = None
        """Why the newest content is not in force; None where it is."""
        self._path = path
        self._teams = [] if agents is None else [agents]
        self._now = now
        self._lock = Lock()
        self._stamp = self._look()
        self._policy = self._read()

    def require(self, agents: Mapping[str, Side]) -> None:
        """Check the policy against these agents, too, from now on: one that cannot be used with them counts as broken."""
        self._teams.append(agents)

    @property
    def current(self) -> Policy:
        """The policy in force. It is immutable: a caller that holds one keeps it when the file changes."""
        stamp = self._look()
        if stamp != self._stamp and self._has_settled(stamp):
            with self._lock:
                self._reload(stamp)
        return self._policy

    def _reload(self, stamp: _Stamp | None) -> None:
        if stamp == self._stamp:
            return  # another thread was quicker
        policy, problem = self._tried()
        if self._look() != stamp:
            return  # it changed while it was read; the next call sees it again
        if problem is None:
            logger.info("%s changed; tasks that start now are served under the new policy", self._path)
        else:
            logger.warning("%s changed and cannot be used; the policy read before stays in force: %s", self._path, problem)
        self._policy, self._stamp, self.problem = policy, stamp, problem

    def _tried(self) -> tuple[Policy, str | None]:
        """Return the policy read from the file and None, or the policy in force and the problem."""
        try:
            return self._read(), None
        except (ConfigError, OSError, RecursionError, RuntimeError, ValueError) as error:  # whatever a file may hold, the old one stays
            return self._policy, str(error) or type(error).__name__

    def _read(self) -> Policy:
        if self._path.exists() and not self._path.is_file():
            raise ConfigError(f"{self._path} is not a file")  # reading a pipe would wait for a writer
        policy = load_config(self._path).policy
        if _says_nothing(self._path.read_text(encoding="utf-8-sig")):
            raise ConfigError(f"{self._path} is empty", hint="no rule would be left; write [policy] to mean that")
        for agents in self._teams:
            require_usable(policy, agents)
        return policy

    def _has_settled(self, stamp: _Stamp | None) -> bool:
        """Return whether the file has rested. A clock that was set back must not make it wait for ever."""
        return stamp is None or not 0 <= self._now() - stamp[0] / 1e9 < SETTLED

    def _look(self) -> _Stamp | None:
        """Return the stamp of the file; None if there is none, as for a moment while an editor replaces it."""
        try:
            seen = os.stat(self._path)
        except OSError:
            return None
        return (seen.st_mtime_ns, seen.st_size, seen.st_ino)


def _says_nothing(text: str) -> bool:
    """Return whether there are only blanks and comments, as in a file of which no more has been written yet."""
    return all(not line.strip() or line.lstrip().startswith("#") for line in text.splitlines())
