"""The `nearfar models` group: the models of this device. As in the package itself, each command loads what it needs when it runs."""

import typer

from . import options

models = typer.Typer(help="The models of this device: list them, fetch them, check them, and see which fit.", no_args_is_help=True)


@models.callback()
def _group() -> None:
    """Keeps `models` a group, whatever the number of its commands."""


@models.command("list")
def list_models(as_json: options.AsJson = False) -> None:
    """List the models that `[near] model` can name."""
    from .models_store import list_models as run

    run(as_json=as_json)
