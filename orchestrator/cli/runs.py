"""The `nearfar runs` group: tasks that outlive their process. As in the package itself, each command loads what it needs when it runs."""

from typing import Annotated

import typer

from . import options

runs = typer.Typer(help="Look at durable runs, go on with them, end them.", no_args_is_help=True)

UserName = Annotated[str, typer.Option(help="On whose behalf it was begun.")]


@runs.command("list")
def list_runs(
    state: Annotated[str | None, typer.Option(help="running, waiting, done, failed or cancelled.")] = None,
    user: Annotated[str | None, typer.Option(help="Of this user alone.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="So many, the newest ones.")] = 20,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the newest runs and how far they have come."""
    from .runs_table import list_runs as run

    run(config, state=state, user=user, limit=limit, as_json=as_json)


@runs.command("show")
def show_run(
    run: options.RunName = None, last: options.Last = False, config: options.Config = None, as_json: options.AsJson = False
) -> None:
    """Print what a run was asked, how far it has come, what was tried, and what it waits for."""
    from .run_choice import RunChoice
    from .runs_table import show_run as work

    work(RunChoice(run, last), config, as_json=as_json)


@runs.command("resume")
def resume_run(
    run: options.RunName = None,
    last: options.Last = False,
    every: Annotated[bool, typer.Option("--all", help="All whose process has died.")] = False,
    approve: Annotated[list[str] | None, typer.Option(help="Say yes to a call that it waits for; may be repeated.")] = None,
    deny: Annotated[list[str] | None, typer.Option(help="Say no to it; may be repeated.")] = None,
    user: UserName = "",
    near: options.Near = None,
    far: options.Far = None,
    tools: options.Tools = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Go on with a run where it stopped; of one that is done, print the answer."""
    from .run_choice import RunChoice
    from .runs_resume import Answers, resume_all, resume_run

    selection = options.Selection(config, near, far, None, None, False, tools)
    if every:
        resume_all(selection, RunChoice(run, last), as_json=as_json)
    else:
        resume_run(RunChoice(run, last), selection, Answers(tuple(approve or ()), tuple(deny or ())), user=user, as_json=as_json)


@runs.command("forget")
def forget_run(
    run: options.RunName = None, last: options.Last = False, config: options.Config = None, as_json: options.AsJson = False
) -> None:
    """Remove everything that is kept of a run: its task, steps and result, its trace, what left for it, and what it has spent."""
    from .run_choice import RunChoice
    from .runs_table import forget_run as work

    work(RunChoice(run, last), config, as_json=as_json)


@runs.command("cancel")
def cancel_run(
    run: options.RunName = None, last: options.Last = False, config: options.Config = None, as_json: options.AsJson = False
) -> None:
    """End a run in whatever process it is: at once, or when its tools are done that are at work."""
    from .run_choice import RunChoice
    from .runs_table import cancel_run as work

    work(RunChoice(run, last), config, as_json=as_json)
