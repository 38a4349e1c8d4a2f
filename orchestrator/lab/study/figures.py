"""The pictures of a sweep, drawn by matplotlib: as files, and as SVG that stands in a page and takes the page's colour of text."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ....protocols import ConfigError
from ...task.modes import Strategy
from . import statistics
from .outcomes import Outcomes
from .statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK: Final = "#010203"
"""Colour of text and lines; in a page it becomes the page's own colour."""
_COLOURS: Final = {
    Strategy.DEVICE: "#2a9d8f",
    Strategy.CLOUD: "#4f7cac",
    Strategy.CASCADE: "#e76f51",
    Strategy.ROUTE: "#f4a261",
    Strategy.PEVR: "#b5179e",
    Strategy.EVA: "#e09f00",
}
_OTHER: Final = "#8d99ae"
COSTS: Final = {
    "dollars": "US dollars per task",
    "seconds": "seconds per task",
    "joules": "joules per task on the device (estimated)",
    "peak_kv_bytes": "peak KV cache of the device, bytes",
}


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn figure."""

    name: str
    title: str
    """Description of the picture, for readers who do not see it."""
    svg: str
    """To be put into a page as it stands."""


def draw_all(outcomes: Outcomes, world: str, folder: Path | None = None) -> list[Picture]:
    """Draw every picture of a world; with a folder, each is also written there as PNG and SVG.

    Raises `ConfigError` where matplotlib is not installed.
    """
    require_matplotlib()
    pictures = [_pareto(outcomes, world, cost) for cost in COSTS]
    pictures += [_interventions(outcomes, world), _context(outcomes, world)]
    return [finish(figure, name, title, folder) for figure, name, title in filter(None, pictures)]


def draw_regret(curve: Sequence[float], *, against: str, folder: Path | None = None) -> Picture:
    """Draw the regret of `auto` against a fixed configuration over a stream of tasks."""
    require_matplotlib()
    figure, axes = blank("task of the mixed stream", f"perfect answers, less dollars, behind {against}")
    axes.plot(range(1, len(curve) + 1), curve, color=_COLOURS[Strategy.PEVR])
    axes.axhline(0, color=INK, linewidth=0.5)
    title = f"Regret of auto against {against}, in hindsight the most useful single configuration; below zero auto is ahead"
    return finish(figure, "regret", title, folder)


def require_matplotlib() -> None:
    """Raise `ConfigError` where what reports are drawn with is not installed."""
    try:
        import matplotlib  # noqa: F401 - whether it is there
        import numpy  # noqa: F401
    except ImportError as error:
        raise ConfigError("reports need matplotlib and numpy", hint="pip install 'nearfar[study]'") from error


_LABEL_WIDTH: Final = 0.2
"""Width of a label in a picture, as a share of the largest cost."""
_LABEL_HEIGHT: Final = 0.04
"""Height of a label, as a share of the picture."""

_NAMED: Final = 10
"""Configurations up to which a picture has room for the names of all; of more, those on the front and either side alone are named."""

Drawn = tuple["Figure", str, str]


def _pareto(outcomes: Outcomes, world: str, cost: str) -> Drawn | None:
    """Draw score against a cost; the front is a line through the configurations that nothing beats."""
    labels = [label for label in outcomes.configurations(world) if not outcomes.is_shadow(world, label)]
    points = {
        label: (costs, score)
        for label in labels
        if (costs := outcomes.estimate(world, label, cost)) and (score := _score(outcomes, world, label))
    }
    if not points:
        return None
    figure, axes = blank(COSTS[cost], "score")
    for label, (costs, score) in points.items():
        _point(axes, outcomes, world, label, costs, score)
    middles = {label: (costs.value, score.value) for label, (costs, score) in points.items()}
    real = [label for label in points if not outcomes.first(world, label).oracle]
    front = [real[index] for index in statistics.pareto_front([middles[label] for label in real])]
    axes.plot([middles[label][0] for label in front], [middles[label][1] for label in front], color=INK, linewidth=0.8, linestyle="--")
    named = {*front, outcomes.near_alone(world), outcomes.far_alone(world)} if len(points) > _NAMED else set(points)
    _name(axes, {label: middle for label, middle in middles.items() if label in named})
    _explain_marks(axes, outcomes, world, list(points))
    return figure, f"{world}-score-{cost}", f"{world}: score against {COSTS[cost]}; dashed: the Pareto front; bars: 95 % intervals"


def _point(axes: "Axes", outcomes: Outcomes, world: str, label: str, cost: Estimate, score: Estimate) -> None:
    _, mark = _kind(outcomes, world, label)
    axes.errorbar(
        cost.value,
        score.value,
        xerr=[[max(0.0, cost.value - cost.low)], [max(0.0, cost.high - cost.value)]],
        yerr=[[max(0.0, score.value - score.low)], [max(0.0, score.high - score.value)]],
        marker=mark,
        color=colour(outcomes.first(world, label).strategy),
        markersize=6,
        elinewidth=0.8,
    )


def _name(axes: "Axes", points: dict[str, tuple[float, float]]) -> None:
    """Draw labels at their points, moved up where they would cover each other."""
    width = max(across for across, _ in points.values()) or 1.0
    bottom, top = axes.get_ylim()
    high = _LABEL_HEIGHT * (top - bottom)
    placed: list[tuple[float, float]] = []
    for label, (across, up) in sorted(points.items(), key=lambda item: item[1][1]):
        height = up
        while any(abs(across - x) < _LABEL_WIDTH * width and abs(height - y) < high for x, y in placed):
            height += high / 4
        placed.append((across, height))
        line = {"arrowstyle": "-", "color": INK, "alpha": 0.3, "linewidth": 0.5}
        axes.annotate(label, (across, up), (across + 0.015 * width, height + high / 4), fontsize=7, color=INK, arrowprops=line)
    axes.set_ylim(bottom, max([top, *(height + 2 * high for _, height in placed)]))


def _explain_marks(axes: "Axes", outcomes: Outcomes, world: str, labels: Sequence[str]) -> None:
    """Add a legend of colours and shapes."""
    from matplotlib.lines import Line2D

    marks = {outcomes.first(world, label).strategy: ("o", colour(outcomes.first(world, label).strategy)) for label in labels}
    marks |= {name: (mark, INK) for label in labels for name, mark in [_kind(outcomes, world, label)] if name}
    handles = [Line2D([], [], linestyle="", marker=mark, color=shade, markersize=5, label=name) for name, (mark, shade) in marks.items()]
    axes.legend(handles=handles, fontsize=7, labelcolor=INK, framealpha=0, loc="best")


def _kind(outcomes: Outcomes, world: str, label: str) -> tuple[str, str]:
    """Return the special kind of a configuration, empty for most, and the shape of its mark."""
    if outcomes.first(world, label).oracle:
        return "oracle", "^"
    return ("reversed", "s") if outcomes.is_reversed(world, label) else ("", "o")


def _interventions(outcomes: Outcomes, world: str) -> Drawn | None:
    """Draw how many runs had how many interventions, with the median score of each group."""
    labels = [label for label in outcomes.configurations(world) if _intervenes(outcomes, world, label)]
    if not labels:
        return None
    figure, axes = blank("interventions in a run", "runs")
    width = 0.8 / len(labels)
    for place, label in enumerate(labels):
        groups = outcomes.interventions(world, label)
        places = [group.interventions + (place - (len(labels) - 1) / 2) * width for group in groups]
        bars = axes.bar(
            places, [group.runs for group in groups], width, label=label, color=_shade(colour(outcomes.first(world, label).strategy), place)
        )
        if len(labels) <= _LABELLED:
            axes.bar_label(bars, [f"{group.median_score:.2f}" for group in groups], fontsize=6, color=INK, rotation=90, padding=2)
    _whole_numbers(axes)
    _legend(axes)
    return figure, f"{world}-interventions", f"{world}: runs by number of interventions; above each bar the median score of its runs"


_LABELLED: Final = 6
"""Configurations up to which the bars of a histogram have room for numbers."""


def _context(outcomes: Outcomes, world: str) -> Drawn | None:
    """Draw the mean context by turn."""
    supervised = [label for label in outcomes.configurations(world) if _intervenes(outcomes, world, label)]
    labels = [label for label in (outcomes.near_alone(world), outcomes.far_alone(world), *supervised) if label is not None]
    if not labels:
        return None
    figure, axes = blank("turn of the executor", "mean context in tokens")
    for place, label in enumerate(labels):
        growth = outcomes.context_growth(world, label)
        shade = _shade(colour(outcomes.first(world, label).strategy), place)
        axes.plot(range(1, len(growth) + 1), [tokens for tokens, _ in growth], label=label, color=shade, linewidth=1.2)
    _whole_numbers(axes)
    _legend(axes)
    return figure, f"{world}-context", f"{world}: how the executor's context grows, over the runs that are still going at each turn"


def colour(strategy: str) -> str:
    """Return the colour of a strategy in every picture."""
    return _COLOURS.get(Strategy(strategy), _OTHER)


def _intervenes(outcomes: Outcomes, world: str, label: str) -> bool:
    supervision = outcomes.supervision(world, label)
    return supervision is not None and not supervision.shadow and (supervision.interval is not None or bool(supervision.triggers))


def _score(outcomes: Outcomes, world: str, label: str) -> Estimate | None:
    return outcomes.estimate(world, label, "score")


def blank(across: str, up: str) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(across, color=INK)
    axes.set_ylabel(up, color=INK)
    axes.tick_params(colors=INK)
    axes.grid(visible=True, color=INK, alpha=0.12)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(INK)
    axes.patch.set_alpha(0)
    return figure, axes


def _whole_numbers(axes: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _legend(axes: "Axes") -> None:
    axes.legend(fontsize=7, labelcolor=INK, framealpha=0)


def _shade(base: str, place: int) -> str:
    """Lighten a colour by place, so that neighbours of one strategy differ slightly."""
    from matplotlib.colors import to_hex, to_rgb

    lighter = 0.13 * (place % 5)
    red, green, blue = (part + (1 - part) * lighter for part in to_rgb(base))
    return to_hex((red, green, blue))


def finish(figure: "Figure", name: str, title: str, folder: Path | None) -> Picture:
    """Convert a figure to a picture, and write its files if a folder is given."""
    import matplotlib

    safe = re.sub(r"[^\w.-]+", "_", name)
    text = io.StringIO()
    # Text stays text, and the same data gives the same bytes.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": safe, "font.family": "sans-serif"}):
        figure.patch.set_alpha(0)
        figure.savefig(text, format="svg", metadata={"Date": None})
        if folder is not None:
            (folder / f"{safe}.svg").write_text(text.getvalue().replace(INK, "#000000"), encoding="utf-8")
            figure.patch.set_alpha(1)
            figure.savefig(folder / f"{safe}.png", dpi=150)
    return Picture(safe, title, _inline(text.getvalue(), title))


def _inline(svg: str, title: str) -> str:
    """Return the drawing alone, with a title for screen readers, in the page's colour of text."""
    from html import escape

    start = svg.index("<svg")
    named = svg[start:].replace("<svg", f'<svg role="img" aria-label="{escape(title, quote=True)}"', 1)
    without_metadata = re.sub(r"<metadata>.*?</metadata>", "", named, flags=re.DOTALL)
    return without_metadata.replace(INK, "currentColor")
