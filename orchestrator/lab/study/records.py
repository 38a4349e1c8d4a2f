"""The runs of a sweep as JSON lines: one line per run, written at once, so that a sweep stopped at any point goes on from there."""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from pydantic import JsonValue, ValidationError

from ....protocols import ConfigError
from ...routing.traces import RunRecord


def run_key(*, world: str, task: str, seed: int, strategy: str, knobs: Mapping[str, JsonValue], oracle: bool) -> str:
    """Return a short name that the same run has in every process, whatever its label."""
    identity = {"world": world, "task": task, "seed": seed, "strategy": strategy, "knobs": knobs, "oracle": oracle}
    text = json.dumps(identity, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def read_records(path: Path) -> list[RunRecord]:
    """Read the records of a file, without a last line that was cut off while it was written.

    Raises `ConfigError` that names the line which is no record.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="name a runs.jsonl that `nearfar sweep` wrote") from error
    return list(_parsed(data[: _whole(data)], path))


def _whole(data: bytes) -> int:
    """Return the length of the lines that are complete."""
    return data.rfind(b"\n") + 1


def _parsed(data: bytes, path: Path) -> Iterator[RunRecord]:
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            yield RunRecord.model_validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            problem = f"{where}: {first['msg']}" if where else first["msg"]
            raise ConfigError(f"{path}, line {number} is no record of a run: {problem}", hint="mend or delete that line") from error


class RecordLog:
    """A `runs.jsonl` that is written to by one process; use it as a context manager.

    Opening it cuts off a last line that an interrupted sweep left incomplete, and reads what is there.
    Raises `ConfigError` where another process writes to the file, or a line of it is no record.
    """

    def __init__(self, path: Path) -> None:
        with ExitStack() as stack:
            self._file: IO[bytes] = stack.enter_context(path.open("ab+"))
            self._lock(path)
            self.records: list[RunRecord] = self._resume(path)
            """All records, in the order of their lines."""
            stack.pop_all()
        self.keys = {record.key for record in self.records}

    def append(self, record: RunRecord) -> None:
        """Write one line. Raises `ValueError` for a run that is there already."""
        if record.key in self.keys:
            raise ValueError(f"run {record.key} is recorded already")
        self._file.write(record.model_dump_json().encode() + b"\n")
        self._file.flush()
        self.keys.add(record.key)
        self.records.append(record)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Make sure that the lines are on the disk, and let others write."""
        if self._file.closed:
            return
        os.fsync(self._file.fileno())
        self._file.close()

    def _lock(self, path: Path) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another sweep writes to {path}", hint="wait for it, or choose another folder: --out") from None

    def _resume(self, path: Path) -> list[RunRecord]:
        self._file.seek(0)
        data = self._file.read()
        self._file.truncate(_whole(data))
        return list(_parsed(data[: _whole(data)], path))
