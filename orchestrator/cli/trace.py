"""The `nearfar trace` group. As in the package itself, each command loads what it needs when it runs."""

from pathlib import Path
from typing import Annotated

import typer

from . import options

trace = typer.Typer(help="What happened in a run, on which side, why, and what it cost.", no_args_is_help=True)

RunName = Annotated[str, typer.Argument(help="The run: the id of its result, or as `nearfar trace list` shows it.")]


@trace.command("list")
def list_traces(
    limit: Annotated[int, typer.Option(min=1, help="So many, the newest ones.")] = 20,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the newest traces: what was asked, what came of it, and what it cost."""
    from .trace_show import list_traces as work

    work(config, limit=limit, as_json=as_json)


@trace.command("show")
def show_trace(
    run: RunName,
    html: Annotated[Path | None, typer.Option(help="Write a page with a timeline to this file, for its owner alone.")] = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the steps of a run in order: side, decisions and their reasons, costs, time, energy, labels."""
    from .trace_show import show_trace as work

    work(run, config, html=html, as_json=as_json)
