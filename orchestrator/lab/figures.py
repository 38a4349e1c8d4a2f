"""Pictures of sweeps and simulations, drawn by matplotlib: as files, and as SVG that takes the colour of text of its page."""

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ...protocols import ConfigError, Side
from ...protocols.system import replace_text, replacing
from ..task.modes import Strategy
from .replay.replayed import Online
from .replay.simulation import Served, Simulation
from .statistics import IntervalEstimate, pareto_front
from .study.outcomes import Outcomes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

INK: Final = "#010203"
"""Colour of text and lines; in a page it becomes the page's own colour."""


class Scale(NamedTuple):
    """The axis of a cost."""

    title: str
    factor: float
    """Figures are multiplied by it."""


COSTS: Final = {
    "dollars": Scale("US dollars for 1,000 tasks", 1000),
    "seconds": Scale("seconds for a task", 1),
    "joules": Scale("joules for 1,000 tasks on the device (estimated)", 1000),
    "peak_kv_bytes": Scale("largest KV cache on the device, KiB", 1 / 1024),
}
_COLOURS: Final = {
    Strategy.DEVICE: "#2a9d8f",
    Strategy.CLOUD: "#4f7cac",
    Strategy.CASCADE: "#e76f51",
    Strategy.ROUTE: "#f4a261",
    Strategy.PEVR: "#b5179e",
    Strategy.EVA: "#e09f00",
}
_OTHER: Final = "#8d99ae"
_NAMED: Final = 10
"""Configurations up to which a picture has room for the names of all; of more, those on the front and either side alone are named."""
_LABELLED: Final = 6
"""Configurations up to which the bars of a histogram have room for numbers."""
_ROUTER: Final = "#0072b2"
_POLICY: Final = "#d55e00"
_ORACLE: Final = "#009e73"
_CHANCE: Final = "#7f7f7f"
_AGENTS: Final = ("#e69f00", "#cc79a7", "#56b4e9", "#b8a500", "#8c564b")
"""With the colours above, those of Okabe and Ito, which are told apart by colour-blind readers too."""
_MARKS: Final = {Side.NEAR: "oPXp", Side.FAR: "sDv^"}
_MILLE: Final = 1000
_LONGEST_NAME: Final = 28
Drawn = tuple["Figure", str, str]
Place = Callable[[Served], float]
"""How far to the right something is drawn."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn figure."""

    name: str
    title: str
    """Description of the picture, for readers who do not see it."""
    svg: str
    """To be put into a page as it stands."""


def require_matplotlib() -> None:
    """Raise `ConfigError` where what reports are drawn with is not installed."""
    try:
        import matplotlib  # noqa: F401 - whether it is there
        import numpy  # noqa: F401
    except ImportError as error:
        raise ConfigError("reports need matplotlib and numpy", hint="pip install 'nearfar[study]'") from error


def draw_world(outcomes: Outcomes, world: str, folder: Path | None = None) -> list[Picture]:
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


def _pareto(outcomes: Outcomes, world: str, cost: str) -> Drawn | None:
    """Draw score against a cost; the front is a line through the configurations that nothing beats."""
    labels = [label for label in outcomes.configurations(world) if not outcomes.is_shadow(world, label)]
    scale = COSTS[cost]
    points = {
        label: (_scaled(costs, scale.factor), score)
        for label in labels
        if (costs := outcomes.estimate(world, label, cost)) and (score := _score(outcomes, world, label))
    }
    if not points:
        return None
    figure, axes = blank(scale.title, "score (better is higher)")
    _in_per_cent(axes.yaxis)
    for label, (costs, score) in points.items():
        _point(axes, outcomes, world, label, costs, score)
    middles = {label: (costs.value, score.value) for label, (costs, score) in points.items()}
    real = [label for label in points if not outcomes.first(world, label).oracle]
    front = [real[index] for index in pareto_front([middles[label] for label in real])]
    axes.plot([middles[label][0] for label in front], [middles[label][1] for label in front], color=INK, linewidth=0.8, linestyle="--")
    axes.set_xlim(left=-0.04 * max(across for across, _ in middles.values()))
    named = {*front, outcomes.near_alone(world), outcomes.far_alone(world)} if len(points) > _NAMED else set(points)
    _explain_marks(figure, outcomes, world, list(points), all_named=len(named) == len(points))
    place_names(axes, {_short_label(label, points): middles[label] for label in points if label in named}, list(points.values()))
    return figure, f"{world}-score-{cost}", f"{world}: score against {scale.title}; dashed: the Pareto front; bars: 95 % intervals"


def _scaled(estimate: IntervalEstimate, factor: float) -> IntervalEstimate:
    return estimate.model_copy(update={name: getattr(estimate, name) * factor for name in ("value", "low", "high")})


def _short_label(label: str, labels: Iterable[str]) -> str:
    """Return a label without its knobs, where no other one of them begins the same."""
    short = label.partition(":")[0]
    return short if sum(other.partition(":")[0] == short for other in labels) == 1 else label


def _point(axes: "Axes", outcomes: Outcomes, world: str, label: str, cost: IntervalEstimate, score: IntervalEstimate) -> None:
    _, mark = _kind(outcomes, world, label)
    axes.errorbar(
        cost.value,
        score.value,
        xerr=_bar(cost),
        yerr=_bar(score),
        marker=mark,
        color=colour(outcomes.first(world, label).strategy),
        markersize=7,
        elinewidth=0.8,
        alpha=0.9,
    )


def place_names(
    axes: "Axes", points: Mapping[str, tuple[float, float]], marks: Sequence[tuple[IntervalEstimate, IntervalEstimate]]
) -> None:
    """Draw names next to their points, each at the nearest place where it covers no mark, no bar and no other name."""
    figure = axes.get_figure(root=True)
    assert figure is not None, "the axes stand in a figure"
    figure.draw_without_rendering()
    frame = axes.get_window_extent()
    taken = [box for across, up in marks for box in _mark_boxes(axes, across, up)]
    for name, point in sorted(points.items(), key=lambda item: item[1][1]):
        line = {"arrowstyle": "-", "color": INK, "alpha": 0.4, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 2}
        text = axes.annotate(
            name, point, (0, 0), textcoords="offset pixels", fontsize=9, color=INK, va="center", ha="center", arrowprops=line
        )
        across, up = axes.transData.transform(point)
        boxes = [box.translated(across, up) for box in _boxes_around(text.get_window_extent())]
        free = [box for box in boxes if box.x0 >= frame.x0 and box.x1 <= frame.x1 and box.y0 >= frame.y0 and box.y1 <= frame.y1]
        box = min(free or boxes, key=lambda box: sum(_shared(box, other) for other in taken))
        taken.append(box)
        text.set_position(((box.x0 + box.x1) / 2 - across, (box.y0 + box.y1) / 2 - up))


def _mark_boxes(axes: "Axes", across: IntervalEstimate, up: IntervalEstimate) -> Iterator["Bbox"]:
    """Yield what a point and its two bars cover, in pixels."""
    from matplotlib.transforms import Bbox

    (x, y), (low_x, low_y), (high_x, high_y) = axes.transData.transform(
        [(across.value, up.value), (across.low, up.low), (across.high, up.high)]
    )
    yield Bbox.from_extents(x - 7, y - 7, x + 7, y + 7)
    yield Bbox.from_extents(low_x, y - 1, high_x, y + 1)
    yield Bbox.from_extents(x - 1, low_y, x + 1, high_y)


def _boxes_around(size: "Bbox") -> Iterator["Bbox"]:
    """Yield boxes of a size around the origin, the nearest first: right, left, above, below, and between."""
    from matplotlib.transforms import Bbox

    half_wide, half_high = size.width / 2, size.height / 2
    for distance in range(9, 90, 9):
        wide, high = half_wide + distance, half_high + distance
        level = ((wide, distance), (wide, -distance), (-wide, distance), (-wide, -distance), (0, high), (0, -high))
        for x, y in (*level, (half_wide, high), (-half_wide, high), (half_wide, -high), (-half_wide, -high)):
            yield Bbox.from_extents(x - half_wide, y - half_high, x + half_wide, y + half_high)


def _shared(one: "Bbox", other: "Bbox") -> float:
    """Return the area that two boxes share."""
    wide, high = min(one.x1, other.x1) - max(one.x0, other.x0), min(one.y1, other.y1) - max(one.y0, other.y0)
    return wide * high if wide > 0 and high > 0 else 0.0


def _explain_marks(figure: "Figure", outcomes: Outcomes, world: str, labels: Sequence[str], *, all_named: bool) -> None:
    """Add a legend of the colours, where some points have no name, and of the special shapes."""
    from matplotlib.lines import Line2D

    strategies = [] if all_named else [outcomes.first(world, label).strategy for label in labels]
    marks = {name: ("o", colour(name)) for name in strategies}
    marks |= {name: (mark, INK) for label in labels for name, mark in [_kind(outcomes, world, label)] if name}
    handles = [Line2D([], [], linestyle="", marker=mark, color=shade, markersize=5, label=name) for name, (mark, shade) in marks.items()]
    if handles:
        figure.legend(handles=handles, loc="outside upper center", ncols=5, fontsize=8, labelcolor=INK, framealpha=0)


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
            axes.bar_label(bars, [f"{group.median_score:.2f}" for group in groups], fontsize=8, color=INK, rotation=90, padding=2)
    _whole_numbers(axes)
    _legend(axes)
    return figure, f"{world}-interventions", f"{world}: runs by number of interventions; above each bar the median score of its runs"


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


def _score(outcomes: Outcomes, world: str, label: str) -> IntervalEstimate | None:
    return outcomes.estimate(world, label, "score")


def _shade(base: str, place: int) -> str:
    """Lighten a colour by place, so that neighbours of one strategy differ slightly."""
    from matplotlib.colors import to_hex, to_rgb

    lighter = 0.13 * (place % 5)
    red, green, blue = (part + (1 - part) * lighter for part in to_rgb(base))
    return to_hex((red, green, blue))


def draw_simulation(simulation: Simulation, folder: Path | None = None) -> list[Picture]:
    """Draw every picture; with a folder, each is also written there as PNG and SVG. Raises `ConfigError` if matplotlib is not installed."""
    require_matplotlib()
    pictures = [_score_against_shares(simulation, folder)]
    if simulation.policy.dollars is not None:
        pictures.append(_score_against_dollars(simulation, folder))
    if simulation.online is not None:
        pictures.append(_budget(simulation.online, folder))
    return pictures


def _score_against_shares(simulation: Simulation, folder: Path | None) -> Picture:
    """Draw score against the share of far tasks."""
    figure, axes = _wide("tasks that go far", "mean score")
    _front(axes, simulation, lambda way: way.far_share.value)
    oracle = simulation.oracle_front
    axes.plot([p.far_share for p in oracle], [p.quality for p in oracle], color=_ORACLE, linestyle=":", label="the best for each share")
    _points(axes, simulation, lambda way: way.far_share.value)
    _in_per_cent(axes.xaxis)
    title = f"Score against the share of tasks that go far, {simulation.tasks:,} recorded tasks; shaded and bars: 95 % intervals"
    return _finish_wide(figure, axes, "score-far-share", title, folder)


def _score_against_dollars(simulation: Simulation, folder: Path | None) -> Picture:
    """Draw score against dollars."""
    figure, axes = _wide("US dollars per 1,000 tasks", "mean score")

    def place(way: Served) -> float:
        return way.dollars.value * _MILLE if way.dollars is not None else 0.0

    _front(axes, simulation, place)
    _points(axes, simulation, place)
    title = f"Score against dollars, {simulation.tasks:,} recorded tasks; shaded and bars: 95 % intervals"
    return _finish_wide(figure, axes, "score-dollars", title, folder)


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
    return _finish_wide(figure, axes, "budget", title, folder, is_score=False)


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
    _way(axes, simulation.policy, place, name="this policy", mark="*", colour=_POLICY, is_main=True)
    _way(axes, simulation.random, place, name="the same share by lot", mark="x", colour=_CHANCE)
    sides = [simulation.sides[way.name] for way in simulation.singles]
    for number, (way, side) in enumerate(zip(simulation.singles, sides, strict=True)):
        mark = _MARKS[side][sides[:number].count(side) % len(_MARKS[side])]
        _way(axes, way, place, name=f"{_short(way.name)} ({side})", mark=mark, colour=_AGENTS[number % len(_AGENTS)])
    _way(axes, simulation.oracle, place, name="best agent per task", mark="^", colour=_ORACLE)


def _way(axes: "Axes", way: Served, place: Place, *, name: str, mark: str, colour: str, is_main: bool = False) -> None:
    score = way.score
    axes.errorbar(
        place(way),
        score.value,
        yerr=_bar(score),
        linestyle="",
        marker=mark,
        markersize=13 if is_main else 7,
        color=colour,
        elinewidth=1,
        capsize=2,
        label=f"{name}: {score.value:.1%}",
        zorder=4 if is_main else 3,
    )


def _short(name: str) -> str:
    """Return the end of a long name, which is what tells models apart."""
    return name if len(name) <= _LONGEST_NAME else f"…{name[-_LONGEST_NAME + 1 :]}"


def blank(across: str, up: str) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.9), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(across, color=INK, fontsize=9)
    axes.set_ylabel(up, color=INK, fontsize=9)
    axes.tick_params(colors=INK, labelsize=9)
    axes.grid(visible=True, color=INK, alpha=0.12)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(INK)
    axes.patch.set_alpha(0)
    return figure, axes


def _wide(across: str, up: str) -> "tuple[Figure, Axes]":
    """Return a figure with room for a legend at its right."""
    figure, axes = blank(across, up)
    figure.set_size_inches(9.5, 4.8)
    return figure, axes


def _bar(estimate: IntervalEstimate) -> list[list[float]]:
    """Return the lengths of an error bar below and above a figure."""
    return [[max(0.0, estimate.value - estimate.low)], [max(0.0, estimate.high - estimate.value)]]


def _legend(axes: "Axes") -> None:
    axes.legend(fontsize=8, labelcolor=INK, framealpha=0)


def _whole_numbers(axes: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _in_per_cent(axis: "Axis") -> None:
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(xmax=1, decimals=None))


def _finish_wide(figure: "Figure", axes: "Axes", name: str, title: str, folder: Path | None, *, is_score: bool = True) -> Picture:
    if is_score:
        _in_per_cent(axes.yaxis)
    axes.set_axisbelow(True)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8, labelcolor=INK, framealpha=0)
    return finish(figure, name, title, folder)


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
            replace_text(folder / f"{safe}.svg", text.getvalue().replace(INK, "#000000"))
            figure.patch.set_alpha(1)
            with replacing(folder / f"{safe}.png") as fresh:
                figure.savefig(fresh, dpi=150)
    return Picture(safe, title, _inline(text.getvalue(), title))


def _inline(svg: str, title: str) -> str:
    """Return the drawing alone, with a title for screen readers, in the page's colour of text."""
    from html import escape

    start = svg.index("<svg")
    named = svg[start:].replace("<svg", f'<svg role="img" aria-label="{escape(title, quote=True)}"', 1)
    without_metadata = re.sub(r"<metadata>.*?</metadata>", "", named, flags=re.DOTALL)
    return without_metadata.replace(INK, "currentColor")
