"""`nearfar runs list | show | cancel | forget`."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ...protocols import ConfigError
from ..runs.details import RunDetails, details
from ..runs.erasing import rewrite
from ..runs.opening import open_store
from ..runs.run import Run, RunState
from ..runs.store import RunStore
from ..task.sections.runs import RunsConfig
from ..util.escaping import spelled_out
from .approving import shown_call
from .configuration import read_config
from .console import notes, output, print_json, reported
from .run_choice import RunChoice

_STYLES: Final = {RunState.DONE: "green", RunState.FAILED: "red", RunState.WAITING: "yellow", RunState.CANCELLED: "dim"}


@contextmanager
def opened(path: Path | None) -> Iterator[RunStore]:
    """The store of runs of the configuration, or the user's own where it names none."""
    with closing(open_store(runs_config(path))) as store:
        yield store


def runs_config(path: Path | None) -> RunsConfig:
    """The `[runs]` section of the configuration, or what it is where there is none."""
    config = read_config(path)
    return (config.runs if config is not None else None) or RunsConfig()


def list_runs(path: Path | None, *, state: str | None, user: str | None, limit: int, as_json: bool) -> None:
    """Print the newest runs."""
    with reported(as_json=as_json):
        wanted = _state(state)
        with opened(path) as store:
            found = store.list(state=wanted, user=user, limit=limit)
        if as_json:
            print_json({"runs": [run.model_dump(mode="json") for run in found]})
            return
        if not found:
            notes.print("no such runs; with [runs] in nearfar.toml, every task is one")
            return
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for column in ("run", "state", "strategy", "steps", "user", "task"):
            table.add_column(column, justify="right" if column == "steps" else "left", overflow="fold")
        for run in found:
            table.add_row(
                spelled_out(run.id), _state_text(run), run.strategy, str(run.steps), spelled_out(run.user), Text(spelled_out(run.title))
            )
        output.print(table)
        if any(run.is_orphaned for run in found):
            notes.print("nearfar runs resume --all goes on with those whose process has died", style="dim")


def show_run(chosen: RunChoice, path: Path | None, *, as_json: bool) -> None:
    """Print everything about a run."""
    with reported(as_json=as_json):
        with opened(path) as store:
            found = details(store, chosen.of(store))
        if as_json:
            print_json(found.model_dump(mode="json"))
            return
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in _rows(found):
            table.add_row(name, value)
        output.print(table)


def cancel_run(chosen: RunChoice, path: Path | None, *, as_json: bool) -> None:
    """Ask for the end of a run."""
    with reported(as_json=as_json):
        with opened(path) as store:
            found = store.cancel(run := chosen.of(store))
        if as_json:
            print_json({"run": found.id, "state": found.state})
        elif found.state is RunState.RUNNING:
            notes.print(f"run {spelled_out(run)} ends within a second, or when its tools are done that are at work")
        else:
            notes.print(f"run {spelled_out(run)} is {found.state}")


def forget_run(chosen: RunChoice, path: Path | None, *, as_json: bool) -> None:
    """Remove everything that is kept of a run."""
    with reported(as_json=as_json):
        with opened(path) as store:
            store.forget(run := chosen.of(store))
        rewrite(runs_config(path))
        if as_json:
            print_json({"run": run, "state": "forgotten"})
        else:
            notes.print(f"run {spelled_out(run)} is forgotten")


def _state(text: str | None) -> RunState | None:
    try:
        return None if text is None else RunState(text)
    except ValueError:
        raise ConfigError(f"there is no state {text!r}", hint=f"the states are {', '.join(RunState)}") from None


def _state_text(run: Run) -> Text:
    return Text("interrupted", style="yellow") if run.is_orphaned else Text(run.state, style=_STYLES.get(run.state, ""))


def _rows(found: RunDetails) -> Iterator[tuple[str, Text]]:
    run = found.run
    yield "run", Text(spelled_out(run.id))
    yield "state", _state_text(run)
    if run.user:
        yield "user", Text(spelled_out(run.user))
    yield "task", Text(spelled_out(found.prompt))
    yield "strategy", Text(run.strategy)
    yield "steps", Text(f"{run.steps} kept, {found.calls} calls of agents, owner {run.epoch}")
    if found.next:
        yield "next", Text(", ".join(found.next))
    for attempt in found.attempts:
        yield "attempt", Text(spelled_out(f"{attempt.agent} {attempt.outcome}" + (f": {attempt.reason}" if attempt.reason else "")))
    for request in found.waits_for:
        yield "waits for", Text(f"{request.id}  {shown_call(request)}\n{spelled_out(request.reason)}")
    if found.waits_for:
        yield "", Text(f"nearfar runs resume {run.id} --approve ID, or --deny ID", style="yellow")
    if found.failure is not None:
        yield "error", Text(spelled_out(f"{found.failure.error}: {found.failure.message}"), style="red")
    if found.answer is not None:
        yield "answer", Text(found.answer)
