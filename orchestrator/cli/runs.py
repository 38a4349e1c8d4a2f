"""`nearfar runs`: look at durable runs, resume them, end them."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.table import Column
from rich.text import Text

from ...protocols import ConfigError, InvalidRequest, NearfarError
from ..runs.erasing import open_store, rewrite
from ..runs.leases import RunDetails, read_details
from ..runs.run import Run, RunState
from ..runs.store import RunStore
from ..task.stores import RunsConfig
from ..util.runtime import in_thread
from ..util.text import spell_out
from . import options
from .run import summary
from .running import EXIT_FAILED, Line, Note, execute, fact_table, notes, report_errors, show, table
from .selection import call_text, chosen_config, open_hybrid, terminal_approver

if TYPE_CHECKING:
    from ..hybrid.hybrid import Hybrid

_STYLES: Final = {RunState.DONE: "green", RunState.FAILED: "red", RunState.WAITING: "yellow", RunState.CANCELLED: "dim"}

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_runs(
    state: Annotated[str | None, typer.Option(help="running, waiting, done, failed or cancelled.")] = None,
    user: Annotated[str | None, typer.Option(help="Only runs of this user.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Largest number of runs to print, the newest first.")] = 20,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the newest runs and their states."""
    with report_errors(as_json=as_json):
        wanted = None if state is None else options.parse_name(state, RunState, "state", error=ConfigError)
        with open_run_store(config) as store:
            found = store.list(state=wanted, user=user, limit=limit)
        show({"runs": [run.model_dump(mode="json") for run in found]}, _list_lines(found), as_json=as_json)


@app.command("show")
def show_run(
    run: options.RunName = None, last: options.Last = False, config: options.Config = None, as_json: options.AsJson = False
) -> None:
    """Print the task of a run, its state, its attempts, and the calls that wait for approval."""
    with report_errors(as_json=as_json):
        with open_run_store(config) as store:
            found = read_details(store, options.RunChoice(run, last).id_in(store))
        show(found.model_dump(mode="json"), [fact_table(_facts(found))], as_json=as_json)


@app.command("resume")
def resume_run(
    run: options.RunName = None,
    last: options.Last = False,
    every: Annotated[bool, typer.Option("--all", help="Resume all runs whose process has died.")] = False,
    approve: Annotated[list[str] | None, typer.Option(help="Id of a call to approve, or its beginning. May be repeated.")] = None,
    deny: Annotated[list[str] | None, typer.Option(help="Id of a call to deny, or its beginning. May be repeated.")] = None,
    user: Annotated[str, typer.Option(help="User for whom the run was started.")] = "",
    near: options.Near = None,
    far: options.Far = None,
    tools: options.Tools = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Resume a run from its last checkpoint, or print the answer of a run that is done."""
    selection = options.AgentChoice(config, near, far, tools=tools)
    choice = options.RunChoice(run, last)
    if every:
        execute(_resume_all(selection, choice, as_json=as_json), as_json=as_json)
    else:
        execute(_resume_one(selection, choice, approve or (), deny or (), user=user, as_json=as_json), as_json=as_json)


@app.command("forget")
def forget_run(
    run: options.RunName = None, last: options.Last = False, config: options.Config = None, as_json: options.AsJson = False
) -> None:
    """Remove everything that is kept of a run: its task, steps and result, its trace, its privacy record, and what it has spent."""
    with report_errors(as_json=as_json):
        with open_run_store(config) as store:
            store.forget(chosen := options.RunChoice(run, last).id_in(store))
        rewrite(options.read_section(config, "runs", RunsConfig))
        show({"run": chosen, "state": "forgotten"}, [Note(f"run {spell_out(chosen)} is forgotten", "")], as_json=as_json)


@app.command("cancel")
def cancel_run(
    run: options.RunName = None, last: options.Last = False, config: options.Config = None, as_json: options.AsJson = False
) -> None:
    """Cancel a run, whichever process it runs in: at once, or when its running tool calls have ended."""
    with report_errors(as_json=as_json):
        with open_run_store(config) as store:
            found = store.cancel(chosen := options.RunChoice(run, last).id_in(store))
        ends = "ends within a second, or when its running tool calls have ended"
        told = f"run {spell_out(chosen)} {ends if found.state is RunState.RUNNING else f'is {found.state}'}"
        show({"run": found.id, "state": found.state}, [Note(told, "")], as_json=as_json)


@contextmanager
def open_run_store(path: Path | None) -> Iterator[RunStore]:
    """Open the store of runs that the configuration names or, without one, the user's own."""
    with closing(open_store(options.read_section(path, "runs", RunsConfig))) as store:
        yield store


async def _resume_one(
    selection: options.AgentChoice,
    choice: options.RunChoice,
    approved: Sequence[str],
    denied: Sequence[str],
    *,
    user: str,
    as_json: bool,
) -> None:
    if choice.run is None and not choice.is_last:
        raise ConfigError("no run is named", hint="give the beginning of its id, --last, or --all for all whose process has died")
    async with _open_hybrid(selection, as_json=as_json) as hybrid:
        run = await in_thread(choice.id_in, hybrid.runs)
        calls = [request.id for request in (await in_thread(read_details, hybrid.runs, run)).waits_for] if approved or denied else []
        approved, denied = ([options.pick_id(each, calls, "call") for each in ids] for ids in (approved, denied))
        result = await hybrid.resume(run, user=user, approvals=_answers(approved, denied))
    show(result.model_dump(mode="json"), [Text(result.text), Note(summary(result))], as_json=as_json)


def _answers(approved: Sequence[str], denied: Sequence[str]) -> dict[str, bool]:
    """Return the answers to calls that wait for approval, by request id. Raises `InvalidRequest` if one is approved and denied."""
    both = sorted(set(approved) & set(denied))
    if both:
        raise InvalidRequest(f"{both[0]} is both approved and denied", hint="use one of them")
    return {**dict.fromkeys(approved, True), **dict.fromkeys(denied, False)}


async def _resume_all(selection: options.AgentChoice, choice: options.RunChoice, *, as_json: bool) -> None:
    """Resume all runs whose process has died, the oldest first. A run that fails does not stop the others."""
    if choice.run is not None or choice.is_last:
        raise ConfigError("a run is named, and --all is given", hint="use one of them")
    ended: list[dict[str, str]] = []
    async with _open_hybrid(selection, as_json=as_json) as hybrid:
        for orphan in hybrid.runs.orphans():
            ended.append(await _resume(hybrid, orphan.id, orphan.user))
            if not as_json:
                notes.print(Text(spell_out(f"{orphan.id}: {ended[-1].get('error', 'done')}")), soft_wrap=True)
    show({"runs": ended}, () if ended else [Note("no run was interrupted")], as_json=as_json)
    if any("error" in each for each in ended):
        raise SystemExit(EXIT_FAILED)


async def _resume(hybrid: "Hybrid", run: str, user: str) -> dict[str, str]:
    try:
        result = await hybrid.resume(run, user=user)
    except NearfarError as error:  # reported, and the next run is resumed
        return {"run": run, "error": f"{type(error).__name__}: {error}"}
    return {"run": run, "text": result.text}


def _open_hybrid(selection: options.AgentChoice, *, as_json: bool) -> "Hybrid":
    config = chosen_config(selection)
    config = config.model_copy(update={"runs": config.runs or RunsConfig()})
    return open_hybrid(selection, config, None if as_json else terminal_approver())


def _list_lines(found: Sequence[Run]) -> Iterator[Line]:
    if not found:
        yield Note("no runs found; with [runs] in nearfar.toml, every task is kept as a run", style="")
        return
    columns = [Column(name, overflow="fold") for name in ("run", "state", "strategy", "steps", "user", "task")]
    columns[3].justify = "right"
    yield table(columns, map(_cells, found))
    if any(run.is_orphaned for run in found):
        yield Note("nearfar runs resume --all resumes the interrupted runs")


def _cells(run: Run) -> tuple[str | Text, ...]:
    return (spell_out(run.id), _state_text(run), run.strategy, str(run.steps), spell_out(run.user), spell_out(run.title))


def _state_text(run: Run) -> Text:
    return Text("interrupted", style="yellow") if run.is_orphaned else Text(run.state, style=_STYLES.get(run.state, ""))


def _facts(found: RunDetails) -> Iterator[tuple[str, Text]]:
    run = found.run
    yield "run", Text(spell_out(run.id))
    yield "state", _state_text(run)
    if run.user:
        yield "user", Text(spell_out(run.user))
    yield "task", Text(spell_out(found.prompt))
    yield "strategy", Text(run.strategy)
    yield "steps", Text(f"{run.steps} kept, {found.calls} calls of agents, owner {run.epoch}")
    if found.next:
        yield "next", Text(", ".join(found.next))
    for attempt in found.attempts:
        yield "attempt", Text(spell_out(f"{attempt.agent} {attempt.outcome}" + (f": {attempt.reason}" if attempt.reason else "")))
    for request in found.waits_for:
        yield "waits for", Text(f"{request.id}  {call_text(request)}\n{spell_out(request.reason)}")
    if found.waits_for:
        yield "", Text(f"nearfar runs resume {run.id} --approve ID, or --deny ID", style="yellow")
    if found.failure is not None:
        yield "error", Text(spell_out(f"{found.failure.error}: {found.failure.message}"), style="red")
    if found.answer is not None:
        yield "answer", Text(found.answer)
