"""The `nearfar cache` group: what the cache holds and saves. As in the package itself, each command loads what it needs when it runs."""

from pathlib import Path
from typing import Annotated

import typer

from . import options

cache = typer.Typer(help="What the cache of answers and plans holds, saves and gets wrong.", no_args_is_help=True)


@cache.command("stats")
def show_statistics(config: options.Config = None, as_json: options.AsJson = False) -> None:
    """Print hits, what they saved, and how many of those in other words are wrong, by category."""
    from .cache_file import show_statistics as run

    run(config, as_json=as_json)


@cache.command("clear")
def clear_cache(config: options.Config = None, as_json: options.AsJson = False) -> None:
    """Remove all answers and plans, so that they are in no file any more; what was counted and judged stays."""
    from .cache_file import clear_cache as run

    run(config, as_json=as_json)


@cache.command("calibrate")
def calibrate_cache(
    pairs: Annotated[Path, typer.Argument(help='JSON lines: {"asked": "...", "stored": "...", "is_same": true}.')],
    budget: Annotated[
        float | None, typer.Option(min=0.0001, max=0.9999, help="Share of hits that may be wrong; [cache] false_hit_budget unless given.")
    ] = None,
    learn: Annotated[str | None, typer.Option(help="Keep the judgements for this category, so that its threshold follows them.")] = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Find the threshold that holds a false-hit budget, from pairs of questions that people judged."""
    from .cache_file import calibrate_cache as run

    run(pairs, config, budget=budget, learn=learn, as_json=as_json)
