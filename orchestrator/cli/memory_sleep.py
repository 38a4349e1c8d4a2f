"""The `nearfar memory sleep` group: consolidating what is remembered, and taking it back."""

from typing import Annotated

import typer

from . import options
from .memory import Prefix, Store

sleep = typer.Typer(help="Sum up, merge and correct what is remembered, in batches that can be taken back.", invoke_without_command=True)

BatchName = Annotated[str, typer.Argument(metavar="BATCH", help="As `nearfar memory sleep list` names it.")]


@sleep.callback()
def run(
    context: typer.Context,
    now: Annotated[bool, typer.Option("--now", help="Also on battery, and where nobody knows whether this device is charged.")] = False,
    near: options.Near = None,
    namespace: Prefix = "",
    store: Store = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Sum up, merge and correct what is remembered while this device is being charged. What it does can be taken back until confirmed."""
    if context.invoked_subcommand is not None:
        return
    from .memory_sleeping import consolidate

    consolidate(options.StoreChoice(store, config), namespace, near, now=now, as_json=as_json)


@sleep.command("list")
def list_batches(store: Store = None, config: options.Config = None, as_json: options.AsJson = False) -> None:
    """List what was consolidated, the last first."""
    from .memory_sleeping import list_batches as show

    show(options.StoreChoice(store, config), as_json=as_json)


@sleep.command("revert")
def revert(batch: BatchName, store: Store = None, config: options.Config = None, as_json: options.AsJson = False) -> None:
    """Take a batch back: what it made goes, what it retired is true again. It is not made again."""
    from .memory_sleeping import revert_batch

    revert_batch(batch, options.StoreChoice(store, config), as_json=as_json)


@sleep.command("confirm")
def confirm(batch: BatchName, store: Store = None, config: options.Config = None, as_json: options.AsJson = False) -> None:
    """Keep a batch for good. What it was made of stays, too."""
    from .memory_sleeping import confirm_batch

    confirm_batch(batch, options.StoreChoice(store, config), as_json=as_json)
