"""The report of a simulation: one self-contained HTML page, and its pictures as PNG and SVG."""

import json
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

from ...util.escaping import page, table
from ..study.figures import Picture
from .curve import CurveFigures, Interval
from .figures import draw
from .online import Online
from .simulation import ClassResult, Served, Simulation

REPORT: Final = "simulation.html"
SUMMARY: Final = "simulation.json"
FIGURES: Final = "figures"
_STYLE: Final = """
figure { margin: 1.5rem 0 } figure svg { max-width: 60rem } figcaption { color: var(--soft) }
.warning { border-left: 3px solid #d55e00; padding-left: .8rem }
"""
_NOTE: Final = (
    "Recorded outcomes, replayed through the router: the agent that it would ask first serves the task, and its recorded outcome counts. "
    "Brackets, bars and shaded bands are 95 % bootstrap intervals over tasks."
)


def write_report(simulation: Simulation, folder: Path) -> Path:
    """Write `simulation.html`, `simulation.json` and the pictures into a folder, which is made where it is missing; the path of the page.

    Raises `ConfigError` where matplotlib is not installed.
    """
    pictures = folder / FIGURES
    pictures.mkdir(parents=True, exist_ok=True)
    path = folder / REPORT
    path.write_text(_render(simulation, draw(simulation, pictures)), encoding="utf-8")
    (folder / SUMMARY).write_text(json.dumps(simulation.summary(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def render(simulation: Simulation) -> str:
    """Render the page without writing files. Raises `ConfigError` where matplotlib is not installed."""
    return _render(simulation, draw(simulation))


def _render(simulation: Simulation, pictures: Sequence[Picture]) -> str:
    sections = [*_head(simulation), *map(_figure, pictures), *_ways(simulation), *_thresholds(simulation), *_classes(simulation)]
    return page("What this policy would have come to", "\n".join(sections), style=_STYLE)


def _head(simulation: Simulation) -> Iterator[str]:
    policy, random, best = simulation.policy, simulation.random, simulation.best_single
    yield f"<h1>What this policy would have come to on {simulation.tasks:,} recorded tasks</h1>"
    yield (
        f"<p>It sends {policy.far_share.value:.1%} of them far and scores <strong>{_share(policy.score)}</strong>{_at(policy)}. "
        f"The same share drawn by lot scores {_share(random.score)}; the best single agent, {escape(best.name)}, scores "
        f"{_share(best.score)}{_at(best)}.</p>"
    )
    yield from _figures(simulation.figures)
    yield from _budget(simulation.online)
    yield from (f'<p class="warning">{escape(warning)}</p>' for warning in (*simulation.warnings, *_left_out(simulation)))
    yield f'<p class="note">{_NOTE}</p>'


def _figures(figures: CurveFigures | None) -> Iterator[str]:
    if figures is None:
        yield '<p class="warning">Both sides do equally well where the threshold decides, so there is no gap to recover.</p>'
        return
    yield (
        f"<p>Over all shares of far tasks, the router recovers {_share(figures.recovered)} of the gap between the sides (APGR; 50 % is "
        f"chance). Half of the gap takes {_share(figures.far_share_for_half)} of the tasks far, and 80 % of it "
        f"{_share(figures.far_share_for_most)}.</p>"
    )


def _budget(online: Online | None) -> Iterator[str]:
    if online is not None:
        yield (
            f"<p>As a stream, held at {online.target:.0%} far tasks and learning on the way: {online.far_share:.1%} went far, no window of "
            f"{online.window:,} tasks was further than {online.worst_miss * 100:.1f} points from the target, and the score is "
            f"{online.score:.1%}.</p>"
        )


def _left_out(simulation: Simulation) -> Iterator[str]:
    if simulation.incomplete:
        yield f"{simulation.incomplete:,} traces lack the score of an agent and are left out."
    for reason, tasks in simulation.refused.items():
        yield f"The policy refuses {tasks:,} tasks, which are left out: {reason}."
    if simulation.settled:
        yield f"For {simulation.settled:,} tasks something else than the threshold settles who serves them."


def _ways(simulation: Simulation) -> Iterator[str]:
    yield "<h2>Compared with other ways to serve the tasks</h2>"
    names = {"the policy": "this policy", "random": "the same share by lot", "oracle": "the best agent for each task, in hindsight"}
    ways = (simulation.policy, simulation.random, *simulation.singles, simulation.oracle)
    rows = [[escape(names.get(way.name) or f"{way.name} ({simulation.sides[way.name]})"), *_cells(way)] for way in ways]
    yield table(["served by", "tasks far", "score", "dollars / 1,000 tasks"], rows)


def _thresholds(simulation: Simulation) -> Iterator[str]:
    yield "<h2>The router under other thresholds</h2>"
    rows = [[f"{way.threshold:.4g}", *_cells(way)] for way in simulation.front]
    yield table(["threshold", "tasks far", "score", "dollars / 1,000 tasks"], rows)


def _classes(simulation: Simulation) -> Iterator[str]:
    if len(simulation.classes) < 2:
        return
    yield "<h2>By class of task</h2>"
    caption = f"All tasks together: {simulation.policy.far_share.value:.1%} go far. Where a class is far from that, so is its budget."
    head = ["class", "tasks", "tasks far", "score", "all near", "all far"]
    yield f'<div class="wide">{table(head, [_class(each) for each in simulation.classes], caption=caption)}</div>'


def _class(each: ClassResult) -> list[str]:
    name = escape(each.task_class) or "unknown"
    return [name, f"{each.tasks:,}", f"{each.far_share:.1%}", _share(each.score), f"{each.near:.1%}", f"{each.far:.1%}"]


def _cells(way: Served) -> list[str]:
    dollars = "unknown" if way.dollars is None else _range(way.dollars.value, way.dollars.low, way.dollars.high)
    return [_share(way.far_share), _share(way.score), dollars]


def _range(value: float, low: float, high: float) -> str:
    return f"{1000 * value:,.3g} <span class='note'>[{1000 * low:,.3g}, {1000 * high:,.3g}]</span>"


def _at(way: Served) -> str:
    return "" if way.dollars is None else f" at ${way.dollars.value:.3g} a task"


def _figure(picture: Picture) -> str:
    return f"<figure>{picture.svg}<figcaption>{escape(picture.title)}</figcaption></figure>"


def _share(estimate: Interval) -> str:
    return f"{estimate.value:.1%} <span class='note'>[{estimate.low:.1%}, {estimate.high:.1%}]</span>"
