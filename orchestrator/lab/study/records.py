"""The runs of a sweep as JSON lines: one line per run, written at once, so that a sweep stopped at any point goes on from there."""

import fcntl
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Annotated, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, ValidationError

from ....protocols import ConfigError, Usage
from ....protocols.messages import Value


def _as_utf8(text: str) -> str:
    """Half a character, where a model was cut off, stands in no file."""
    return text.encode(errors="replace").decode()


def _finite(figures: Mapping[str, float | None]) -> Mapping[str, float | None]:
    """JSON has no NaN and no infinity."""
    return {name: None if figure is None or not math.isfinite(figure) else figure for name, figure in figures.items()}


Text = Annotated[str, AfterValidator(_as_utf8)]


class Check(Value):
    """One look of the supervisor at the work."""

    turn: int = Field(ge=0)
    """Executor turns done when it was made."""
    trigger: str | None
    """What asked for it: `interval`, `tool_error`, `loop`, `stall`, `long_observation`, `low_confidence`, `half_spent`, `answer`."""
    verdict: Literal["continue", "intervene", "unreadable"] | None
    """None where the supervisor failed."""


class RunRecord(Value):
    """One task under one configuration: a line of `runs.jsonl`."""

    key: str
    """Names the run: `run_key` of what was to be run, so that a sweep knows what it has."""
    world: str
    task: str
    """The task's identifier in its world."""
    prompt: Text
    context_words: int = Field(default=0, ge=0)
    """Length of the context that the task carried apart from its prompt."""
    tools: tuple[str, ...]
    """Names of the tools that the task offered."""
    kind: str
    difficulty: int
    seed: int
    """That the task was drawn with."""
    configuration: str
    """A label such as `pevr/8`."""
    strategy: str
    knobs: Mapping[str, JsonValue] = {}
    """What differs from the policy, apart from the strategy, in the shape of the `[policy]` section."""
    oracle: bool = False
    """The far side was the world's own solver: a ceiling, not a model."""
    near_model: str | None
    """None where the near side did not take part."""
    far_model: str | None
    answer: Text
    error: Text | None = None
    """`Class: message` where the run failed; its score is then 0."""
    success: bool
    score: float = Field(ge=0, le=1)
    measures: Annotated[Mapping[str, float | None], AfterValidator(_finite)] = {}
    """The world's own figures; None: it had no finite one for this run."""
    turns: int = Field(ge=0)
    """Steps of the executor."""
    near_calls: int = Field(ge=0)
    far_calls: int = Field(ge=0)
    near_usage: Usage = Usage()
    far_usage: Usage = Usage()
    dollars: float | None
    """US dollars of the far side; None: unknown. `dollars_source` says at whose price."""
    dollars_source: str
    seconds: float = Field(ge=0)
    """Wall time."""
    joules: float | None
    """Energy of the near side; None: unknown."""
    joules_source: Literal["measured", "estimated", "unavailable"]
    peak_kv_bytes: int | None
    """The largest KV cache that the near side needed; None: unknown."""
    context_tokens: tuple[int, ...] = ()
    """Prompt and output of each executor turn, in order."""
    checks: tuple[Check, ...] = ()
    interventions: int = Field(default=0, ge=0)
    """Verdicts that were acted upon."""


def run_key(*, world: str, task: str, seed: int, strategy: str, knobs: Mapping[str, JsonValue], oracle: bool) -> str:
    """A short name that the same run has in every process; labels may change, what is run may not."""
    identity = {"world": world, "task": task, "seed": seed, "strategy": strategy, "knobs": knobs, "oracle": oracle}
    text = json.dumps(identity, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def read_records(path: Path) -> list[RunRecord]:
    """The records of a file, without a last line that was cut off while it was written.

    Raises `ConfigError` that names the line which is no record.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="name a runs.jsonl that `nearfar sweep` wrote") from error
    return list(_parsed(data[: _whole(data)], path))


def _whole(data: bytes) -> int:
    """The length of the lines that are complete."""
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
