"""`nearfar policy simulate | calibrate`: replay recorded outcomes through the router."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.text import Text

from ...protocols import Sensitivity
from ..lab.replay.calibration import Calibration
from ..lab.replay.calibration import calibrate as find_threshold
from ..lab.replay.curve import CurveFigures, Interval
from ..lab.replay.replayed import replay
from ..lab.replay.report import write_report
from ..lab.replay.simulation import Served, Simulation
from ..lab.replay.simulation import simulate as simulate_traces
from ..lab.study.figures import require_matplotlib
from ..task.modes import Mode, Strategy
from ..task.policy import Policy
from . import options, recorded
from .printing import Line, Note, show, styled, table, warn
from .running import report_errors

_FREE: Final = Policy(strategy=Strategy.ROUTE, mode=Mode.AUTO, sensitivity=Sensitivity.PUBLIC)
"""The policy if no configuration names another: the router places every task."""
_COLUMNS: Final = ("far", "score", "dollars / 1000")


def simulate(
    traces: recorded.Traces,
    out: Annotated[Path, typer.Option(help="Folder for the page and its pictures.")] = Path("simulation"),
    far_share: Annotated[float | None, typer.Option(min=0.001, max=0.999, help="Keep the share of far tasks at this value.")] = None,
    near_agent: recorded.NearAgents = None,
    far_agent: recorded.FarAgents = None,
    words_only: recorded.WordsOnly = False,
    seed: recorded.Seed = 0,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Replay recorded outcomes through the router, and compare it with chance, with each agent, and with an oracle."""
    chosen = recorded.Recorded(traces, near_agent or (), far_agent or (), config, embeds=not words_only, seed=seed)
    with report_errors(as_json=as_json):
        require_matplotlib()
        read, sides = chosen.read()
        with recorded.show_progress() as progress:
            found = simulate_traces(
                read, _policy(config), sides=sides, embedder=chosen.embedder(), seed=seed, far_share=far_share, progress=progress
            )
            progress("drawing")
            page = write_report(found, out)
        for warning in found.warnings:
            warn(warning)
        show({"report": str(page), **found.summary()}, _simulation_lines(found, page), as_json=as_json)


def calibrate(
    traces: recorded.Traces,
    budget: Annotated[str | None, typer.Option(help="Limit for the far side: 0.3 or 30% of the tasks, or $0.002 per task.")] = None,
    quality: Annotated[str | None, typer.Option(help="Score to keep: 95% of the far side's score, or a score such as 0.82.")] = None,
    near_agent: recorded.NearAgents = None,
    far_agent: recorded.FarAgents = None,
    words_only: recorded.WordsOnly = False,
    seed: recorded.Seed = 0,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Find the router's threshold for a budget or a quality, and report what it gives on tasks held out from the search."""
    chosen = recorded.Recorded(traces, near_agent or (), far_agent or (), config, embeds=not words_only, seed=seed)
    with report_errors(as_json=as_json):
        read, sides = chosen.read()
        with recorded.show_progress() as progress:
            replayed = replay(read, _policy(config), sides=sides, embedder=chosen.embedder(), seed=seed, progress=progress)
            found = find_threshold(replayed, budget=budget, quality=quality, seed=seed)
        show(found.summary(), _calibration_lines(found), as_json=as_json)


def _policy(path: Path | None) -> Policy:
    config = options.read_config(path)
    return _FREE if config is None else config.policy


def _simulation_lines(found: Simulation, page: Path) -> Iterator[Line]:
    ways = (found.policy, found.random, *found.singles, found.oracle)
    yield table(("served by", *_COLUMNS), (styled(_cells(way), "bold" if way is found.policy else "") for way in ways))
    if found.figures is not None:
        yield Note(_recovered_text(found.figures))
    yield f"report: {page}"


def _calibration_lines(found: Calibration) -> Iterator[Line]:
    yield found.toml.rstrip()
    yield Note(f"target: {found.target}")
    yield Note("on tasks held out from the search for the threshold:")
    yield Note(table(("", *_COLUMNS), [_cells(found.expected)]), style="")
    yield Note(f"largest miss of the target on a part of them: {found.worst_miss:+.4g}")
    for note in found.notes:
        yield Note(Text(note))


def _cells(way: Served) -> tuple[str, ...]:
    dollars = "unknown" if way.dollars is None else f"{1000 * way.dollars.value:.3f}"
    return (way.name, f"{way.far_share.value:.1%}", _interval_text(way.score), dollars)


def _interval_text(figure: Interval) -> str:
    return f"{figure.value:.1%} [{figure.low:.1%}, {figure.high:.1%}]"


def _recovered_text(figures: CurveFigures) -> str:
    recovered = figures.recovered
    half, most = figures.far_share_for_half.value, figures.far_share_for_most.value
    return (
        f"over all far shares the router recovers {recovered.value:.3f} [{recovered.low:.3f}, {recovered.high:.3f}] of the gap "
        f"between the sides; chance recovers 0.5. Half of the gap needs {half:.0%} far, four fifths {most:.0%}"
    )
