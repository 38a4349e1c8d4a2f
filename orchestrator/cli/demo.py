"""`nearfar demo`."""

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ...protocols import ConfigError, Prices, Unavailable
from ..compose import reference_price
from ..demo.comparison import STRATEGIES, Row, demo_hybrid, demo_tasks, findings, solve
from ..demo.report import render
from ..hybrid import Hybrid
from ..policy import Strategy
from ..worlds.lookup import SearchTask, SearchWorld
from .console import execute, notes, output, print_json
from .selection import world_tool


def run_demo(*, tasks: int, seed: int, report: Path, as_json: bool) -> None:
    """Compare the strategies on unseen tasks; print the table and write the report."""

    async def work() -> None:
        if report.is_dir() or not report.absolute().parent.is_dir():
            raise ConfigError(f"{report} is a folder or lies in none", hint="--report names a file in a folder that exists")
        world = SearchWorld(seed, "test")
        reference_model, reference = reference_price()
        notes.print("[dim]starting the near model here and the far one behind a gateway process ...[/dim]")
        async with demo_hybrid(world_tool(world)) as hybrid:
            rows = await _compare(hybrid, demo_tasks(world, tasks), reference)
        report.write_text(render(rows, reference, reference_model), encoding="utf-8")
        _refuse_total_failure(rows)
        if as_json:
            print_json({"strategies": [row.summary() for row in rows], "findings": findings(rows), "report": str(report)})
        else:
            _print(rows, reference, reference_model, report)

    execute(work(), as_json=as_json)


def _refuse_total_failure(rows: Sequence[Row]) -> None:
    """A row without a single answer shows a broken installation and not a weak model."""
    for row in rows:
        if row.answered == 0:
            raise Unavailable(f"every task of strategy {row.strategy} failed: {row.outcomes[0].answer}", hint="see `nearfar doctor`")


async def _compare(hybrid: Hybrid, tasks: Sequence[SearchTask], reference: Prices) -> list[Row]:
    columns = (
        TextColumn("{task.description:>8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=notes) as progress:
        return [await _row(hybrid, tasks, strategy, reference, progress) for strategy in STRATEGIES]


async def _row(hybrid: Hybrid, tasks: Sequence[SearchTask], strategy: Strategy, reference: Prices, progress: Progress) -> Row:
    line = progress.add_task(strategy.value, total=len(tasks), state="")
    outcomes = []
    for task in tasks:
        outcomes.append(await solve(hybrid, task, strategy, reference))
        right = sum(outcome.correct for outcome in outcomes)
        far = sum(outcome.far_calls for outcome in outcomes)
        progress.update(line, advance=1, state=f"{right} right, {far} far calls")
    return Row(strategy=strategy, outcomes=tuple(outcomes))


def _print(rows: Sequence[Row], reference: Prices, reference_model: str, report: Path) -> None:
    table = Table(title=f"{len(rows[0].outcomes)} unseen search tasks, 1 to 4 hops", box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for title in ("strategy", "score", "95 %", "far calls", "tokens near", "tokens far", "dollars*", "time"):
        table.add_column(title, justify="left" if title == "strategy" else "right", no_wrap=True)
    for row in rows:
        low, high = row.interval
        table.add_row(
            row.strategy.value,
            f"{row.score:.1%}",
            f"{low:.0%}-{high:.0%}",
            f"{row.far_calls:,}",
            f"{row.near_tokens:,}",
            f"{row.far_tokens:,}",
            f"${row.dollars:.4f}",
            f"{row.seconds:.1f} s",
        )
    output.print(table)
    figures = findings(rows)
    kept, spent = figures["cascade_score_share"], figures["cascade_far_token_share"]
    gap = figures["far_minus_near_points"]
    output.print(
        f"far - near: {gap:+.0f} points; the cascade keeps {kept:.0%} of far's score with {spent:.0%} of its tokens", soft_wrap=True
    )
    price = f"{reference_model}'s price (${reference.input} in, ${reference.output} out per million, {reference.as_of})"
    output.print(f"[dim]* far tokens at {price}; both models ran here and cost nothing[/dim]", soft_wrap=True)
    output.print(f"report: {report}")
