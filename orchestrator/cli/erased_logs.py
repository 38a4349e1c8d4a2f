"""The files of lines in which a policy has the router and `auto` keep what tasks came to, and what an erasure takes of them."""

from collections.abc import Collection
from pathlib import Path

from ...protocols import StoreUnavailable
from ..memory.erasing import Erased, record_of
from ..util.json_lines import drop_lines
from .configuration import read_config


class ErasedLogs:
    """The lines of a configuration's logs that hold something erased, or are of one of `runs`. Raises `StoreUnavailable`."""

    def __init__(self, path: Path | None, erased: Erased, runs: Collection[str]) -> None:
        self._erased = erased
        self._runs = frozenset(runs)
        config = read_config(path)
        named = () if config is None else (config.policy.router.log, config.policy.auto.reports)
        self._files = [file for file in named if file is not None and file.exists()]
        try:
            self.lines = sum(self._goes(line) for file in self._files for line in file.read_bytes().split(b"\n") if line)
        except OSError as error:
            raise self._unusable(error) from error

    def drop(self) -> None:
        """Remove them."""
        try:
            for file in self._files:
                drop_lines(file, self._goes)
        except OSError as error:
            raise self._unusable(error) from error

    def _goes(self, line: bytes) -> bool:
        record = record_of(line.decode("utf-8", "replace"))
        is_of_run = isinstance(record, dict) and record.get("id") in self._runs
        return is_of_run or self._erased.is_in(record)

    def _unusable(self, error: OSError) -> StoreUnavailable:
        return StoreUnavailable(f"a log of the policy cannot be used: {error.strerror}", hint="[policy.router] log, [policy.auto] reports")
