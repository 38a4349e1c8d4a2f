"""The pictures of a simulation, drawn by matplotlib: the router between its references, and a budget over time."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ....protocols import Side
from ..study.figures import INK, Picture, blank, finish, require_matplotlib
from .online import Online
from .simulation import Served, Simulation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

_ROUTER: Final = "#0072b2"
_POLICY: Final = "#d55e00"
_ORACLE: Final = "#009e73"
_CHANCE: Final = "#7f7f7f"
_AGENTS: Final = ("#e69f00", "#cc79a7", "#56b4e9", "#b8a500", "#8c564b")
"""With the colours above, those of Okabe and Ito, which are told apart by colour-blind readers too."""
_MARKS: Final = {Side.NEAR: "oPXp", Side.FAR: "sDv^"}
_MILLE: Final = 1000
_LONGEST_NAME: Final = 28

Place = Callable[[Served], float]
"""How far to the right something is drawn."""


def draw(simulation: Simulation, folder: Path | None = None) -> list[Picture]:
    """Draw every picture; with a folder, each is also written there as PNG and SVG. Raises `ConfigError` if matplotlib is not installed."""
    require_matplotlib()
    pictures = [_shares(simulation, folder)]
    if simulation.policy.dollars is not None:
        pictures.append(_dollars(simulation, folder))
    if simulation.online is not None:
        pictures.append(_budget(simulation.online, folder))
    return pictures


def _shares(simulation: Simulation, folder: Path | None) -> Picture:
    """Draw score against the share of far tasks."""
    figure, axes = _wide("tasks that go far", "mean score")
    _front(axes, simulation, lambda way: way.far_share.value)
    oracle = simulation.oracle_front
    axes.plot([p.far_share for p in oracle], [p.quality for p in oracle], color=_ORACLE, linestyle=":", label="the best for each share")
    _points(axes, simulation, lambda way: way.far_share.value)
    _in_per_cent(axes.xaxis)
    title = f"Score against the share of tasks that go far, {simulation.tasks:,} recorded tasks; shaded and bars: 95 % intervals"
    return _finished(figure, axes, "score-far-share", title, folder)


def _dollars(simulation: Simulation, folder: Path | None) -> Picture:
    """Draw score against dollars."""
    figure, axes = _wide("US dollars per 1,000 tasks", "mean score")

    def place(way: Served) -> float:
        return way.dollars.value * _MILLE if way.dollars is not None else 0.0

    _front(axes, simulation, place)
    _points(axes, simulation, place)
    title = f"Score against dollars, {simulation.tasks:,} recorded tasks; shaded and bars: 95 % intervals"
    return _finished(figure, axes, "score-dollars", title, folder)


def _budget(online: Online, folder: Path | None) -> Picture:
    """Draw the running share of far tasks over the stream."""
    figure, axes = _wide("task of the stream", f"of the last {online.window:,} tasks, went far")
    tasks = range(online.window, online.window + len(online.running))
    low, high = online.target - online.tolerance, online.target + online.tolerance
    axes.axhspan(low, high, color=_ORACLE, alpha=0.15, linewidth=0, label=f"{online.tolerance * 100:.0f} points about it")
    axes.axhline(online.target, color=_ORACLE, linewidth=1, linestyle="--", label=f"target, {online.target:.0%}")
    axes.plot(tasks, online.running, color=_ROUTER, linewidth=1.2, label="running share")
    axes.set_xlim(left=0)
    axes.set_ylim(max(0.0, min(online.running) - 0.1), min(1.0, max(online.running) + 0.1))
    _in_per_cent(axes.yaxis)
    title = f"The share of far tasks, of the last {online.window:,} after each task, while the router holds it at {online.target:.0%}"
    return _finished(figure, axes, "budget", title, folder, is_score=False)


def _front(axes: "Axes", simulation: Simulation, place: Place) -> None:
    """Draw the router under all thresholds, and chance between the same two ends."""
    front = simulation.front
    across = [place(way) for way in front]
    axes.fill_between(across, [way.score.low for way in front], [way.score.high for way in front], color=_ROUTER, alpha=0.15, linewidth=0)
    axes.plot(across, [way.score.value for way in front], color=_ROUTER, marker=".", linewidth=1.6, label="the router, by threshold")
    ends = [front[0], front[-1]]
    axes.plot([place(way) for way in ends], [way.score.value for way in ends], color=_CHANCE, linestyle="--", label="drawn by lot")


def _points(axes: "Axes", simulation: Simulation, place: Place) -> None:
    """Draw the policy, its share drawn by lot, the single agents, and the oracle."""
    _point(axes, simulation.policy, place, name="this policy", mark="*", colour=_POLICY, is_main=True)
    _point(axes, simulation.random, place, name="the same share by lot", mark="x", colour=_CHANCE)
    sides = [simulation.sides[way.name] for way in simulation.singles]
    for number, (way, side) in enumerate(zip(simulation.singles, sides, strict=True)):
        mark = _MARKS[side][sides[:number].count(side) % len(_MARKS[side])]
        _point(axes, way, place, name=f"{_short(way.name)} ({side})", mark=mark, colour=_AGENTS[number % len(_AGENTS)])
    _point(axes, simulation.oracle, place, name="best agent per task", mark="^", colour=_ORACLE)


def _point(axes: "Axes", way: Served, place: Place, *, name: str, mark: str, colour: str, is_main: bool = False) -> None:
    score = way.score
    axes.errorbar(
        place(way),
        score.value,
        yerr=[[max(0.0, score.value - score.low)], [max(0.0, score.high - score.value)]],
        linestyle="",
        marker=mark,
        markersize=13 if is_main else 7,
        color=colour,
        elinewidth=1,
        capsize=2,
        label=f"{name}: {score.value:.1%}",
        zorder=4 if is_main else 3,
    )


def _wide(across: str, up: str) -> "tuple[Figure, Axes]":
    """Return a figure with room for a legend at its right."""
    figure, axes = blank(across, up)
    figure.set_size_inches(9.5, 4.8)
    return figure, axes


def _finished(figure: "Figure", axes: "Axes", name: str, title: str, folder: Path | None, *, is_score: bool = True) -> Picture:
    if is_score:
        _in_per_cent(axes.yaxis)
    axes.set_axisbelow(True)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8, labelcolor=INK, framealpha=0)
    return finish(figure, name, title, folder)


def _in_per_cent(axis: "Axis") -> None:
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(xmax=1, decimals=None))


def _short(name: str) -> str:
    """Return the end of a long name, which is what tells models apart."""
    return name if len(name) <= _LONGEST_NAME else f"…{name[-_LONGEST_NAME + 1 :]}"
