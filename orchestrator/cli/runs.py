"""`nearfar runs`, `nearfar trace` and `nearfar privacy`: durable runs, what happened in one and why, and what left this device."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.table import Column
from rich.text import Text
from rich.tree import Tree

from ...protocols import ConfigError, InvalidRequest, NearfarError, NotFound
from ...protocols.system import replace_text
from ..runs import Run, RunState, title
from ..runs.erasing import open_store, rewrite
from ..runs.leases import RunDetails, read_details
from ..runs.store import RunStore
from ..safety.outbound_filter import OutboundRecord, PrivacyRecords
from ..task.stores import RunsConfig
from ..task.tools import Approver
from ..tracing import TraceLine, TraceStore, open_traces
from ..tracing.page import TraceRow, dollars_text, label_text, look_ups_of, rows_of
from ..util.runtime import in_thread
from ..util.text import printable, shorten, spell_out
from . import options
from .run import summary
from .running import EXIT_FAILED, Line, Note, asynchronous, execute, fact_table, load_langgraph, notes, report_errors, right, show, table
from .selection import call_text, chosen_config, open_hybrid, terminal_approver

if TYPE_CHECKING:
    from ..hybrid import Hybrid
    from ..lab.blame import Blame

_STYLES: Final = {RunState.DONE: "green", RunState.FAILED: "red", RunState.WAITING: "yellow", RunState.CANCELLED: "dim"}
_SHOWN: Final = 160
"""Characters of a text that a line of the tree shows."""
_TRACE_STYLES: Final = {"near": "green", "far": "dark_orange"}
_COLUMNS: Final = ("run", "began", "outcome", "agent", "dollars", "task")

app = typer.Typer(no_args_is_help=True)
trace_app = typer.Typer(no_args_is_help=True)
privacy_app = typer.Typer(no_args_is_help=True)


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
    async with _open_hybrid(selection) as hybrid:
        run = await in_thread(choice.id_in, hybrid.runs)
        calls = [request.id for request in (await in_thread(read_details, hybrid.runs, run)).waits_for] if approved or denied else []
        approved, denied = ([options.pick_id(each, calls, "call") for each in ids] for ids in (approved, denied))
        approver = None if as_json else terminal_approver()
        result = await hybrid.resume(run, user=user, approvals=_answers(approved, denied), approver=approver)
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
    async with _open_hybrid(selection) as hybrid:
        for orphan in hybrid.runs.orphans():
            ended.append(await _resume(hybrid, orphan, None if as_json else terminal_approver()))
            if not as_json:
                notes.print(Text(spell_out(f"{orphan.id}: {ended[-1].get('error', 'done')}")), soft_wrap=True)
    show({"runs": ended}, () if ended else [Note("no run was interrupted")], as_json=as_json)
    if any("error" in each for each in ended):
        raise SystemExit(EXIT_FAILED)


async def _resume(hybrid: "Hybrid", run: Run, approver: Approver | None) -> dict[str, str]:
    try:
        result = await hybrid.resume(run.id, user=run.user, approver=approver)
    except NearfarError as error:  # reported, and the next run is resumed
        return {"run": run.id, "error": f"{type(error).__name__}: {error}"}
    return {"run": run.id, "text": result.text}


def _open_hybrid(selection: options.AgentChoice) -> "Hybrid":
    config = chosen_config(selection)
    config = config.model_copy(update={"runs": config.runs or RunsConfig()})
    return open_hybrid(selection, config)


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


@trace_app.command("list")
def list_traces(
    limit: Annotated[int, typer.Option(min=1, help="Largest number of traces to print, the newest first.")] = 20,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the newest traces: the task of each, its outcome, and its cost."""
    with report_errors(as_json=as_json), open_trace_store(config) as store:
        found = [_summary(line) for line in store.newest(limit=limit)]
    show(found, _trace_lines(found), as_json=as_json)


@trace_app.command("show")
def show_trace(
    run: options.RunName = None,
    last: options.Last = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with a timeline to this file, readable by you alone.")] = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the steps of a run in order: side, decisions and their reasons, costs, time, energy, labels."""
    with report_errors(as_json=as_json):
        with open_trace_store(config) as store:
            chosen = options.RunChoice(run, last).id_in(store)
            entries = store.entries(chosen)
        if html is not None:
            from ..tracing.page import trace_page

            # Links are not followed: others may have put them there.
            replace_text(html, trace_page(chosen, entries), mode=0o600, follows_links=False)
    look_ups = look_ups_of(entries)
    lines: list[Line] = [] if as_json else [_tree(chosen, rows_of(entries)), *([] if look_ups is None else [str(look_ups)])]
    if html is not None:
        lines.append(Note(f"the page is in {html}; it holds the texts of the run"))
    shown = [entry.model_dump(mode="json") for entry in entries]
    show({"run": chosen, "look_ups": look_ups and asdict(look_ups), "entries": shown}, lines, as_json=as_json)


@trace_app.command("blame")
@asynchronous
async def blame_run(
    run: options.RunName = None,
    last: options.Last = False,
    expected: Annotated[str | None, typer.Option(help="The right answer. Default: the answer of --reference.")] = None,
    reference: Annotated[str | None, typer.Option(help="Run of the same task that went well. Its calls count as the right ones.")] = None,
    corrector: Annotated[str | None, typer.Option(help="Name of an agent that says what each agent should have done.")] = None,
    ask_far: Annotated[
        bool, typer.Option("--ask-far", help="Ask far agents, too, how they would have continued after a correction, at their price.")
    ] = False,
    near: options.Near = None,
    far: options.Far = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Find the earliest step of a failed run whose correction makes the run succeed. No tool runs: recorded results are used."""
    load_langgraph()  # blame needs it
    from ..lab.blame import find_blame
    from ..lab.blame_replay import RecordedRun

    selection = options.AgentChoice(config, near, far)
    if (reference is None) == (corrector is None):
        hint = "use --reference RUN, or --corrector AGENT with --expected"
        raise ConfigError("blame needs a better run or an agent that corrects", hint=hint)
    with open_trace_store(config) as store:
        chosen, better = options.RunChoice(run, last).id_in(store), reference and options.full_id(reference, store)
        failed = RecordedRun(chosen, store.entries(chosen))
        good = RecordedRun(better, store.entries(better)) if better else None
    answer = expected or (None if good is None else good.answer)
    if answer is None:
        raise ConfigError("the right answer is not known", hint="give it with --expected")
    async with open_hybrid(selection, chosen_config(selection)) as hybrid:
        found = await find_blame(hybrid.pool, failed, good or corrector or "", answer, ask_far=ask_far)
    data = {**found.model_dump(mode="json"), "replays": found.replays, "is_certain": found.is_certain}
    show(data, _blame_lines(found), as_json=as_json)


@privacy_app.command("audit")
def audit_run(
    run: options.RunName = None,
    last: options.Last = False,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Print what left the device for a run, when, for which agent and why it was allowed, and what was held back. Texts are not shown."""
    with report_errors(as_json=as_json):
        loaded = options.read_config(config)
        if loaded is None or loaded.runs is None:
            raise ConfigError("no record is kept of what leaves this device", hint="[runs] in nearfar.toml keeps one for each run")
        with closing(PrivacyRecords(loaded.runs.folder)) as records:
            chosen = options.RunChoice(run, last).id_in(records)
            found = records.outbound_log(chosen)
        if not found:
            raise NotFound(f"there is no privacy record for a run {chosen!r}", hint="the id of a result is the id of its run")
    data = {"run": chosen, "departures": [departure.model_dump(mode="json") for departure in found]}
    show(data, _audit_lines(found), as_json=as_json)


@contextmanager
def open_trace_store(path: Path | None) -> Iterator[TraceStore]:
    """Open the traces that a configuration names. Raises `ConfigError` if it has no `[runs]` section."""
    config = options.read_config(path)
    if config is not None and config.runs is None:
        raise ConfigError("no traces are kept", hint="[runs] in nearfar.toml keeps runs and their traces")
    with closing(open_traces((config.runs if config is not None else None) or RunsConfig())) as store:
        yield store


def _trace_lines(found: Sequence[dict[str, str | float | None]]) -> Iterator[Line]:
    if not found:
        yield Note("no traces yet; with [runs] in nearfar.toml, every task leaves one", style="")
        return
    rows = [{**each, "outcome": each["outcome"] or "not ended"} for each in found]
    yield table(_COLUMNS, [[str(row[name] or "") for name in _COLUMNS] for row in rows])


def _summary(line: TraceLine) -> dict[str, str | float | None]:
    began, ended = line.began, line.ended
    if began is None:
        return {"run": line.run, "began": None, "outcome": "damaged", "agent": None, "dollars": None, "task": None}
    return {
        "run": line.run,
        "began": datetime.fromtimestamp(began.clock).astimezone().isoformat(sep=" ", timespec="seconds"),
        "outcome": None if ended is None else ended.outcome,
        "agent": None if ended is None else ended.agent,
        "dollars": None if ended is None or ended.outcome != "done" else dollars_text(ended.dollars),
        "task": title(began.task),
    }


def _tree(run: str, rows: Sequence[TraceRow]) -> Tree:
    """Return the rows as a tree: the steps of an attempt, or of a subtask, are its branches."""
    root = Tree(Text(f"run {printable(run)}", style="bold"))
    scopes: dict[str, Tree] = {"": root}
    attempts: dict[str, Tree] = {}
    for row in rows:
        if row.scope not in scopes:
            scopes[row.scope] = root.add(Text(row.scope, style="bold"))
        if row.kind == "attempt" and not row.ends:
            attempts[row.scope] = scopes[row.scope].add(_row_text(row))
            continue
        branch = attempts.pop(row.scope, None) if row.ends or row.kind == "run" else attempts.get(row.scope)
        (branch or scopes[row.scope]).add(_row_text(row))
    return root


def _row_text(row: TraceRow) -> Text:
    """Return a node of the tree: the step and its figures, and below them its text."""
    side = f"{row.side} " if row.side is not None and row.kind in ("attempt", "step") else ""
    style = "red" if row.is_bad else _TRACE_STYLES.get(str(row.side), "cyan" if row.kind == "tool" else "")
    prefix = {"tool": "tool ", "label": "label: "}.get(row.kind, "")
    private = row.kind == "tool" and row.label is not None and bool(row.label.origins)
    line = Text.assemble((f"{side}{prefix}{row.title}", style), ("  " + ", ".join(row.figures), "dim"))
    if private and row.label is not None:
        line.append(f"  [{label_text(row.label)}]", style="magenta")
    said = row.text if row.kind == "decision" else shorten(row.text, _SHOWN)
    return line if not said else line.append(f"\n{said}", style="dim")


def _blame_lines(found: "Blame") -> Iterator[Line]:
    rows = []
    for trial in found.trials:
        then = trial.outcome if trial.answer is None else f"{trial.outcome}: {trial.answer}"
        rows.append((str(trial.step), f"{trial.agent} {trial.role}", trial.said, trial.corrected, then, trial.because))
    yield table(("step", "agent", "said", "corrected", "then", "because"), rows)
    decisive = found.decisive
    if decisive is None:
        yield f"No single step could be shown to have failed run {found.run}."
    else:
        sure = "" if found.is_certain else "; the outcome of correcting an earlier step is unknown, so that step may have failed it"
        yield f"Step {decisive.step}, {decisive.agent} ({decisive.side}), failed run {found.run}{sure}."
    yield Note(f"{found.replays} replays with corrections of {found.corrector}; no tool was run")


def _audit_lines(found: Sequence[OutboundRecord]) -> Iterator[Line]:
    yield table(("at", "agent", "role", "outcome", *right("bytes"), "label", "placeholders", "findings", "why"), map(_audit_cells, found))
    left = [each.bytes for each in found if each.outcome == "left"]
    held = sum(each.outcome == "held" for each in found)
    yield Note(f"{len(left)} messages of {sum(left):,} bytes left; {held} were held back")


def _audit_cells(departure: OutboundRecord) -> tuple[str, ...]:
    at = datetime.fromtimestamp(departure.at).astimezone().isoformat(sep=" ", timespec="seconds")
    findings = ", ".join(f"{count} {type}" for type, count in sorted(departure.findings.items()))
    size, placeholders = f"{departure.bytes:,}", ", ".join(departure.placeholders)
    return (at, departure.agent, departure.role, departure.outcome, size, departure.tier, placeholders, findings, departure.reason)
