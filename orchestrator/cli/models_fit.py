"""`nearfar models fit`: which model fits into the memory of this device, with which context."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ..compose.agents import model_fits
from .console import output, print_json, reported

if TYPE_CHECKING:
    from ..compose.agents import ModelFit

_COLOURS = {"fits": "green", "tight": "yellow", "too large": "red", "unknown": "yellow"}


def show_fits(name: str | None, *, context: int | None, parallel: int, as_json: bool) -> None:
    """Print what the model, or each one on this device, takes with a few contexts, and whether that is free."""
    with reported(as_json=as_json):
        found = model_fits(name, context=context, parallel=parallel)
    if as_json:
        free = {"free_bytes": found.free_bytes, "parallel": parallel}
        print_json({**free, "fits": [_described(fit) for fit in found.fits], "largest_contexts": found.largest_contexts})
        return
    free_memory = "an unknown amount" if found.free_bytes is None else _size(found.free_bytes)
    output.print(f"{free_memory} of memory is free; each model is loaded for {parallel} steps side by side")
    table = Table(box=SIMPLE_HEAD)
    table.add_column("model", overflow="fold")
    for column in ("context", "weights", "cache", "the rest", "all", ""):
        table.add_column(column, justify="right", no_wrap=True)
    for fit in found.fits:
        parts = fit.footprint
        sizes = (parts.weights, parts.cache, parts.total - parts.weights - parts.cache, parts.total)
        verdict = Text(fit.verdict, style=_COLOURS[fit.verdict])
        table.add_row(fit.name, str(fit.context_tokens), *map(_size, sizes), verdict)
    output.print(table)
    for model, tokens in found.largest_contexts.items():
        output.print(f"{model}: " + _largest(tokens, found.free_bytes), soft_wrap=True)


def _largest(tokens: int | None, free: int | None) -> str:
    if free is None:
        return "unknown whether it fits"
    return f"at most a context of {tokens} tokens" if tokens else "does not fit"


def _described(fit: "ModelFit") -> dict[str, object]:
    sizes = {f"{part}_bytes": size for part, size in asdict(fit.footprint).items()}
    return {"name": fit.name, "context_tokens": fit.context_tokens, **sizes, "bytes": fit.footprint.total, "verdict": fit.verdict}


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
