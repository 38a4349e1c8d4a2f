"""`nearfar auto`: explain what the strategy `auto` would choose."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ..compose.config import Config
from ..task.results import ConsideredArm, SelectionDecision
from . import options
from .printing import Line, Note, show, styled, table
from .running import read_prompt, report_errors
from .selection import chosen_config, open_hybrid

app = typer.Typer(no_args_is_help=True)


@app.command("explain")
def explain(
    prompt: options.Prompt,
    outcomes: Annotated[Path | None, typer.Option(help="Runs of a sweep to learn from. Default: [policy.auto] outcomes.")] = None,
    config: options.Config = None,
    near: options.Near = None,
    far: options.Far = None,
    mode: options.ModeName = None,
    public: options.Public = False,
    tools: options.Tools = None,
    as_json: options.AsJson = False,
) -> None:
    """Print which configuration auto would choose for a task, and what it expects of each. Nothing is run."""
    text = read_prompt(prompt, as_json=as_json)
    selection = options.AgentChoice(config, near, far, None, mode, public, tools)
    with report_errors(as_json=as_json):
        chosen = _with_outcomes(chosen_config(selection), outcomes)
        decision = open_hybrid(selection, chosen).explain(text)
        show(decision.model_dump(mode="json"), _lines(decision), as_json=as_json)


def _with_outcomes(config: Config, outcomes: Path | None) -> Config:
    if outcomes is None:
        return config
    auto = config.policy.auto.model_copy(update={"outcomes": outcomes})
    return config.model_copy(update={"policy": config.policy.model_copy(update={"auto": auto})})


def _lines(decision: SelectionDecision) -> Iterator[Line]:
    yield Text(decision.winner.label)
    for reason in decision.reasons:
        yield Note(Text(reason))
    columns = ("configuration", "score", "dollars", "utility", "outcomes", "similar", "left out because")
    rows = (styled(_cells(each), "bold" if each.arm == decision.chosen else "") for each in decision.candidates)
    yield Note(table(columns, rows), style="")


def _cells(candidate: ConsideredArm) -> tuple[str, ...]:
    return (
        candidate.label,
        f"{candidate.score:.2f} \u00b1 {candidate.deviation:.2f}",
        "unknown" if candidate.dollars is None else f"{candidate.dollars:.5f}",
        f"{candidate.utility:.2f}",
        str(candidate.outcomes),
        str(candidate.similar),
        candidate.objection or "",
    )
