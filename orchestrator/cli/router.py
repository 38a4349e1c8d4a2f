"""`nearfar router train`: train the router's head on recorded outcomes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Final

import typer

from ...protocols import ConfigError, Side
from ..lab.training.export import write_head
from ..lab.training.from_traces import train_on_traces
from ..lab.training.report import HeldOutReport
from ..routing.checks import learn_early_stop
from ..routing.escalation import Escalation, EscalationCard
from ..routing.signals import Cost
from ..routing.traces import Trace
from ..routing.training import draft_examples_of, train_escalation
from . import options, recorded
from .printing import Line, Note, show, table
from .running import report_errors

ESCALATION: Final = "escalation.json"
REPORT: Final = "report.json"

app = typer.Typer(no_args_is_help=True)


@app.command("train")
def train(
    traces: recorded.Traces,
    out: Annotated[Path, typer.Option(help="Folder for the head.")] = Path("head"),
    near_agent: recorded.NearAgents = None,
    far_agent: recorded.FarAgents = None,
    words_only: recorded.WordsOnly = False,
    seed: recorded.Seed = 0,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Train the router's head on recorded outcomes, and report how good it is on prompts that it has not seen.

    If the traces hold the answers of several agents, it also learns when to escalate.
    """
    chosen = recorded.Recorded(traces, near_agent or (), far_agent or (), config, embeds=not words_only, seed=seed)
    with report_errors(as_json=as_json):
        read, sides = chosen.read()
        with recorded.show_progress() as progress:
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
        show(data, _lines(trained.report, out, card, stop, reason), as_json=as_json)


def _learn_escalation(traces: Sequence[Trace], sides: Mapping[str, Side], *, seed: int) -> tuple[EscalationCard | None, str]:
    """Return the learned card and "", or None and the reason why nothing was learned.

    The first near agent drafts, the first far one takes over, and the other near ones give opinions.
    """
    draft, far = (next(agent for agent, side in sides.items() if side is wanted) for wanted in Side)
    opinions = {agent: _mean_cost(traces, agent) for agent, side in sides.items() if side is Side.NEAR and agent != draft}
    if not any(_has_answer(trace, draft) for trace in traces):
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


def _has_answer(trace: Trace, agent: str) -> bool:
    return agent in trace.outcomes and trace.outcomes[agent].answer is not None


def _mean_cost(traces: Sequence[Trace], agent: str) -> Cost:
    """Return the mean recorded cost of asking an agent; 0 for a measure that was never recorded."""
    outcomes = [trace.outcomes[agent] for trace in traces if agent in trace.outcomes]

    def mean(name: str) -> float:
        return fmean(known) if (known := [value for outcome in outcomes if (value := getattr(outcome, name)) is not None]) else 0.0

    return Cost(dollars=mean("dollars"), seconds=mean("seconds"), joules=mean("joules"))


def _lines(report: HeldOutReport, out: Path, card: EscalationCard | None, stop: float, reason: str) -> Iterator[Line]:
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
        recovered = f"{pair.recovered.value:.3f} [{pair.recovered.low:.3f}, {pair.recovered.high:.3f}]"
        half, most = pair.far_share_for_half.value, pair.far_share_for_most.value
        yield (pair.near, pair.far, recovered, f"{half:.0%} far", f"{most:.0%} far")
