"""The sweep's report: one self-contained HTML page in the folder of the runs, and its pictures as PNG and SVG."""

import json
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

from ...routing.traces import RunRecord
from ...util.escaping import page, table
from .figures import Picture, draw_all, draw_regret
from .findings import Finding, findings
from .headline import AutoHeadline, Comparison, Reached, WorldHeadline, auto_headline, headline
from .outcomes import Outcomes
from .statistics import Estimate

REPORT: Final = "report.html"
SUMMARY: Final = "summary.json"
FIGURES: Final = "figures"
_STYLE: Final = """
.holds { color: #2a9d8f } .fails { color: #c1121f } .untested { color: var(--soft) } figure { margin: 1rem 0 }
body { max-width: 80rem } .pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(28rem, 1fr)); gap: 0 2rem }
 .wide td, .wide th { white-space: nowrap }
figcaption { color: var(--soft) } @media (prefers-color-scheme: dark) { .fails { color: #ff6b6b } }
"""
_ANSWERS: Final = {"holds": "holds", "does not hold": "fails", "cannot be tested here": "untested"}
_MILLI: Final = 1e-3
_NOTE: Final = (
    "Brackets and bars are 95 % bootstrap intervals over tasks. Joules are estimated as 2 x parameters x tokens / efficiency. Seconds are "
    "wall time and include waiting for other runs of the process. Shadow configurations only measure the supervisor. An oracle is the "
    "world's own solver: a ceiling, not a model. At reference prices prompt tokens count in full."
)


def write_report(records: Sequence[RunRecord], folder: Path, *, missing: int) -> Path:
    """Write `report.html`, `summary.json` and the pictures into a folder; the path of the page.

    Args:
        records: of a study, in any order.
        missing: runs of the study that were not made.

    Raises `ConfigError` where matplotlib is not installed.
    """
    outcomes = Outcomes(records)
    pictures = folder / FIGURES
    pictures.mkdir(exist_ok=True)
    path = folder / REPORT
    path.write_text(_render(outcomes, missing=missing, title="Nearfar sweep", pictures=pictures), encoding="utf-8")
    (folder / SUMMARY).write_text(json.dumps(_summary(outcomes, missing=missing), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def render(records: Sequence[RunRecord], *, missing: int, title: str) -> str:
    """Render the page without writing files. Raises `ConfigError` where matplotlib is not installed."""
    return _render(Outcomes(records), missing=missing, title=title, pictures=None)


def summary(records: Sequence[RunRecord], *, missing: int) -> dict[str, object]:
    """Return the content of the report, for scripts."""
    return _summary(Outcomes(records), missing=missing)


def _render(outcomes: Outcomes, *, missing: int, title: str, pictures: Path | None) -> str:
    drawn = {world: draw_all(outcomes, world, pictures) for world in outcomes.worlds}
    lines = [headline(outcomes, world) for world in outcomes.worlds]
    auto = auto_headline(outcomes.records)
    regret = draw_regret(auto.regret, against=auto.most_useful_fixed, folder=pictures) if auto is not None else None
    sections = [*_sections(outcomes, lines, drawn), *_auto(auto, regret), *_lessons(findings(outcomes))]
    return page(title, "\n".join([*_head(outcomes, title, missing), *sections]), style=_STYLE)


def _summary(outcomes: Outcomes, *, missing: int) -> dict[str, object]:
    auto = auto_headline(outcomes.records)
    return {
        "missing": missing,
        "worlds": [headline(outcomes, world).model_dump(mode="json") for world in outcomes.worlds],
        "configurations": [_figures(outcomes, world, label) for world in outcomes.worlds for label in outcomes.configurations(world)],
        "auto": auto.model_dump(mode="json") if auto is not None else None,
        "findings": [finding.model_dump() for finding in findings(outcomes)],
    }


def _figures(outcomes: Outcomes, world: str, label: str) -> dict[str, object]:
    measures = ("score", "success", "dollars", "seconds", "joules", "peak_kv_bytes", "turns", "near_calls", "far_calls", "interventions")
    estimates = {measure: outcomes.estimate(world, label, measure) for measure in measures}
    errors = sum(record.error is not None for record in outcomes.runs(world, label))
    known = {measure: estimate.model_dump() if estimate else None for measure, estimate in estimates.items()}
    return {"world": world, "configuration": label, "runs": len(outcomes.runs(world, label)), "errors": errors, **known}


def _head(outcomes: Outcomes, title: str, missing: int) -> Iterator[str]:
    worlds = len(outcomes.worlds)
    yield f"<h1>{escape(title)}: {len(outcomes.records):,} runs in {worlds} world{'s' if worlds != 1 else ''}</h1>"
    if missing:
        yield f'<p class="wrong">{missing:,} runs of the study are missing; the same command makes them.</p>'
    yield f'<p class="note">{_NOTE} Dollars: {escape(", ".join(_sources(outcomes)) or "none were spent")}.</p>'


def _sections(outcomes: Outcomes, lines: Sequence[WorldHeadline], drawn: dict[str, list[Picture]]) -> Iterator[str]:
    for line in lines:
        yield f"<h2>{escape(line.world)}: {line.tasks:,} tasks, {line.seeds} seed{'s' if line.seeds != 1 else ''}</h2>"
        yield _headline_list(line)
        yield f'<div class="wide">{_configurations_table(outcomes, line.world)}</div>'
        yield f'<div class="pictures">{"".join(map(_figure, drawn[line.world]))}</div>'
        yield from _supervision_tables(outcomes, line.world)


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


def _lessons(found: Sequence[Finding]) -> Iterator[str]:
    yield "<h2>The lessons of arXiv 2605.30102, on these runs</h2>"
    yield from (_finding(finding) for finding in found)


def _figure(picture: Picture) -> str:
    return f"<figure>{picture.svg}<figcaption>{escape(picture.title)}</figcaption></figure>"


def _sources(outcomes: Outcomes) -> list[str]:
    return sorted({record.dollars_source for record in outcomes.records if record.far_calls})


def _headline_list(line: WorldHeadline) -> str:
    reached = [("near alone", line.near), ("far alone", line.far), ("best hybrid", line.best_hybrid), ("best with an oracle", line.oracle)]
    items = [f"{name}: {_reached(what)}" for name, what in reached if what is not None]
    compared = [
        ("best hybrid at half of far's dollars", line.beats_near),
        ("best hybrid at 40 % of far's dollars", line.approaches_far),
        ("supervision by event", line.events),
        *(("memory", each) for each in line.memory),
    ]
    items += [f"{name}: {_compared(what)}" for name, what in compared if what is not None]
    return "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


def _reached(what: Reached) -> str:
    return f"<strong>{escape(what.configuration)}</strong>, score {_share(what.score)}, success {_share(what.success)}"


def _compared(what: Comparison) -> str:
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
    def cell(measure: str, scale: float = 1, digits: int = 3) -> str:
        estimate = outcomes.estimate(world, label, measure)
        return "unknown" if estimate is None else f"{estimate.value * scale:,.{digits}g}"

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


def _finding(finding: Finding) -> str:
    return (
        f"<h3>{finding.number}. {escape(finding.lesson)}</h3>"
        f'<p><strong class="{_ANSWERS[finding.answer]}">{finding.answer.capitalize()}.</strong> {escape(finding.because)}</p>'
        f'<p class="note">Holds if: {escape(finding.rule)}</p>'
    )


def _share(estimate: Estimate | None) -> str:
    return "unknown" if estimate is None else f"{estimate.value:.1%} <span class='note'>[{estimate.low:.0%}, {estimate.high:.0%}]</span>"


def _difference(points: Estimate) -> str:
    return f"{points.value:+.1f} [{points.low:+.1f}, {points.high:+.1f}]"


def _dollars(value: float | None) -> str:
    return "unknown dollars" if value is None else f"${value:.6f}"


def _bytes(estimate: Estimate | None) -> str:
    return "unknown" if estimate is None else f"{estimate.value / 1024:,.0f} KiB"
