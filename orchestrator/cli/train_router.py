"""`nearfar router train`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ...protocols import ConfigError, Side
from ..lab.training.export import write_head
from ..lab.training.from_traces import train_on_traces
from ..lab.training.report import HeldOutReport
from ..routing.evidence.checks import learn_early_stop
from ..routing.evidence.escalation import Escalation, EscalationCard
from ..routing.evidence.escalation_training import examples_of, train_escalation
from ..routing.evidence.signals import Cost
from ..routing.traces import Trace
from .console import notes, output, print_json, reported
from .traces import Recorded, chosen_embedder, progress_shown, recorded_traces

ESCALATION = "escalation.json"
REPORT = "report.json"


def train_router(recorded: Recorded, out: Path, *, as_json: bool) -> None:
    """Train a head on traces, and where they hold the answers of several agents, when to escalate; print what it is worth."""
    with reported(as_json=as_json):
        traces, sides = recorded_traces(recorded)
        with progress_shown() as progress:
            trained = train_on_traces(traces, list(sides), embedder=chosen_embedder(recorded), seed=recorded.seed, progress=progress)
            write_head(trained.parts, out)
            progress("learning when to escalate")
            card, reason = _escalation(traces, sides, seed=recorded.seed)
            stop = _early_stop(traces, next(agent for agent, side in sides.items() if side is Side.NEAR))
        if card is not None:
            Escalation(card).save(out / ESCALATION)
        (out / REPORT).write_text(trained.report.model_dump_json(indent=2) + "\n", encoding="utf-8")
        if as_json:
            report = trained.report.model_dump(mode="json")
            escalation = None if card is None else str(out / ESCALATION)
            print_json({"head": str(out), "escalation": escalation, "stop_below": stop, "report": report})
        else:
            _show(trained.report)
            _show_lines(out, card, stop, reason)


def _escalation(traces: Sequence[Trace], sides: Mapping[str, Side], *, seed: int) -> tuple[EscalationCard | None, str]:
    """What was learned, or why nothing was. The first near agent drafts, the first far one takes over, other near ones give opinions."""
    draft, far = (next(agent for agent, side in sides.items() if side is wanted) for wanted in Side)
    opinions = {agent: _cost(traces, agent) for agent, side in sides.items() if side is Side.NEAR and agent != draft}
    if not any(_answered(trace, draft) for trace in traces):
        return None, f"the traces do not hold {draft}'s answers"
    try:
        return train_escalation(examples_of(traces, draft=draft, far=far, opinions=opinions), seed=seed), ""
    except ConfigError as error:
        return None, str(error)


def _early_stop(traces: Sequence[Trace], draft: str) -> float:
    """The confidence below which drafts nearly always failed; 0: there is none, or too few confidences were recorded."""
    outcomes = [trace.outcomes[draft] for trace in traces if draft in trace.outcomes]
    try:
        return learn_early_stop([outcome.confidence for outcome in outcomes], [outcome.score for outcome in outcomes]).threshold
    except ConfigError:
        return 0.0


def _answered(trace: Trace, agent: str) -> bool:
    return agent in trace.outcomes and trace.outcomes[agent].answer is not None


def _cost(traces: Sequence[Trace], agent: str) -> Cost:
    """What asking an agent took, on average, where that was recorded."""
    outcomes = [trace.outcomes[agent] for trace in traces if agent in trace.outcomes]

    def mean(name: str) -> float:
        return fmean(known) if (known := [value for outcome in outcomes if (value := getattr(outcome, name)) is not None]) else 0.0

    return Cost(dollars=mean("dollars"), seconds=mean("seconds"), joules=mean("joules"))


def _show(report: HeldOutReport) -> None:
    table = Table("agent", "prompts", "missing", "right", "Brier", "log loss", "off by", box=SIMPLE_HEAD, pad_edge=False)
    for agent in report.agents:
        after = agent.after
        figures = (f"{agent.prompts:,}", f"{agent.missing:.0%}", f"{agent.quality:.1%}")
        table.add_row(agent.agent, *figures, f"{after.brier:.3f}", f"{after.log_loss:.3f}", f"{after.calibration_error:.1%}")
    output.print(table)
    pairs = Table("near", "far", "gap recovered", "half at", "four fifths at", box=SIMPLE_HEAD, pad_edge=False)
    for pair in report.pairs:
        recovered = f"{pair.recovered.value:.3f} [{pair.recovered.low:.3f}, {pair.recovered.high:.3f}]"
        half, most = pair.far_share_for_half.value, pair.far_share_for_most.value
        pairs.add_row(pair.near, pair.far, recovered, f"{half:.0%} far", f"{most:.0%} far")
    output.print(pairs)
    notes.print(f"on {report.prompts:,} prompts, each predicted by a head that had not seen it; 0.5 is what chance recovers", style="dim")


def _show_lines(out: Path, card: EscalationCard | None, stop: float, reason: str) -> None:
    """What to put into nearfar.toml."""
    output.print(f"[policy.router]\nhead = {json.dumps(str(out))}", soft_wrap=True)
    learned = [] if card is None else [f"escalation = {json.dumps(str(out / ESCALATION))}"]
    learned += [f"stop_below = {stop:.4g}"] * (stop > 0)
    if learned:
        output.print("\n".join(["\n[policy.evidence]", *learned]), soft_wrap=True)
    if card is None:
        notes.print(f"no escalation was learned: {reason}", style="dim", soft_wrap=True)
