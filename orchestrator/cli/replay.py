"""`nearfar policy simulate` and `nearfar policy calibrate`."""

from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ...protocols import Sensitivity
from ..lab.replay.calibration import Calibration, calibrate
from ..lab.replay.curve import CurveFigures, Interval
from ..lab.replay.replayed import replay
from ..lab.replay.report import write_report
from ..lab.replay.simulation import Served, Simulation, simulate
from ..lab.study.figures import require_matplotlib
from ..task.modes import Mode, Strategy
from ..task.task import Policy
from .configuration import read_config
from .console import notes, output, print_json, reported, warn
from .traces import Recorded, chosen_embedder, progress_shown, recorded_traces

_FREE = Policy(strategy=Strategy.ROUTE, mode=Mode.AUTO, sensitivity=Sensitivity.PUBLIC)
"""Where no configuration names another: the router places every task."""


def simulate_policy(recorded: Recorded, *, far_share: float | None, out: Path, as_json: bool) -> None:
    """Replay recorded outcomes through the router, and write a page with pictures."""
    with reported(as_json=as_json):
        require_matplotlib()
        traces, sides = recorded_traces(recorded)
        with progress_shown() as progress:
            found = simulate(
                traces,
                _policy(recorded),
                sides=sides,
                embedder=chosen_embedder(recorded),
                seed=recorded.seed,
                far_share=far_share,
                progress=progress,
            )
            progress("drawing")
            page = write_report(found, out)
        for warning in found.warnings:
            warn(warning)
        if as_json:
            print_json({"report": str(page), **found.summary()})
        else:
            _show(found)
            output.print(f"report: {page}", soft_wrap=True)


def calibrate_policy(recorded: Recorded, *, budget: str | None, quality: str | None, as_json: bool) -> None:
    """Print the threshold for a budget or a quality, and what it gives on tasks that it was not chosen on."""
    with reported(as_json=as_json):
        traces, sides = recorded_traces(recorded)
        with progress_shown() as progress:
            replayed = replay(
                traces, _policy(recorded), sides=sides, embedder=chosen_embedder(recorded), seed=recorded.seed, progress=progress
            )
            found = calibrate(replayed, budget=budget, quality=quality, seed=recorded.seed)
        if as_json:
            print_json(found.summary())
        else:
            _show_calibration(found)


def _policy(recorded: Recorded) -> Policy:
    config = read_config(recorded.config)
    return _FREE if config is None else config.policy


def _show(found: Simulation) -> None:
    table = Table("served by", "far", "score", "dollars / 1000", box=SIMPLE_HEAD, pad_edge=False)
    for way in (found.policy, found.random, *found.singles, found.oracle):
        table.add_row(*_row(way), style="bold" if way is found.policy else None)
    output.print(table)
    if found.figures is not None:
        notes.print(_in_words(found.figures), style="dim", soft_wrap=True)


def _row(way: Served) -> tuple[str, ...]:
    dollars = "unknown" if way.dollars is None else f"{1000 * way.dollars.value:.3f}"
    return (way.name, f"{way.far_share.value:.1%}", _with_interval(way.score), dollars)


def _in_words(figures: CurveFigures) -> str:
    recovered = figures.recovered
    half, most = figures.far_share_for_half.value, figures.far_share_for_most.value
    return (
        f"over all far shares the router recovers {recovered.value:.3f} [{recovered.low:.3f}, {recovered.high:.3f}] of the gap "
        f"between the sides; chance recovers 0.5. Half of it takes {half:.0%} far, four fifths {most:.0%}"
    )


def _with_interval(figure: Interval) -> str:
    return f"{figure.value:.1%} [{figure.low:.1%}, {figure.high:.1%}]"


def _show_calibration(found: Calibration) -> None:
    output.print(found.toml.rstrip(), soft_wrap=True)
    notes.print(f"wanted: {found.target}", style="dim", soft_wrap=True)
    notes.print("on tasks that the threshold was not chosen on:", style="dim")
    table = Table("", "far", "score", "dollars / 1000", box=SIMPLE_HEAD, pad_edge=False)
    table.add_row(*_row(found.expected))
    notes.print(table)
    notes.print(f"the part that missed it most: by {found.worst_miss:+.4g}", style="dim", soft_wrap=True)
    for note in found.notes:
        notes.print(note, style="dim", soft_wrap=True)
