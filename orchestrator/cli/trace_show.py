"""`nearfar trace list` and `nearfar trace show`."""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from ...protocols import ConfigError
from ..runs.run import title
from ..task.sections.runs import RunsConfig
from ..tracing.rows import Row, dollars_text, label_text, rows_of
from ..tracing.store import TraceLine, TraceStore, open_traces
from ..util.escaping import printable
from .configuration import read_config
from .console import notes, output, print_json, reported
from .run_choice import RunChoice

_SHOWN: Final = 160
"""Characters of what was said that a line shows."""
_STYLES: Final = {"near": "green", "far": "dark_orange"}


def list_traces(path: Path | None, *, limit: int, as_json: bool) -> None:
    """Print the newest."""
    with reported(as_json=as_json), opened(path) as store:
        lines = store.newest(limit=limit)
    if as_json:
        print_json([_line_json(line) for line in lines])
        return
    if not lines:
        notes.print("no traces yet; with [runs] in nearfar.toml, every task leaves one")
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("run", "began", "outcome", "agent", "dollars", "task"):
        table.add_column(column)
    for line in lines:
        known = _line_json(line)
        known["outcome"] = known["outcome"] or "not ended"
        table.add_row(*(Text(printable(str(known[name] or ""))) for name in ("run", "began", "outcome", "agent", "dollars", "task")))
    output.print(table)


def show_trace(chosen: RunChoice, path: Path | None, *, html: Path | None, as_json: bool) -> None:
    """Print a trace as a tree, or as its entries; write the page where one is asked for."""
    with reported(as_json=as_json):
        with opened(path) as store:
            run = chosen.of(store)
            entries = store.entries(run)
        if html is not None:
            from ..tracing.page import trace_page

            _write_private(html, trace_page(run, entries))
    if as_json:
        print_json({"run": run, "entries": [entry.model_dump(mode="json") for entry in entries]})
        return
    output.print(tree(run, rows_of(entries)))
    if html is not None:
        notes.print(f"{html} is written: it holds what the run was told", style="dim")


@contextmanager
def opened(path: Path | None) -> Iterator[TraceStore]:
    """The traces that a configuration names. Raises `ConfigError` where none are kept."""
    config = read_config(path)
    if config is not None and config.runs is None:
        raise ConfigError("no traces are kept", hint="[runs] in nearfar.toml keeps runs and their traces")
    with closing(open_traces((config.runs if config is not None else None) or RunsConfig())) as store:
        yield store


def tree(run: str, rows: Sequence[Row]) -> Tree:
    """The lines, those of attempts and parts below them."""
    root = Tree(Text(f"run {printable(run)}", style="bold"))
    scopes: dict[str, Tree] = {"": root}
    attempts: dict[str, Tree] = {}
    for row in rows:
        if row.scope not in scopes:
            scopes[row.scope] = root.add(Text(row.scope, style="bold"))
        if row.kind == "attempt" and not row.ends:
            attempts[row.scope] = scopes[row.scope].add(_text(row))
            continue
        branch = attempts.pop(row.scope, None) if row.ends or row.kind == "run" else attempts.get(row.scope)
        (branch or scopes[row.scope]).add(_text(row))
    return root


def _text(row: Row) -> Text:
    """A line of the tree: what it was, what it took, and below what was said."""
    side = f"{row.side} " if row.side is not None and row.kind in ("attempt", "step") else ""
    style = "red" if row.is_bad else _STYLES.get(str(row.side), "cyan" if row.kind == "tool" else "")
    prefix = {"tool": "tool ", "label": "label: "}.get(row.kind, "")
    private = row.kind == "tool" and row.label is not None and bool(row.label.origins)
    line = Text.assemble((f"{side}{prefix}{row.title}", style), ("  " + ", ".join(row.figures), "dim"))
    if private and row.label is not None:
        line.append(f"  [{label_text(row.label)}]", style="magenta")
    said = " ".join(row.text.split()) if row.kind not in ("decision", "run") else row.text
    return line if not said else line.append(f"\n{_shortened(said) if row.kind != 'decision' else said}", style="dim")


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}\u2026"


def _line_json(line: TraceLine) -> dict[str, str | float | None]:
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


def _write_private(path: Path, text: str) -> None:
    """For the owner alone, also where the file was there before; not through a link that somebody else may have laid there."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)
