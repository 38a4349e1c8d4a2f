"""`nearfar policy train | calibrate | simulate`: learn from recorded outcomes, and replay them through the router."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from ...protocols import ConfigError, Sensitivity, Side
from ..lab.figures import require_matplotlib
from ..lab.replay.calibration import RouterCalibration
from ..lab.replay.calibration import calibrate as find_threshold
from ..lab.replay.replayed import replay
from ..lab.replay.simulation import Served, Simulation
from ..lab.replay.simulation import simulate as simulate_traces
from ..lab.report import write_simulation_report
from ..lab.statistics import CurveFigures, IntervalEstimate
from ..lab.training.report import HeldOutReport, train_on_traces
from ..lab.training.training import write_head
from ..routing.checks import learn_early_stop
from ..routing.escalation import Escalation, EscalationCard
from ..routing.escalation_training import draft_examples_of, train_escalation
from ..routing.looks import Cost
from ..routing.traces import Trace, agents_of, read_traces
from ..task.modes import Mode, Strategy
from ..task.policy import Policy
from . import options
from .printing import Line, Note, notes, show, style_cells, table, warn
from .running import report_errors

if TYPE_CHECKING:
    from ..util.embedding.embedder import MiniLmEmbedder

ESCALATION: Final = "escalation.json"
REPORT: Final = "report.json"
_FREE: Final = Policy(strategy=Strategy.ROUTE, mode=Mode.AUTO, sensitivity=Sensitivity.PUBLIC)
"""The policy if no configuration names another: the router places every task."""
_COLUMNS: Final = ("far", "score", "dollars / 1000")
Traces = Annotated[Path, typer.Option("--traces", help="Recorded outcomes: traces, a router's log, or the runs of a sweep.")]
NearAgents = Annotated[
    list[str] | None, typer.Option("--near-agent", help="Agent of the traces that is near. May be repeated. Default: as configured.")
]
FarAgents = Annotated[list[str] | None, typer.Option("--far-agent", help="Agent of the traces that is far. May be repeated.")]
WordsOnly = Annotated[bool, typer.Option("--words-only", help="Compare prompts by their words and not by their meaning, which is faster.")]
Seed = Annotated[int, typer.Option(help="Seed that divides the traces into parts.")]


def train(
    traces: Traces,
    out: Annotated[Path, typer.Option(help="Folder for the head.")] = Path("head"),
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
    chosen = Recorded(traces, near_agent or (), far_agent or (), config, embeds=not words_only, seed=seed)
    with report_errors(as_json=as_json):
        read, sides = chosen.read()
        with show_progress() as progress:
            trained = train_on_traces(read, list(sides), embedder=chosen.embedder(), seed=seed, progress=progress)
            write_head(trained.parts, out)
            progress("learning when to escalate")
            card, reason = _learn_escalation(read, sides, seed=seed)
            stop = _early_stop(read, next(agent for agent, side in sides.items() if side is Side.NEAR))
        if card is not None:
            Escalation(card).save(out / ESCALATION)
        (out / REPORT).write_text(trained.report.model_dump_json(indent=2) + "\n", encoding="utf-8")
        escalation = None if card is None else str(out / ESCALATION)
        data = {"head": str(out), "escalation": escalation, "stop_below": stop, "report": trained.report.model_dump(mode="json")}
        show(data, _training_lines(trained.report, out, card, stop, reason), as_json=as_json)


def calibrate(
    traces: Traces,
    budget: Annotated[str | None, typer.Option(help="Limit for the far side: 0.3 or 30% of the tasks, or $0.002 per task.")] = None,
    quality: Annotated[str | None, typer.Option(help="Score to keep: 95% of the far side's score, or a score such as 0.82.")] = None,
    near_agent: NearAgents = None,
    far_agent: FarAgents = None,
    words_only: WordsOnly = False,
    seed: Seed = 0,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Find the router's threshold for a budget or a quality, and report what it gives on tasks held out from the search."""
    chosen = Recorded(traces, near_agent or (), far_agent or (), config, embeds=not words_only, seed=seed)
    with report_errors(as_json=as_json):
        read, sides = chosen.read()
        with show_progress() as progress:
            replayed = replay(read, _policy(config), sides=sides, embedder=chosen.embedder(), seed=seed, progress=progress)
            found = find_threshold(replayed, budget=budget, quality=quality, seed=seed)
        show(found.summary(), _calibration_lines(found), as_json=as_json)


def simulate(
    traces: Traces,
    out: Annotated[Path, typer.Option(help="Folder for the page and its pictures.")] = Path("simulation"),
    far_share: Annotated[float | None, typer.Option(min=0.001, max=0.999, help="Keep the share of far tasks at this value.")] = None,
    near_agent: NearAgents = None,
    far_agent: FarAgents = None,
    words_only: WordsOnly = False,
    seed: Seed = 0,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Replay recorded outcomes through the router, and compare it with chance, with each agent, and with an oracle."""
    chosen = Recorded(traces, near_agent or (), far_agent or (), config, embeds=not words_only, seed=seed)
    with report_errors(as_json=as_json):
        require_matplotlib()
        read, sides = chosen.read()
        with show_progress() as progress:
            found = simulate_traces(
                read, _policy(config), sides=sides, embedder=chosen.embedder(), seed=seed, far_share=far_share, progress=progress
            )
            progress("drawing")
            page = write_simulation_report(found, out)
        for warning in found.warnings:
            warn(warning)
        show({"report": str(page), **found.summary()}, _simulation_lines(found, page), as_json=as_json)


@dataclass(frozen=True, slots=True)
class Recorded:
    """The recorded outcomes that a command works on."""

    traces: Path
    near: Sequence[str]
    """Names of the near agents in the traces; if `near` and `far` are empty, the configuration tells the sides."""
    far: Sequence[str]
    config: Path | None
    embeds: bool
    """True to compare prompts by their meaning, too."""
    seed: int

    def read(self) -> "tuple[list[Trace], dict[str, Side]]":
        """Return the traces, and the side of each agent that takes part. Raises `ConfigError` if a side has no agent."""
        traces = read_traces(self.traces)
        told = agents_of(traces)
        known = self._read_named(told) or self._read_configured()
        sides = {agent: known[agent] for agent in told if agent in known}
        lacking = sorted(set(Side) - set(sides.values()))
        if lacking:
            hint = f"the traces have {', '.join(told)}: name yours with --near-agent and --far-agent"
            raise ConfigError(f"the traces have no {lacking[0]} agent that is known", hint=hint)
        return traces, sides

    def _read_named(self, told: Sequence[str]) -> Mapping[str, Side]:
        both = sorted(set(self.near) & set(self.far))
        if both:
            raise ConfigError(f"{both[0]} is named for both sides", hint="an agent is near or far")
        named = {**dict.fromkeys(self.near, Side.NEAR), **dict.fromkeys(self.far, Side.FAR)}
        unknown = [agent for agent in named if agent not in told]
        if unknown:
            raise ConfigError(f"the traces have no agent {unknown[0]!r}", hint=f"they have {', '.join(told)}")
        return named

    def _read_configured(self) -> Mapping[str, Side]:
        config = options.read_config(self.config)
        return ({} if config is None else config.agents) or {str(side): side for side in Side}

    def embedder(self) -> "MiniLmEmbedder | None":
        """Return the model that embeds prompts; None to compare them by their words alone."""
        if not self.embeds:
            return None
        if find_spec("onnxruntime") is None or find_spec("tokenizers") is None:
            warn("prompts are compared by their words alone; to compare their meaning: pip install 'nearfar[router]'")
            return None
        from ..util.embedding.embedder import MiniLmEmbedder

        return MiniLmEmbedder()


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


def _learn_escalation(traces: Sequence[Trace], sides: Mapping[str, Side], *, seed: int) -> tuple[EscalationCard | None, str]:
    """Return the learned card and "", or None and the reason why nothing was learned.

    The first near agent drafts, the first far one takes over, and the other near ones give opinions.
    """
    draft, far = (next(agent for agent, side in sides.items() if side is wanted) for wanted in Side)
    opinions = {agent: _mean_cost(traces, agent) for agent, side in sides.items() if side is Side.NEAR and agent != draft}
    if not any(draft in trace.outcomes and trace.outcomes[draft].answer is not None for trace in traces):
        return None, f"the traces do not hold {draft}'s answers"
    try:
        return train_escalation(draft_examples_of(traces, draft=draft, far=far, opinions=opinions), seed=seed), ""
    except ConfigError as error:
        return None, str(error)


def _early_stop(traces: Sequence[Trace], draft: str) -> float:
    """Return the confidence below which drafts nearly always failed; 0 if there is none or too few confidences were recorded."""
    outcomes = [trace.outcomes[draft] for trace in traces if draft in trace.outcomes]
    try:
        return learn_early_stop([outcome.confidence for outcome in outcomes], [outcome.score for outcome in outcomes]).threshold
    except ConfigError:
        return 0.0


def _mean_cost(traces: Sequence[Trace], agent: str) -> Cost:
    """Return the mean recorded cost of asking an agent; 0 for a measure that was never recorded."""
    outcomes = [trace.outcomes[agent] for trace in traces if agent in trace.outcomes]

    def mean(name: str) -> float:
        return fmean(known) if (known := [value for outcome in outcomes if (value := getattr(outcome, name)) is not None]) else 0.0

    return Cost(dollars=mean("dollars"), seconds=mean("seconds"), joules=mean("joules"))


def _training_lines(report: HeldOutReport, out: Path, card: EscalationCard | None, stop: float, reason: str) -> Iterator[Line]:
    """Yield the tables of the report, and the lines for nearfar.toml that use what was trained."""
    columns = ("agent", "prompts", "missing", "right", "Brier", "log loss", "off by")
    yield table(columns, _agent_rows(report))
    yield table(("near", "far", "gap recovered", "half at", "four fifths at"), _pair_rows(report))
    yield Note(f"on {report.prompts:,} prompts, each predicted by a head that had not seen it; chance recovers 0.5")
    yield f"[policy.router]\nhead = {json.dumps(str(out))}"
    learned = [] if card is None else [f"escalation = {json.dumps(str(out / ESCALATION))}"]
    learned += [f"stop_below = {stop:.4g}"] * (stop > 0)
    if learned:
        yield "\n".join(["\n[policy.evidence]", *learned])
    if card is None:
        yield Note(f"no escalation was learned: {reason}")


def _agent_rows(report: HeldOutReport) -> Iterator[tuple[str, ...]]:
    for agent in report.agents:
        after = agent.after
        figures = (f"{agent.prompts:,}", f"{agent.missing:.0%}", f"{agent.quality:.1%}")
        yield (agent.agent, *figures, f"{after.brier:.3f}", f"{after.log_loss:.3f}", f"{after.calibration_error:.1%}")


def _pair_rows(report: HeldOutReport) -> Iterator[tuple[str, ...]]:
    for pair in report.pairs:
        half, most = pair.far_share_for_half.value, pair.far_share_for_most.value
        yield (pair.near, pair.far, _interval_text(pair.recovered, ".3f"), f"{half:.0%} far", f"{most:.0%} far")


def _simulation_lines(found: Simulation, page: Path) -> Iterator[Line]:
    ways = (found.policy, found.random, *found.singles, found.oracle)
    yield table(("served by", *_COLUMNS), (style_cells(_cells(way), "bold" if way is found.policy else "") for way in ways))
    if found.figures is not None:
        yield Note(_recovered_text(found.figures))
    yield f"report: {page}"


def _calibration_lines(found: RouterCalibration) -> Iterator[Line]:
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


def _interval_text(figure: IntervalEstimate, form: str = ".1%") -> str:
    return f"{figure.value:{form}} [{figure.low:{form}}, {figure.high:{form}}]"


def _recovered_text(figures: CurveFigures) -> str:
    half, most = figures.far_share_for_half.value, figures.far_share_for_most.value
    return (
        f"over all far shares the router recovers {_interval_text(figures.recovered, '.3f')} of the gap "
        f"between the sides; chance recovers 0.5. Half of the gap needs {half:.0%} far, four fifths {most:.0%}"
    )
