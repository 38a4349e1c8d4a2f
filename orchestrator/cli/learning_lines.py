"""The output of `nearfar policy train | calibrate | simulate`, as tables and lines."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.text import Text

from ..lab.replay.calibration import RouterCalibration
from ..lab.replay.simulation import Served, Simulation
from ..lab.statistics import CurveFigures, IntervalEstimate
from ..lab.training.evidence import EvidenceReport
from ..lab.training.report import HeldOutReport
from ..routing.escalation import Escalation
from .printing import Line, Note, style_cells, table

ESCALATION: Final = "escalation.json"
_COLUMNS: Final = ("far", "score", "dollars / 1000")


@dataclass(frozen=True, slots=True)
class LearnedEvidence:
    """The lessons of the traces about drafts."""

    escalation: Escalation | None
    """None: nothing was learned."""
    report: EvidenceReport | None
    """Its figures on drafts that it has not seen."""
    reason: str
    """Why nothing was learned; else empty."""
    stop_below: float
    """Confidence below which drafts nearly always failed; 0: there is none."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Figures that are within noise."""
        return () if self.report is None else self.report.warnings

    def summary(self) -> dict[str, Any] | None:
        """Return the figures as JSON can hold them."""
        return None if self.report is None else self.report.model_dump(mode="json")


def training_lines(report: HeldOutReport, learned: LearnedEvidence, out: Path, escalation: str | None) -> Iterator[Line]:
    """Yield the tables of the report, and the lines for nearfar.toml that use what was trained."""
    columns = ("agent", "prompts", "missing", "right", "Brier", "log loss", "off by")
    yield table(columns, _agent_rows(report))
    yield table(("near", "far", "gap recovered", "half at", "four fifths at"), _pair_rows(report))
    which = "of the test" if not report.folds else "each predicted by a head that had not seen it"
    yield Note(f"on {report.prompts:,} prompts, {which}; chance recovers 0.5")
    if learned.report is not None:
        yield table(("drafts, and then", *_COLUMNS[1:2], "gap recovered", "half at", "four fifths at"), _evidence_rows(learned.report))
    yield f"[policy.router]\nhead = {json.dumps(str(out))}"
    lines = [] if escalation is None else [f"escalation = {json.dumps(escalation)}"]
    lines += [f"stop_below = {learned.stop_below:.4g}"] * (learned.stop_below > 0)
    if lines:
        yield "\n".join(["\n[policy.evidence]", *lines])
    if learned.reason:
        yield Note(f"no escalation was learned: {learned.reason}")


def _evidence_rows(report: EvidenceReport) -> Iterator[tuple[str, ...]]:
    quality = f"{report.draft_quality:.1%} to {report.far_quality:.1%}"
    for name, figures in ((f"the evidence, to {report.far}", report.evidence), ("disagreement, ties by length", report.disagreement)):
        if figures is not None:
            half, most = figures.far_share_for_half.value, figures.far_share_for_most.value
            yield (name, quality, _interval_text(figures.recovered, ".3f"), f"{half:.0%} far", f"{most:.0%} far")


def _agent_rows(report: HeldOutReport) -> Iterator[tuple[str, ...]]:
    for agent in report.agents:
        after = agent.after
        figures = (f"{agent.prompts:,}", f"{agent.missing:.0%}", f"{agent.quality:.1%}")
        yield (agent.agent, *figures, f"{after.brier:.3f}", f"{after.log_loss:.3f}", f"{after.calibration_error:.1%}")


def _pair_rows(report: HeldOutReport) -> Iterator[tuple[str, ...]]:
    for pair in report.pairs:
        half, most = pair.far_share_for_half.value, pair.far_share_for_most.value
        yield (pair.near, pair.far, _interval_text(pair.recovered, ".3f"), f"{half:.0%} far", f"{most:.0%} far")


def simulation_lines(found: Simulation, page: Path) -> Iterator[Line]:
    """Yield the ways to serve the tasks, and what the router recovers."""
    ways = (found.policy, found.random, *found.singles, found.oracle)
    yield table(("served by", *_COLUMNS), (style_cells(_cells(way), "bold" if way is found.policy else "") for way in ways))
    if found.figures is not None:
        yield Note(_recovered_text(found.figures))
    yield f"report: {page}"


def calibration_lines(found: RouterCalibration, page: Path | None) -> Iterator[Line]:
    """Yield the threshold as lines of nearfar.toml, and what to expect of it."""
    yield found.toml.rstrip()
    yield Note(f"target: {found.target}")
    if found.guarantee is None:
        yield Note("on tasks held out from the search for the threshold:")
    else:
        yield Note(f"guaranteed with confidence {found.guarantee.confidence:g}, tested on {found.guarantee.tasks:,} tasks; on these:")
    yield Note(table(("", *_COLUMNS), [_cells(found.expected)]), style="")
    if found.worst_miss is not None:
        yield Note(f"largest miss of the target on a part of them: {found.worst_miss:+.4g}")
    if found.figures is not None:
        yield Note(_recovered_text(found.figures))
    for note in found.notes:
        yield Note(Text(note))
    if page is not None:
        yield f"report: {page}"


def _cells(way: Served) -> tuple[str, ...]:
    dollars = "unknown" if way.dollars is None else f"{1000 * way.dollars.value:.3f}"
    return (way.name, f"{way.far_share.value:.1%}", _interval_text(way.score), dollars)


def _interval_text(figure: IntervalEstimate, form: str = ".1%") -> str:
    return f"{figure.value:{form}} [{figure.low:{form}}, {figure.high:{form}}]"


def _recovered_text(figures: CurveFigures) -> str:
    half, most = figures.far_share_for_half.value, figures.far_share_for_most.value
    return (
        f"over all far shares the router recovers {_interval_text(figures.recovered, '.3f')} of the gap "
        f"between the sides; chance recovers 0.5. Half of the gap needs {half:.0%} far, four fifths {most:.0%}"
    )
