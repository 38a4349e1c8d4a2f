"""`nearfar trace` and `nearfar privacy`: what happened in a run, why and at what cost, which step failed it, and what left the device."""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text
from rich.tree import Tree

from ...protocols import ConfigError, NotFound
from ..runs.run import title
from ..safety.privacy_records import OutboundRecord, PrivacyRecords
from ..task.stores import RunsConfig
from ..tracing import TraceLine, TraceStore, open_traces
from ..tracing.page import TraceRow, dollars_text, label_text, look_ups_of, rows_of
from ..util.text import printable
from . import options
from .running import Line, Note, execute, report_errors, right, show, table
from .selection import chosen_config, open_hybrid

if TYPE_CHECKING:
    from ..lab.blame import Blame

_SHOWN: Final = 160
"""Characters of a text that a line of the tree shows."""
_STYLES: Final = {"near": "green", "far": "dark_orange"}
_COLUMNS: Final = ("run", "began", "outcome", "agent", "dollars", "task")

app = typer.Typer(no_args_is_help=True)
privacy_app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_traces(
    limit: Annotated[int, typer.Option(min=1, help="Largest number of traces to print, the newest first.")] = 20,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the newest traces: the task of each, its outcome, and its cost."""
    with report_errors(as_json=as_json), open_trace_store(config) as store:
        found = [_summary(line) for line in store.newest(limit=limit)]
    show(found, _list_lines(found), as_json=as_json)


@app.command("show")
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

            _write_private(html, trace_page(chosen, entries))
    look_ups = look_ups_of(entries)
    lines: list[Line] = [] if as_json else [_tree(chosen, rows_of(entries)), *([] if look_ups is None else [str(look_ups)])]
    if html is not None:
        lines.append(Note(f"the page is in {html}; it holds the texts of the run"))
    shown = [entry.model_dump(mode="json") for entry in entries]
    show({"run": chosen, "look_ups": look_ups and asdict(look_ups), "entries": shown}, lines, as_json=as_json)


@app.command("blame")
def blame_run(
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
    from ..lab.blame import find_blame  # loads LangGraph
    from ..lab.blame_replay import RecordedRun

    selection = options.AgentChoice(config, near, far)

    async def work() -> None:
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

    execute(work(), as_json=as_json)


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


def _list_lines(found: Sequence[dict[str, str | float | None]]) -> Iterator[Line]:
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
    style = "red" if row.is_bad else _STYLES.get(str(row.side), "cyan" if row.kind == "tool" else "")
    prefix = {"tool": "tool ", "label": "label: "}.get(row.kind, "")
    private = row.kind == "tool" and row.label is not None and bool(row.label.origins)
    line = Text.assemble((f"{side}{prefix}{row.title}", style), ("  " + ", ".join(row.figures), "dim"))
    if private and row.label is not None:
        line.append(f"  [{label_text(row.label)}]", style="magenta")
    said = " ".join(row.text.split()) if row.kind not in ("decision", "run") else row.text
    return line if not said else line.append(f"\n{_shorten(said) if row.kind != 'decision' else said}", style="dim")


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}\u2026"


def _write_private(path: Path, text: str) -> None:
    """Write a file that its owner alone may read, also if it exists already. Links are not followed: others may have put them there."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0), 0o600), "w", encoding="utf-8") as file:
        if hasattr(os, "fchmod"):  # which Windows has not
            os.fchmod(file.fileno(), 0o600)
        file.write(text)


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
