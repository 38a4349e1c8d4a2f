"""Fetching one file over HTTP such that an interruption costs nothing, and taking checksums."""

import errno
import hashlib
import shutil
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from ...protocols import ConfigError, NearfarError, Unavailable

if TYPE_CHECKING:
    import httpx

Progress = Callable[[str, int, int], None]
"""Is told what is being done, and how many bytes out of how many it is done with."""

_BLOCK: Final = 1 << 20
_MOST_FAILURES: Final = 5
"""In a row, without a byte in between."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PARTIAL_CONTENT: Final = 206
_RANGE_NOT_SATISFIABLE: Final = 416


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A file on its way to this machine."""

    client: "httpx.Client"
    url: str
    partial: Path
    """Where it grows."""
    size: int
    """Of the whole file."""
    refuse: Callable[["httpx.Response"], NearfarError]
    """Makes the error for an answer that is no content."""
    progress: Progress
    title: str
    pause: float
    """Seconds to wait before the first further attempt; each next one waits twice as long."""

    def run(self) -> None:
        """Bring `partial` to its size, from where an earlier attempt left it.

        Raises what `refuse` makes, `Unavailable` if the connection keeps failing, and `ConfigError` if the disk is full; `partial` is kept
        for the next attempt in any case.
        """
        import httpx

        self.partial.parent.mkdir(parents=True, exist_ok=True)
        self._drop_links()
        self.partial.touch()
        failures, most = 0, self._have()
        while (have := self._have()) != self.size:
            self._check_room(have)
            fault = "it ended too early"
            try:
                self._continue(have)
            except (httpx.RequestError, httpx.InvalidURL, UnicodeError) as error:  # the last two for places that are none
                fault = str(error) or type(error).__name__
            if self._have() > most:
                failures, most = 0, self._have()
                continue
            failures += 1
            if failures == _MOST_FAILURES:
                hint = "check the network, then run it again: it goes on from here"
                raise Unavailable(f"{self.title} cannot be fetched: {fault}", hint=hint)
            time.sleep(self.pause * 2 ** (failures - 1))

    def _drop_links(self) -> None:
        """Delete `partial` where it is anything but a file of its own, so that nothing is written through a link."""
        try:
            found = self.partial.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            self.partial.unlink()

    def _have(self) -> int:
        """Bytes that are there; none where there are too many, for those are of something else."""
        size = self.partial.stat().st_size if self.partial.exists() else 0
        return size if size <= self.size else 0

    def _continue(self, have: int) -> None:
        headers = {"Range": f"bytes={have}-"} if have else {}
        with self.client.stream("GET", self.url, headers=headers, follow_redirects=True) as response:
            if response.status_code == _RANGE_NOT_SATISFIABLE or self._is_other_part(response, have):
                self.partial.unlink(missing_ok=True)
                return
            if not response.is_success:
                raise self.refuse(response)
            # A server that does not know ranges sends all of it.
            start = have if response.status_code == _PARTIAL_CONTENT else 0
            with self.partial.open("r+b" if start else "wb") as file:
                file.seek(start)
                self._write(response, file, start)

    def _is_other_part(self, response: "httpx.Response", have: int) -> bool:
        """Whether it sends a part, and not of this file what is missing."""
        expected = f"bytes {have}-{self.size - 1}/{self.size}"
        return response.status_code == _PARTIAL_CONTENT and response.headers.get("Content-Range") != expected

    def _write(self, response: "httpx.Response", file: BinaryIO, have: int) -> None:
        for block in response.iter_raw():
            have += len(block)
            if have > self.size:
                raise Unavailable(f"{self.title} is longer than the {self.size} bytes that were announced", hint="run it again")
            try:
                file.write(block)
                file.flush()
            except OSError as error:
                raise self._explained(error) from error
            self.progress(f"fetching {self.title}", have, self.size)

    def _check_room(self, have: int) -> None:
        missing, free = self.size - have, shutil.disk_usage(self.partial.parent).free
        if free < missing:
            message = f"{self.title} needs {missing / 1e6:.0f} MB more, and {free / 1e6:.0f} MB are free in {self.partial.parent}"
            raise ConfigError(message, hint="free some space, or set HF_HUB_CACHE to a folder on another disk")

    def _explained(self, error: OSError) -> OSError | ConfigError:
        if error.errno not in _FULL:
            return error
        message = f"the disk is full: {self._have()} of the {self.size} bytes of {self.title} are in {self.partial.parent}"
        return ConfigError(message, hint="free some space and run it again: it goes on from there; or set HF_HUB_CACHE to another disk")


def sha256_of(path: Path, progress: Progress) -> str:
    """The file's checksum, in hexadecimal."""
    digest, size, done = hashlib.sha256(), path.stat().st_size, 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            done += len(block)
            progress(f"checking {path.name}", done, size)
    return digest.hexdigest()
