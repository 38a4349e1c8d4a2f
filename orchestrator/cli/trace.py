"""The `nearfar trace` group. As in the package itself, each command loads what it needs when it runs."""

from pathlib import Path
from typing import Annotated

import typer

from . import options

trace = typer.Typer(help="What happened in a run, on which side, why, and what it cost.", no_args_is_help=True)


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
    run: options.RunName = None,
    last: options.Last = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with a timeline to this file, for its owner alone.")] = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the steps of a run in order: side, decisions and their reasons, costs, time, energy, labels."""
    from .run_choice import RunChoice
    from .trace_show import show_trace as work

    work(RunChoice(run, last), config, html=html, as_json=as_json)


@trace.command("blame")
def blame_run(
    run: options.RunName = None,
    last: options.Last = False,
    expected: Annotated[str | None, typer.Option(help="The right answer; that of --reference unless given.")] = None,
    reference: Annotated[str | None, typer.Option(help="A run of the same task that went well; its calls are the right ones.")] = None,
    corrector: Annotated[str | None, typer.Option(help="Name of an agent that says what each agent should have done.")] = None,
    ask_far: Annotated[
        bool, typer.Option("--ask-far", help="Ask far agents, too, what they would have said behind a correction, at their price.")
    ] = False,
    near: options.Near = None,
    far: options.Far = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Find the earliest step of a failed run whose correction makes it succeed. No tool is run: recorded results stand for them."""
    from .run_choice import RunChoice
    from .trace_blame import Asked
    from .trace_blame import blame_run as work

    selection = options.Selection(config, near, far, None, None, False, None)
    work(RunChoice(run, last), Asked(expected, reference, corrector, ask_far), selection, as_json=as_json)
