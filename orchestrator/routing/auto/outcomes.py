"""Outcomes of tasks by configuration, read from the runs of sweeps and from the reports of an app."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from ....protocols import ConfigError
from ....protocols.messages import Value
from ...task.modes import Strategy, TaskProfile
from ...task.results import Arm
from ...util.json_text import append_line, read_lines
from ..run_record import RunRecord


class Outcome(Value):
    """One task under one configuration: a line of the file that `Hybrid.report` appends to."""

    type: Literal["outcome"] = "outcome"
    task_class: str = ""
    """The class of the task, from coarse to fine: `search/hops`. Empty: only its features are known."""
    profile: TaskProfile
    arm: Arm
    label: str = ""
    """How people call the configuration, such as `pevr/8`."""
    score: float = Field(ge=0, le=1)
    dollars: float | None = Field(ge=0, allow_inf_nan=False)
    """US dollars of both sides; None: unknown."""


def outcomes_of(records: Iterable[RunRecord]) -> Iterator[Outcome]:
    """Yield the outcomes of a sweep's runs.

    Left out are those that tell nothing about a configuration: of an oracle, in shadow mode, of `auto` itself, and those that failed
    before any agent was asked, as where the world could not start over or the process died.
    Raises `ConfigError` for a configuration that this version cannot run.
    """
    for record in records:
        if record.oracle or record.strategy == Strategy.AUTO or _is_shadow(record) or _never_began(record):
            continue
        yield Outcome(
            task_class=f"{record.world}/{record.kind}",
            profile=TaskProfile.of(record.prompt, record.tools, context_words=record.context_words),
            arm=arm_of(record),
            label=record.configuration,
            score=record.score,
            dollars=record.dollars,
        )


def arm_of(record: RunRecord) -> Arm:
    """Return the configuration of a run. Raises `ConfigError` for an unknown strategy."""
    # A sweep runs these two without the other side to fall back to; here the mode is the user's to say.
    implied = ("mode",) if record.strategy in (Strategy.DEVICE, Strategy.CLOUD) else ()
    knobs = {name: value for name, value in record.knobs.items() if name not in implied}
    try:
        return Arm(strategy=Strategy(record.strategy), knobs=knobs)
    except ValueError as error:
        raise ConfigError(f"run {record.key} has strategy {record.strategy!r}, which is unknown", hint="sweep again") from error


def read_outcomes(path: Path) -> list[Outcome]:
    """Read the outcomes of a file whose lines are runs of a sweep, or reports, or both. A last line that was cut off is left out.

    Raises `ConfigError` that names the line which is neither.
    """
    try:
        lines = read_lines(path)
    except OSError as error:
        hint = "`nearfar sweep` writes runs.jsonl; [policy.auto] names it"
        raise ConfigError(f"the outcomes in {path} cannot be read: {error.strerror}", hint=hint) from error
    parsed = (_outcome(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1) if line.strip())
    return [outcome for outcome in parsed if outcome is not None]


class ReportLog:
    """The file of an app's own outcomes: one line each, written at once and under a lock, so that several processes can share it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, outcome: Outcome) -> None:
        """Raises `ConfigError` where the file cannot be written."""
        try:
            append_line(self._path, outcome.model_dump_json().encode())
        except OSError as error:
            message = f"{self._path} cannot be written: {error.strerror or error}"
            raise ConfigError(message, hint="[policy.auto] reports names it") from error

    def read(self) -> list[Outcome]:
        """Return the outcomes reported so far; none if the file does not exist."""
        return read_outcomes(self._path) if self._path.exists() else []


def _outcome(line: bytes, where: str) -> Outcome | None:
    """Parse a line; None for a run that says nothing about a configuration."""
    try:
        fields = json.loads(line)
        if isinstance(fields, dict) and fields.get("type") == "outcome":
            outcome: Outcome | None = Outcome.model_validate_json(line)
        else:
            outcome = next(outcomes_of([RunRecord.model_validate_json(line)]), None)
    except (ValueError, RecursionError, ConfigError) as error:
        raise ConfigError(f"{where} is no outcome: {_problem(error)}", hint="mend or delete that line") from error
    return outcome


def _problem(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return ": ".join([*(str(part) for part in first["loc"]), first["msg"]])
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _never_began(record: RunRecord) -> bool:
    """Return True if the run failed before any call. Its tools are unknown then, so it would pass for a task without tools."""
    return record.error is not None and record.near_calls + record.far_calls == 0


def _is_shadow(record: RunRecord) -> bool:
    supervision = record.knobs.get("supervision")
    return isinstance(supervision, dict) and supervision.get("shadow") is True
