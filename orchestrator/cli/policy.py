"""`nearfar policy`: check a policy, explain what it decides, calibrate it, and simulate it on recorded outcomes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from typer import Exit

from ...protocols import ConfigError
from ..compose.agents import other_handle
from ..compose.config import Config
from ..hybrid.arguments import TaskOptions
from ..hybrid.hybrid import Hybrid
from ..routing.check import Finding, findings, unknown_prices
from ..task.results import Result
from ..task.route_decision import AgentEstimate, ConsideredAgent, Estimate, RouteDecision
from .configuration import DEFAULT_CONFIG, read_config
from .console import EXIT_USAGE, execute, notes, output, print_json, reported
from .options import Selection
from .run import summary
from .selection import chosen_config, open_hybrid

_FIGURES: Final = ("P(success)", "first token, s", "seconds", "dollars", "joules", "utility", "left out because")


def print_schema() -> None:
    """Print the JSON Schema of nearfar.toml, for editors."""
    schema = Config.model_json_schema()
    print_json({**schema, "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "nearfar.toml"})


def check_policy(path: Path | None, *, as_json: bool) -> None:
    """Say what is wrong or strange about the policy of a configuration."""
    with reported(as_json=as_json):
        config = read_config(path)
        if config is None:
            raise ConfigError(f"there is no {DEFAULT_CONFIG}", hint="create it, or name another with --config")
        found = [*findings(config.policy, config.agents), *unknown_prices(config.policy, _unpriced(config))]
        if as_json:
            print_json({"findings": [finding.model_dump() for finding in found]})
        else:
            _show_findings(found, config)
        if any(finding.kind == "error" for finding in found):
            raise Exit(EXIT_USAGE)


def _unpriced(config: Config) -> dict[str, str]:
    """Return the models of the far agents whose price nobody knows, as far as the configuration tells."""
    agents = ({} if config.far is None else {"far": config.far}) | config.others
    members = [other_handle(name, agent) for name, agent in agents.items()]
    return {member.name: member.model for member in members if member.is_unpriced}


def _show_findings(found: list[Finding], config: Config) -> None:
    for finding in found:
        style = "bold red" if finding.kind == "error" else "bold yellow"
        notes.print(Text.assemble((f"{finding.kind}: ", style), f"{finding.where}: {finding.problem}"), soft_wrap=True)
        if finding.hint:
            notes.print(Text(f"  {finding.hint}", style="dim"), soft_wrap=True)
    policy = config.policy
    rules = f"{len(policy.rules)} rule{'' if len(policy.rules) == 1 else 's'}"
    verdict = "the policy can be used" if not any(finding.kind == "error" for finding in found) else "the policy cannot be used"
    output.print(f"{verdict}: strategy {policy.strategy}, mode {policy.mode}, {rules}")


def explain_route(prompt: str, selection: Selection, options: TaskOptions, *, run: bool, as_json: bool) -> None:
    """Print who would serve a task and why; with `run`, serve it and print what really happened beside what was expected."""

    options = {**options, **selection.stated}

    async def work() -> None:
        config = chosen_config(selection)
        async with open_hybrid(selection, config) as hybrid:
            decision = hybrid.explain_route(prompt, **options)
            if not as_json:
                _show_decision(decision)
            result = await _served(hybrid, prompt, options, as_json=as_json) if run else None
        if as_json:
            really = None if result is None else result.model_dump(mode="json")
            print_json({"decision": decision.model_dump(mode="json"), "result": really})

    execute(work(), as_json=as_json)


async def _served(hybrid: Hybrid, prompt: str, options: TaskOptions, *, as_json: bool) -> Result:
    result = await hybrid.run(prompt, **options)
    if not as_json:
        _show_what_happened(result)
    return result


def _show_decision(decision: RouteDecision) -> None:
    verdict = " then ".join(decision.candidates) if decision.denied is None else f"denied: {decision.denied}"
    output.print(Text(verdict), soft_wrap=True)
    for reason in decision.reasons:
        notes.print(Text(reason, style="dim"), soft_wrap=True)
    notes.print(_table_of(decision.considered))


def _table_of(considered: Sequence[ConsideredAgent]) -> Table:
    """A column for each agent, the first candidate's first."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for place, each in enumerate(considered):
        table.add_column(f"{each.agent} ({each.side})", style="bold" if place == 0 and each.objection is None else None, overflow="fold")
    for name, *figures in zip(_FIGURES, *(_column(each) for each in considered), strict=True):
        if any(figures):
            table.add_row(name, *figures)
    return table


def _column(each: ConsideredAgent) -> tuple[str, ...]:
    utility = "" if each.utility is None else f"{each.utility:.3f}"
    return (*_figures(each.estimate), utility, each.objection or "")


def _figures(estimate: AgentEstimate | None) -> tuple[str, ...]:
    if estimate is None:
        return ("", "", "", "", "")
    return (
        _figure(estimate.success, ".2f"),
        _figure(estimate.first_token_seconds, ".2f"),
        _figure(estimate.seconds, ".2f"),
        "unknown" if estimate.dollars is None else _figure(estimate.dollars, ".5f"),
        "unknown" if estimate.joules is None else _figure(estimate.joules, ".3g"),
    )


def _figure(estimate: Estimate, form: str) -> str:
    return f"{estimate.value:{form}} \u00b1 {estimate.deviation:{form}} ({estimate.source})"


def _show_what_happened(result: Result) -> None:
    output.print(Text(result.text), soft_wrap=True)
    table = Table("", "outcome", "seconds", "dollars", "joules", box=SIMPLE_HEAD, pad_edge=False)
    for attempt in result.attempts:
        expected = result.decision.estimate_of(attempt.agent)
        if expected is not None:
            table.add_row(attempt.agent, "expected", *_figures(expected)[2:5], style="dim")
        dollars = "unknown" if attempt.dollars is None else f"{attempt.dollars:.5f}"
        joules = "unknown" if attempt.energy.joules is None else f"{attempt.energy.joules:.3g} ({attempt.energy.source})"
        table.add_row(attempt.agent, attempt.outcome, f"{attempt.seconds:.2f}", dollars, joules)
    notes.print(table)
    notes.print(summary(result), style="dim", soft_wrap=True)
