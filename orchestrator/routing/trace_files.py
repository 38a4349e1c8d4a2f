"""Reading traces from files: as such, from a router's log, or from the runs of a sweep."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from ...protocols import ConfigError
from .log import LOG_LINE, LoggedScore, LoggedTask, trace_of
from .run_record import RunRecord
from .traces import AgentOutcome, Trace

_MOST_PROBLEMS: Final = 5
_HINT: Final = "docs/routing.md shows what a trace is"
_AGENT_OF_RUN: Final = {"device": "near", "cloud": "far"}
"""Configurations of a sweep in which one agent works alone."""


def read_traces(path: Path) -> list[Trace]:
    """Read traces from a JSON Lines file, gzipped or not: traces as such, a router's log, or the runs of a sweep.

    In a log, tasks whose words were not written are left out; of a sweep, the runs of the two sides alone count.
    Raises `ConfigError` that names the lines which are none of these, and for a file without any trace.
    """
    reading = _Reading()
    problems = []
    for number, line in enumerate(_lines(path), start=1):
        try:
            reading.take(line)
        except (ValueError, RecursionError) as error:
            problems.append(f"{path}, line {number}: {_problem(error)}")
    if problems:
        more = f"\nand {len(problems) - _MOST_PROBLEMS} more lines" if len(problems) > _MOST_PROBLEMS else ""
        raise ConfigError("\n".join(problems[:_MOST_PROBLEMS]) + more, hint=_HINT)
    traces = reading.traces
    if not traces:
        raise ConfigError(f"{path} holds no traces", hint=_HINT)
    return traces


class _Reading:
    """The lines of a file so far. What came of a task may stand on several of them."""

    def __init__(self) -> None:
        self._traces: list[Trace] = []
        self._tasks: list[LoggedTask] = []
        self._scores: dict[tuple[str, str], float] = {}
        self._runs: dict[tuple[str, str, int], Trace] = {}

    def take(self, line: str) -> None:
        """Raises `ValueError` for a line that is nothing of all this."""
        fields = json.loads(line)
        if isinstance(fields, dict) and fields.get("type") in ("task", "score"):
            self._take_logged(LOG_LINE.validate_json(line))
        elif isinstance(fields, dict) and "configuration" in fields:
            self._take_run(RunRecord.model_validate_json(line))
        else:
            self._traces.append(Trace.model_validate_json(line))

    @property
    def traces(self) -> list[Trace]:
        logged = (trace_of(task, self._scores) for task in self._tasks)
        return [*self._traces, *(trace for trace in logged if trace is not None), *self._runs.values()]

    def _take_logged(self, line: LoggedTask | LoggedScore) -> None:
        if isinstance(line, LoggedTask):
            self._tasks.append(line)
        else:
            self._scores[line.id, line.agent] = line.score

    def _take_run(self, run: RunRecord) -> None:
        agent = _AGENT_OF_RUN.get(run.configuration)
        if agent is None or run.near_calls + run.far_calls == 0:
            return
        outcome = AgentOutcome(score=run.score, dollars=run.dollars, seconds=run.seconds, joules=run.joules)
        key = (run.world, run.task, run.seed)
        known = self._runs.get(key)
        outcomes = {**(known.outcomes if known is not None else {}), agent: outcome}
        task_class = f"{run.world}/{run.kind}"
        self._runs[key] = Trace(id="/".join(map(str, key)), prompt=run.prompt, task_class=task_class, tools=run.tools, outcomes=outcomes)


def _problem(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        is_logged = first["loc"][:1] in (("task",), ("score",))  # the kind of a line in a log is no place in it
        place = ".".join(map(str, first["loc"][is_logged:]))
        return f"{place or 'the line'}: {first['msg']}"
    return "it is nested too deeply" if isinstance(error, RecursionError) else f"it is no JSON: {error}"


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines that are not empty."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            yield from (line for line in file if line.strip())
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"the traces in {path} cannot be read: {error}", hint="--traces names a file of JSON lines") from error
