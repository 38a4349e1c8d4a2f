"""The `nearfar prices` group: what models cost. As in the package itself, each command loads what it needs when it runs."""

from pathlib import Path
from typing import Annotated

import typer

from . import options

prices = typer.Typer(help="What the models of providers cost, as nearfar knows it.", no_args_is_help=True)


@prices.command("show")
def show_prices(
    prefix: Annotated[str, typer.Argument(help="Only models whose name begins so.")] = "", as_json: options.AsJson = False
) -> None:
    """Print prices in dollars per million tokens, with the day on which each held."""
    from .price_table import show_prices as run

    run(prefix, as_json=as_json)


@prices.command("import")
def import_prices(
    file: Annotated[Path, typer.Argument(help="A copy of LiteLLM's model_prices_and_context_window.json.")],
    as_of: Annotated[str, typer.Option(help="The day on which the figures held, as YYYY-MM-DD.")],
    source: Annotated[str, typer.Option(help="Where the file comes from.")] = "LiteLLM's model_prices_and_context_window.json",
    as_json: options.AsJson = False,
) -> None:
    """Keep the prices of a public table; they then stand before those that nearfar ships. Nothing is fetched from the network."""
    from .price_table import import_prices as run

    run(file, source=source, as_of=as_of, as_json=as_json)
