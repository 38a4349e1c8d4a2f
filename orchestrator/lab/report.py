"""The reports of sweeps and simulations: one self-contained HTML page, a summary in JSON, and the pictures as PNG and SVG."""

import json
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

from ...protocols.system import replace_text
from ..routing.outcome_records import RunRecord
from ..util.text import page, table
from .figures import Picture, draw_regret, draw_simulation, draw_world
from .replay.replayed import Online
from .replay.simulation import ClassResult, Served, Simulation
from .statistics import CurveFigures, IntervalEstimate
from .story import STORY_STYLE, Story, render_story
from .study.findings import Lesson, findings
from .study.headline import AutoHeadline, Comparison, Reached, WorldHeadline, auto_headline, headline
from .study.outcomes import Outcomes

SWEEP_REPORT: Final = "report.html"
SWEEP_SUMMARY: Final = "summary.json"
SIMULATION_REPORT: Final = "simulation.html"
SIMULATION_SUMMARY: Final = "simulation.json"
FIGURES: Final = "figures"
_SWEEP_STYLE: Final = """
.holds { color: #2a9d8f } .fails { color: #c1121f } .untested { color: var(--soft) } figure { margin: 1rem 0; min-width: 0 }
body { max-width: 76rem } .lead { font-size: 1.15rem } .first { display: grid; gap: 0 2rem; align-items: center }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); gap: 0 2rem }
@media (min-width: 62rem) { .first { grid-template-columns: 1.1fr 1fr } } .wide td, .wide th { white-space: nowrap }
figcaption { color: var(--soft) } @media (prefers-color-scheme: dark) { .fails { color: #ff6b6b } }
"""
_SIMULATION_STYLE: Final = """
figure { margin: 1.5rem 0 } figure svg { max-width: 60rem } figcaption { color: var(--soft) }
.warning { border-left: 3px solid #d55e00; padding-left: .8rem }
"""
_SWEEP_NOTE: Final = (
    "Brackets and bars are 95 % bootstrap intervals over tasks. Joules are estimated as 2 x parameters x tokens / efficiency. Seconds are "
    "wall time and include waiting for other runs of the process. Shadow configurations only measure the supervisor. An oracle is the "
    "world's own solver: a ceiling, not a model. At reference prices prompt tokens count in full."
)
_SIMULATION_NOTE: Final = (
    "Recorded outcomes, replayed through the router: the agent that it would ask first serves the task, and its recorded outcome counts. "
    "Brackets, bars and shaded bands are 95 % bootstrap intervals over tasks."
)
_ANSWERS: Final = {"holds": "holds", "does not hold": "fails", "cannot be tested here": "untested"}
_MILLI: Final = 1e-3


def write_sweep_report(records: Sequence[RunRecord], folder: Path, *, missing: int) -> Path:
    """Write `report.html`, `summary.json` and the pictures into a folder; the path of the page.

    Args:
        records: of a study, in any order.
        missing: runs of the study that were not made.

    Raises `ConfigError` where matplotlib is not installed.
    """
    outcomes = Outcomes(records)
    pictures = folder / FIGURES
    pictures.mkdir(exist_ok=True)
    path = folder / SWEEP_REPORT
    replace_text(path, render_sweep(outcomes, missing=missing, title="Nearfar sweep", pictures=pictures))
    replace_text(folder / SWEEP_SUMMARY, json.dumps(sweep_summary(outcomes, missing=missing), indent=1, ensure_ascii=False) + "\n")
    return path


def render_sweep(outcomes: Outcomes, *, missing: int, title: str, story: Story | None = None, pictures: Path | None = None) -> str:
    """Render the page, which begins with its result in one sentence, and with the story if there is one.

    With a folder, its pictures are written there. Raises `ConfigError` where matplotlib is not installed.
    """
    drawn = {world: draw_world(outcomes, world, pictures) for world in outcomes.worlds}
    lines = [headline(outcomes, world) for world in outcomes.worlds]
    auto = auto_headline(outcomes.records)
    regret = draw_regret(auto.regret, against=auto.most_useful_fixed, folder=pictures) if auto is not None else None
    told = render_story(story) if story is not None else ()
    sections = [*told, *_sections(outcomes, lines, drawn), *_auto(auto, regret), *_lessons(findings(outcomes))]
    return page(title, "\n".join([*_sweep_head(outcomes, title, missing), *sections, *_notes(outcomes)]), style=_SWEEP_STYLE + STORY_STYLE)


def sweep_summary(outcomes: Outcomes, *, missing: int) -> dict[str, object]:
    """Return the content of the report, for scripts."""
    auto = auto_headline(outcomes.records)
    return {
        "missing": missing,
        "worlds": [headline(outcomes, world).model_dump(mode="json") for world in outcomes.worlds],
        "configurations": [
            _configuration_figures(outcomes, world, label) for world in outcomes.worlds for label in outcomes.configurations(world)
        ],
        "auto": auto.model_dump(mode="json") if auto is not None else None,
        "findings": [finding.model_dump() for finding in findings(outcomes)],
    }


def _configuration_figures(outcomes: Outcomes, world: str, label: str) -> dict[str, object]:
    measures = ("score", "success", "dollars", "seconds", "joules", "peak_kv_bytes", "turns", "near_calls", "far_calls", "interventions")
    estimates = {measure: outcomes.estimate(world, label, measure) for measure in measures}
    errors = sum(record.error is not None for record in outcomes.runs(world, label))
    known = {measure: estimate.model_dump() if estimate else None for measure, estimate in estimates.items()}
    return {"world": world, "configuration": label, "runs": len(outcomes.runs(world, label)), "errors": errors, **known}


def _sweep_head(outcomes: Outcomes, title: str, missing: int) -> Iterator[str]:
    yield f"<h1>{escape(title)}</h1>"
    yield f'<p class="lead">{_lead(outcomes)}</p>'
    if missing:
        yield f'<p class="wrong">{missing:,} runs of the study are missing; the same command makes them.</p>'


def _lead(outcomes: Outcomes) -> str:
    """Return the result in one sentence."""
    together = [part for world in outcomes.worlds if (part := _together(outcomes, world))]
    if together:
        return f"Near and far together reach {'; '.join(together)}."
    worlds = len(outcomes.worlds)
    return f"{len(outcomes.records):,} runs in {worlds} world{'s' if worlds != 1 else ''}."


def _together(outcomes: Outcomes, world: str) -> str:
    """Compare the best hybrid at half of far's dollars, and near alone, with far alone; empty where a side or the hybrid is missing."""
    near, far = outcomes.near_alone(world), outcomes.far_alone(world)
    half = headline(outcomes, world).beats_near
    if near is None or far is None or half is None or half.dollar_share is None:
        return ""
    hybrid, alone = (outcomes.ratio(world, label, far, "score") for label in (half.configuration, near))
    if hybrid is None or alone is None:
        return ""
    return (
        f"<strong>{hybrid.value:.0%}</strong> of far alone's score at <strong>{half.dollar_share.value:.0%}</strong> of its dollars "
        f"in {escape(world)} (near alone: {alone.value:.0%})"
    )


def _notes(outcomes: Outcomes) -> Iterator[str]:
    yield "<h2>How to read this page</h2>"
    yield f'<p class="note">{_SWEEP_NOTE} Dollars: {escape(", ".join(_sources(outcomes)) or "none were spent")}.</p>'


def _sections(outcomes: Outcomes, lines: Sequence[WorldHeadline], drawn: dict[str, list[Picture]]) -> Iterator[str]:
    for line in lines:
        first, *others = drawn[line.world]
        seeds = f"{line.seeds} seed{'s' if line.seeds != 1 else ''}"
        yield f"<h2>{escape(line.world)}: {line.tasks:,} tasks, {seeds}, {_runs(outcomes, line.world):,} runs</h2>"
        yield f'<div class="first">{_figure(first)}{_headline_list(line)}</div>'
        yield f'<div class="wide" tabindex="0">{_configurations_table(outcomes, line.world)}</div>'
        yield f'<div class="pictures">{"".join(map(_figure, others))}</div>'
        yield from _supervision_tables(outcomes, line.world)


def _runs(outcomes: Outcomes, world: str) -> int:
    return sum(len(outcomes.runs(world, label)) for label in outcomes.configurations(world))


def _auto(auto: AutoHeadline | None, regret: Picture | None) -> Iterator[str]:
    if auto is None or regret is None:
        return
    yield "<h2>Choosing per task</h2>"
    yield (
        f"<p>Over {auto.tasks:,} mixed tasks, <strong>auto</strong> scores {auto.score:.1%} at {_dollars(auto.dollars)} a task; "
        f"the best single configuration, <strong>{escape(auto.best_fixed)}</strong>, scores {auto.best_fixed_score:.1%} at "
        f"{_dollars(auto.best_fixed_dollars)}. Auto is {_difference(auto.points)} points above it. "
        "What auto knew of a seed's tasks came from the other seeds.</p>"
    )
    rows = [[f"${each.dollars_per_point:g}", f"{each.score:.1%}", _difference(each.points), _dollars(each.dollars)] for each in auto.front]
    yield table(["a point of score is worth", "score", f"points above {escape(auto.best_fixed)}", "dollars a task"], rows)
    yield _figure(regret)


def _lessons(found: Sequence[Lesson]) -> Iterator[str]:
    yield "<h2>The lessons of arXiv 2605.30102, on these runs</h2>"
    yield from (_finding(finding) for finding in found)


def _sources(outcomes: Outcomes) -> list[str]:
    return sorted({record.dollars_source for record in outcomes.records if record.far_calls})


def _headline_list(line: WorldHeadline) -> str:
    reached = [("near alone", line.near), ("far alone", line.far), ("best hybrid", line.best_hybrid), ("best with an oracle", line.oracle)]
    items = [f"{name}: {_reach_text(what)}" for name, what in reached if what is not None]
    compared = [
        ("best hybrid at half of far's dollars", line.beats_near),
        ("best hybrid at 40 % of far's dollars", line.approaches_far),
        ("supervision by event", line.events),
        *(("memory", each) for each in line.memory),
    ]
    items += [f"{name}: {_comparison_text(what)}" for name, what in compared if what is not None]
    return "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


def _reach_text(what: Reached) -> str:
    return f"<strong>{escape(what.configuration)}</strong>, score {_share(what.score)}, success {_share(what.success)}"


def _comparison_text(what: Comparison) -> str:
    parts = [f"<strong>{escape(what.configuration)}</strong> against {escape(what.against)}"]
    differences = ((what.points, "points of score"), (what.success_points, "points of success"))
    parts += [f"{_difference(each)} {name}" for each, name in differences if each is not None]
    shares = (("of its score", what.score_share), ("of far's dollars", what.dollar_share), ("of its far calls", what.far_call_share))
    parts += [f"{_share(share)} {name}" for name, share in (*shares, ("of its peak KV bytes", what.kv_share)) if share is not None]
    return ", ".join(parts)


def _configurations_table(outcomes: Outcomes, world: str) -> str:
    head = [
        "configuration",
        "runs",
        "errors",
        "score",
        "success",
        "far calls",
        "dollars / 1000 tasks",
        "seconds",
        "joules",
        "peak KV",
        "interventions",
    ]
    body = [_row(outcomes, world, label) for label in outcomes.configurations(world)]
    return table(head, body, caption="Means per task")


def _row(outcomes: Outcomes, world: str, label: str) -> list[str]:
    def cell(measure: str, scale: float = 1) -> str:
        estimate = outcomes.estimate(world, label, measure)
        return "unknown" if estimate is None else f"{estimate.value * scale:,.3g}"

    runs = outcomes.runs(world, label)
    score, success = (outcomes.estimate(world, label, measure) for measure in ("score", "success"))
    return [
        escape(label),
        f"{len(runs):,}",
        f"{sum(record.error is not None for record in runs):,}",
        _share(score),
        _share(success),
        cell("far_calls"),
        cell("dollars", 1 / _MILLI),
        cell("seconds"),
        cell("joules"),
        f"{_bytes(outcomes.estimate(world, label, 'peak_kv_bytes'))}",
        cell("interventions"),
    ]


def _supervision_tables(outcomes: Outcomes, world: str) -> Iterator[str]:
    near, far = outcomes.near_alone(world), outcomes.far_alone(world)
    if near is not None and far is not None and outcomes.hybrids(world):
        yield "<h3>Which system solves what</h3>"
        yield _solved_table(outcomes, world, near=near, far=far)
    rows = [_verifier_row(outcomes, world, label) for label in outcomes.configurations(world) if outcomes.is_shadow(world, label)]
    if any(rows):
        yield "<h3>How often the supervisor is wrong</h3>"
        head = ["shadow configuration", "runs with a check", "false negatives", "false positives"]
        caption = "Share of runs: every check said CONTINUE and the task failed; a check said INTERVENE and the task succeeded"
        yield table(head, [row for row in rows if row], caption=caption)
    yield from _intervention_tables(outcomes, world)


def _solved_table(outcomes: Outcomes, world: str, *, near: str, far: str) -> str:
    head = ["hybrid", "near only", "far only", "hybrid only", "near + far", "near + hybrid", "far + hybrid", "all three", "none"]
    body = []
    for label in outcomes.hybrids(world):
        counts = outcomes.solved(world, near=near, far=far, hybrid=label).model_dump()
        body.append([escape(label), *(f"{count:,}" for count in counts.values())])
    return table(head, body, caption=f"Runs solved by {near}, {far} and each hybrid")


def _verifier_row(outcomes: Outcomes, world: str, label: str) -> list[str]:
    errors = outcomes.verifier_errors(world, label)
    if errors is None:
        return []
    return [escape(label), f"{errors.runs:,}", _share(errors.false_negatives), _share(errors.false_positives)]


def _intervention_tables(outcomes: Outcomes, world: str) -> Iterator[str]:
    groups = {label: outcomes.interventions(world, label) for label in outcomes.hybrids(world) if outcomes.supervision(world, label)}
    most = max((group.interventions for counts in groups.values() for group in counts), default=0)
    if not groups or not most:
        return
    yield "<h3>Interventions</h3>"
    body = []
    for label, counts in groups.items():
        cells = {group.interventions: f"{group.runs:,} ({group.median_score:.2f})" for group in counts}
        body.append([escape(label), *(cells.get(number, "") for number in range(most + 1))])
    yield table(["configuration", *map(str, range(most + 1))], body, caption="Runs by number of interventions (median score)")


def _finding(finding: Lesson) -> str:
    return (
        f"<h3>{finding.number}. {escape(finding.lesson)}</h3>"
        f'<p><strong class="{_ANSWERS[finding.answer]}">{finding.answer.capitalize()}.</strong> {escape(finding.because)}</p>'
        f'<p class="note">Holds if: {escape(finding.rule)}</p>'
    )


def write_simulation_report(simulation: Simulation, folder: Path) -> Path:
    """Write `simulation.html`, `simulation.json` and the pictures into a folder, which is made where it is missing; the path of the page.

    Raises `ConfigError` where matplotlib is not installed.
    """
    pictures = folder / FIGURES
    pictures.mkdir(parents=True, exist_ok=True)
    path = folder / SIMULATION_REPORT
    replace_text(path, render_simulation(simulation, pictures))
    replace_text(folder / SIMULATION_SUMMARY, json.dumps(simulation.summary(), indent=1, ensure_ascii=False) + "\n")
    return path


def render_simulation(simulation: Simulation, pictures: Path | None = None) -> str:
    """Render the page; with a folder, write its pictures there. Raises `ConfigError` where matplotlib is not installed."""
    drawn = draw_simulation(simulation, pictures)
    sections = [*_simulation_head(simulation), *map(_figure, drawn), *_ways(simulation), *_thresholds(simulation), *_classes(simulation)]
    return page("What this policy would have come to", "\n".join(sections), style=_SIMULATION_STYLE)


def _simulation_head(simulation: Simulation) -> Iterator[str]:
    policy, random, best = simulation.policy, simulation.random, simulation.best_single
    yield f"<h1>What this policy would have come to on {simulation.tasks:,} recorded tasks</h1>"
    yield (
        f"<p>It sends {policy.far_share.value:.1%} of them far and scores <strong>{_share(policy.score, 1)}</strong>{_at(policy)}. "
        f"The same share drawn by lot scores {_share(random.score, 1)}; the best single agent, {escape(best.name)}, scores "
        f"{_share(best.score, 1)}{_at(best)}.</p>"
    )
    yield from _recovered(simulation.figures)
    yield from _budget(simulation.online)
    yield from (f'<p class="warning">{escape(warning)}</p>' for warning in (*simulation.warnings, *_left_out(simulation)))
    yield f'<p class="note">{_SIMULATION_NOTE}</p>'


def _recovered(figures: CurveFigures | None) -> Iterator[str]:
    if figures is None:
        yield '<p class="warning">Both sides do equally well where the threshold decides, so there is no gap to recover.</p>'
        return
    yield (
        f"<p>Over all shares of far tasks, the router recovers {_share(figures.recovered, 1)} of the gap between the sides (APGR; 50 % is "
        f"chance). Half of the gap takes {_share(figures.far_share_for_half, 1)} of the tasks far, and 80 % of it "
        f"{_share(figures.far_share_for_most, 1)}.</p>"
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
    rows = [[escape(names.get(way.name) or f"{way.name} ({simulation.sides[way.name]})"), *_way_cells(way)] for way in ways]
    yield table(["served by", "tasks far", "score", "dollars / 1,000 tasks"], rows)


def _thresholds(simulation: Simulation) -> Iterator[str]:
    yield "<h2>The router under other thresholds</h2>"
    rows = [[f"{way.threshold:.4g}", *_way_cells(way)] for way in simulation.front]
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
    return [name, f"{each.tasks:,}", f"{each.far_share:.1%}", _share(each.score, 1), f"{each.near:.1%}", f"{each.far:.1%}"]


def _way_cells(way: Served) -> list[str]:
    dollars = "unknown" if way.dollars is None else _range(way.dollars.value, way.dollars.low, way.dollars.high)
    return [_share(way.far_share, 1), _share(way.score, 1), dollars]


def _figure(picture: Picture) -> str:
    return f"<figure>{picture.svg}<figcaption>{escape(picture.title)}</figcaption></figure>"


def _share(estimate: IntervalEstimate | None, digits: int = 0) -> str:
    """Return a share with its interval, which has so many digits behind the point."""
    if estimate is None:
        return "unknown"
    return f"{estimate.value:.1%} <span class='note'>[{estimate.low:.{digits}%}, {estimate.high:.{digits}%}]</span>"


def _difference(points: IntervalEstimate) -> str:
    return f"{points.value:+.1f} [{points.low:+.1f}, {points.high:+.1f}]"


def _range(value: float, low: float, high: float) -> str:
    return f"{1000 * value:,.3g} <span class='note'>[{1000 * low:,.3g}, {1000 * high:,.3g}]</span>"


def _at(way: Served) -> str:
    return "" if way.dollars is None else f" at ${way.dollars.value:.3g} a task"


def _dollars(value: float | None) -> str:
    return "unknown dollars" if value is None else f"${value:.6f}"


def _bytes(estimate: IntervalEstimate | None) -> str:
    return "unknown" if estimate is None else f"{estimate.value / 1024:,.0f} KiB"
