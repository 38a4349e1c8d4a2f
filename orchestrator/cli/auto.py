"""`nearfar auto`: what the strategy `auto` would do, and why."""

from pathlib import Path

from rich.table import Table
from rich.text import Text

from ..compose.config import Config
from ..task.auto_decision import ConsideredArm, SelectionDecision
from .console import notes, output, print_json, reported
from .options import Selection
from .selection import chosen_config, open_hybrid


def explain_choice(prompt: str, selection: Selection, *, outcomes: Path | None, as_json: bool) -> None:
    """Print what `auto` would choose for a task; nothing is run and no model is opened."""
    with reported(as_json=as_json):
        config = _with_outcomes(chosen_config(selection), outcomes)
        decision = open_hybrid(selection, config).explain(prompt)
        if as_json:
            print_json(decision.model_dump(mode="json"))
        else:
            _show(decision)


def _with_outcomes(config: Config, outcomes: Path | None) -> Config:
    if outcomes is None:
        return config
    auto = config.policy.auto.model_copy(update={"outcomes": outcomes})
    return config.model_copy(update={"policy": config.policy.model_copy(update={"auto": auto})})


def _show(decision: SelectionDecision) -> None:
    output.print(Text(decision.winner.label), soft_wrap=True)
    for reason in decision.reasons:
        notes.print(Text(reason, style="dim"), soft_wrap=True)
    table = Table("configuration", "score", "dollars", "utility", "outcomes", "similar", "left out because", box=None)
    for candidate in decision.candidates:
        table.add_row(*_row(candidate), style="bold" if candidate.arm == decision.chosen else None)
    notes.print(table)


def _row(candidate: ConsideredArm) -> tuple[str, ...]:
    return (
        candidate.label,
        f"{candidate.score:.2f} \u00b1 {candidate.deviation:.2f}",
        "unknown" if candidate.dollars is None else f"{candidate.dollars:.5f}",
        f"{candidate.utility:.2f}",
        str(candidate.outcomes),
        str(candidate.similar),
        candidate.objection or "",
    )
