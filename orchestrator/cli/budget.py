"""The `nearfar budget` group: what was spent. As in the package itself, each command loads what it needs when it runs."""

from typing import Annotated

import typer

from . import options

budget = typer.Typer(help="What was spent, what is reserved for calls under way, and what may be spent.", no_args_is_help=True)


@budget.command("show")
def show_budgets(config: options.Config = None, as_json: options.AsJson = False) -> None:
    """Print what the day, each user and each session have spent of their limits, with what is reserved for calls under way."""
    from .budget_book import show_budgets as run

    run(config, as_json=as_json)


@budget.command("reset")
def reset_budget(
    scope: Annotated[str, typer.Argument(help="day, user:NAME, session:NAME or task:ID.")],
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Forget what was spent in a scope; calls under way are counted when they end."""
    from .budget_book import reset_budget as run

    run(scope, config, as_json=as_json)
