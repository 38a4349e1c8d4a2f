"""`nearfar policy train | calibrate | simulate`: learn from recorded outcomes, and replay them through the router."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from ...protocols import ConfigError, Sensitivity, Side
from ...protocols.system import replace_text
from ..lab.figures import require_matplotlib
from ..lab.replay import RecordedCascade, has_drafts
from ..lab.replay.calibration import RouterCalibration, target_of
from ..lab.replay.calibration import calibrate as find_threshold
from ..lab.replay.simulation import ReplaySource, Served, Simulation, installed_embedder, simulation
from ..lab.report import write_simulation_report
from ..lab.statistics import CurveFigures, IntervalEstimate
from ..lab.training import write_head
from ..lab.training.report import EvidenceReport, HeldOutReport, evidence_report, train_on_traces
from ..routing.escalation import Escalation
from ..routing.looks import learn_early_stop
from ..routing.traces import Trace, agents_of, read_traces
from ..routing.training import train_escalation
from ..task.modes import Mode, Strategy
from ..task.policy import Policy
from . import options
from .running import Line, Note, notes, report_errors, show, style_cells, table, warn

if TYPE_CHECKING:
    from ..util.embedding import MiniLmEmbedder

REPORT: Final = "report.json"
_MOST_LISTED: Final = 12
"""Agents of the traces that an error names."""
_FREE: Final = Policy(strategy=Strategy.ROUTE, mode=Mode.AUTO, sensitivity=Sensitivity.PUBLIC)
"""The policy if no configuration names another: the router places every task."""
Traces = Annotated[Path, typer.Option("--traces", help="Recorded outcomes: traces, a router's log, or the runs of a sweep.")]
NearAgents = Annotated[
    list[str] | None, typer.Option("--near-agent", help="Agent of the traces that is near. May be repeated. Default: as configured.")
]
FarAgents = Annotated[list[str] | None, typer.Option("--far-agent", help="Agent of the traces that is far. May be repeated.")]
WordsOnly = Annotated[bool, typer.Option("--words-only", help="Compare prompts by their words and not by their meaning, which is faster.")]
Test = Annotated[Path | None, typer.Option("--test", help="Recorded outcomes for the figures alone: nothing is trained or chosen on them.")]
Seed = Annotated[int, typer.Option(help="Seed that divides the traces into parts.")]


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


def train(
    traces: Traces,
    out: Annotated[Path, typer.Option(help="Folder for the head.")] = Path("head"),
    test: Test = None,
    near_agent: NearAgents = None,
    far_agent: FarAgents = None,
    words_only: WordsOnly = False,
    seed: Seed = 0,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Train the router's head on recorded outcomes, and report how good it is on prompts that it has not seen.

    If the traces hold the answers of several agents, it also learns when to escalate.
    """
    chosen = Recorded(traces, test, near_agent or (), far_agent or (), config, embeds=not words_only, seed=seed)
    with report_errors(as_json=as_json):
        source = chosen.source()
        with show_progress() as progress:
            trained = train_on_traces(
                *(source.traces, list(source.sides)), embedder=source.embedder, tested=source.tested, seed=seed, progress=progress
            )
            write_head(trained.parts, out)
            progress("learning when to escalate")
            learned = _learn_evidence(source)
        if learned.escalation is not None:
            learned.escalation.save(out / ESCALATION)
        figures = {"report": trained.report.model_dump(mode="json"), "evidence": learned.summary()}
        replace_text(out / REPORT, json.dumps(figures, indent=2) + "\n")
        escalation = None if learned.escalation is None else str(out / ESCALATION)
        data = {"head": str(out), "escalation": escalation, "stop_below": learned.stop_below, **figures}
        for warning in (*(warning for pair in trained.report.pairs for warning in pair.warnings), *learned.warnings):
            warn(warning)
        show(data, training_lines(trained.report, learned, out, escalation), as_json=as_json)


def calibrate(
    traces: Traces,
    budget: Annotated[str | None, typer.Option(help="Limit for the far side: 0.3 or 30% of the tasks, or $0.002 per task.")] = None,
    quality: Annotated[str | None, typer.Option(help="Score to keep: 95% of the far side's score, or a score such as 0.82.")] = None,
    confidence: Annotated[float | None, typer.Option(help="Guarantee the quality on new tasks with this confidence, such as 0.95.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for a page with the curve; default: none is made.")] = None,
    test: Test = None,
    near_agent: NearAgents = None,
    far_agent: FarAgents = None,
    words_only: WordsOnly = False,
    seed: Seed = 0,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Find the router's threshold for a budget or a quality, and report what it gives on tasks held out from the search."""
    chosen = Recorded(traces, test, near_agent or (), far_agent or (), config, embeds=not words_only, seed=seed)
    with report_errors(as_json=as_json):
        target_of(budget=budget, quality=quality, confidence=confidence)
        if out is not None:
            require_matplotlib()
        with show_progress() as progress:
            replayed = chosen.source().replayed(_policy(config), progress=progress)
            found = find_threshold(replayed, budget=budget, quality=quality, confidence=confidence, seed=seed)
            page = None if out is None else write_simulation_report(simulation(replayed, seed=seed), out)
        for warning in found.warnings:
            warn(warning)
        pages = {} if page is None else {"page": str(page)}
        show(found.summary() | pages, calibration_lines(found, page), as_json=as_json)


def simulate(
    traces: Traces,
    out: Annotated[Path, typer.Option(help="Folder for the page and its pictures.")] = Path("simulation"),
    far_share: Annotated[float | None, typer.Option(min=0.001, max=0.999, help="Keep the share of far tasks at this value.")] = None,
    test: Test = None,
    near_agent: NearAgents = None,
    far_agent: FarAgents = None,
    words_only: WordsOnly = False,
    seed: Seed = 0,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Replay recorded outcomes through the router, and compare it with chance, with each agent, and with an oracle."""
    chosen = Recorded(traces, test, near_agent or (), far_agent or (), config, embeds=not words_only, seed=seed)
    with report_errors(as_json=as_json):
        require_matplotlib()
        with show_progress() as progress:
            found = simulation(chosen.source().replayed(_policy(config), far_share=far_share, progress=progress), seed=seed)
            progress("drawing")
            page = write_simulation_report(found, out)
        for warning in found.warnings:
            warn(warning)
        show({"report": str(page), **found.summary()}, simulation_lines(found, page), as_json=as_json)


@dataclass(frozen=True, slots=True)
class Recorded:
    """The recorded outcomes that a command works on."""

    traces: Path
    test: Path | None
    """Outcomes for the figures alone; None: the figures are cross-validated."""
    near: Sequence[str]
    """Names of the near agents in the traces, in the order of their roles: the first drafts, the others give opinions. The configuration
    tells a side that is empty."""
    far: Sequence[str]
    config: Path | None
    embeds: bool
    """True to compare prompts by their meaning, too."""
    seed: int

    def source(self) -> ReplaySource:
        """Read the traces, and the side of each agent that takes part. Raises `ConfigError` if a side has no agent."""
        traces = read_traces(self.traces)
        tested = None if self.test is None else read_traces(self.test)
        told = agents_of(traces)
        known = self._read_sides(told)
        hint = f"the traces have {_listed(told)}: name yours with --near-agent and --far-agent"
        source = ReplaySource.among(traces, known, embedder=None, hint=hint)
        return replace(source, tested=tested, embedder=self.embedder(), seed=self.seed)

    def _read_sides(self, told: Sequence[str]) -> Mapping[str, Side]:
        """Return the sides of the agents that take part. Raises `ConfigError` for a name that the traces lack, or that is on both sides."""
        both = sorted(set(self.near) & set(self.far))
        if both:
            raise ConfigError(f"{both[0]} is named for both sides", hint="an agent is near or far")
        named = {**dict.fromkeys(self.near, Side.NEAR), **dict.fromkeys(self.far, Side.FAR)}
        unknown = [agent for agent in named if agent not in told]
        if unknown:
            raise ConfigError(f"the traces have no agent {unknown[0]!r}", hint=f"they have {_listed(told)}")
        open_sides = {side for side, names in ((Side.NEAR, self.near), (Side.FAR, self.far)) if not names}
        config = options.read_config(self.config) if open_sides else None
        configured = ({} if config is None else config.agents) or {str(side): side for side in Side}
        return {**named, **{agent: side for agent, side in configured.items() if side in open_sides and agent not in named}}

    def embedder(self) -> "MiniLmEmbedder | None":
        """Return the model that embeds prompts; None to compare them by their words alone."""
        if not self.embeds:
            return None
        found = installed_embedder()
        if found is None:
            warn("prompts are compared by their words alone; to compare their meaning: pip install 'nearfar[router]'")
        return found


def _listed(agents: Sequence[str]) -> str:
    more = f" and {len(agents) - _MOST_LISTED:,} more" if len(agents) > _MOST_LISTED else ""
    return ", ".join(agents[:_MOST_LISTED]) + more


@contextmanager
def show_progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows on standard error the work that is being done, with the time it takes."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=notes, transient=True) as progress:
        line = progress.add_task("reading ...", total=None)
        yield lambda text: progress.update(line, description=f"{text} ...")


def _policy(path: Path | None) -> Policy:
    config = options.read_config(path)
    return _FREE if config is None else config.policy


def _learn_evidence(source: ReplaySource) -> LearnedEvidence:
    """Learn when to escalate, and measure it. The first near agent drafts, and the other near ones give opinions."""
    recorded = RecordedCascade.of(source.traces, source.sides)
    stop = _early_stop(source.traces, recorded.roles.draft)
    if not has_drafts(source.traces, recorded.roles):
        return LearnedEvidence(None, None, f"the traces do not hold {recorded.roles.draft}'s answers", stop)
    try:
        escalation = Escalation(train_escalation(recorded.examples, seed=source.seed))
        report = evidence_report(*source.cascade(), seed=source.seed)
    except ConfigError as error:
        return LearnedEvidence(None, None, str(error), stop)
    return LearnedEvidence(escalation, report, "", stop)


def _early_stop(traces: Sequence[Trace], draft: str) -> float:
    """Return the confidence below which drafts nearly always failed; 0 if there is none or too few confidences were recorded."""
    outcomes = [trace.outcomes[draft] for trace in traces if draft in trace.outcomes]
    try:
        return learn_early_stop([outcome.confidence for outcome in outcomes], [outcome.score for outcome in outcomes]).threshold
    except ConfigError:
        return 0.0


ESCALATION: Final = "escalation.json"
_COLUMNS: Final = ("far", "score", "dollars / 1000")


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
