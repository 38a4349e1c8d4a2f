"""`nearfar policy`: see what a policy decides, and the cards by which a cascade weighs its evidence. `policy_learning` learns."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

from ...protocols import ConfigError
from ...protocols.system import hint_for
from ..compose.config import Config
from ..compose.policy_file import config_findings, config_schema
from ..routing.drafts import DEFAULT_CARD, baked, bind, by_role, is_by_role, opinions_of
from ..routing.eligibility import PolicyFinding
from ..routing.escalation import Escalation, EscalationCard, read_card
from ..routing.outcome_records import drafts_of, escalated_to
from ..routing.outcomes import OutcomeStore
from ..task.decisions import FIGURES, ConsideredAgent, ConsideredArm, RouteDecision, SelectionDecision
from ..task.policy import Preset
from ..task.results import Result
from . import options
from .policy_learning import calibrate, simulate, train
from .run import summary
from .running import (
    EXIT_USAGE,
    Line,
    Note,
    count_text,
    execute,
    fact_table,
    print_json,
    print_lines,
    read_prompt,
    report_errors,
    show,
    style_cells,
    table,
    warn,
)
from .selection import chosen_config, open_hybrid

if TYPE_CHECKING:
    from ..hybrid.arguments import TaskOptions

cards = typer.Typer(no_args_is_help=True, help="See, share and take over the cards by which a cascade weighs its evidence.")
Log = Annotated[Path | None, typer.Option(help="Router's log whose outcomes are baked in. Default: [policy.router] log.")]
Draft = Annotated[str, typer.Option(help="Agent whose drafts are judged.")]
Far = Annotated[str, typer.Option(help="Agent to which is escalated.")]


@cards.command("show")
def show_card(
    card: Annotated[Path | None, typer.Argument(help="File of a card. Default: the policy's card, else the shipped one.")] = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Print what a card was learned from, and what it looks at."""
    with report_errors(as_json=as_json):
        known = read_card(card or _configured(config) or DEFAULT_CARD)
        show(known.model_dump(mode="json"), _card_lines(known), as_json=as_json)


@cards.command("export")
def export(
    out: Annotated[Path, typer.Argument(help="File to write.")],
    log: Log = None,
    draft: Draft = "near",
    far: Far = "far",
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Write the policy's card, else the shipped one, with roles in place of agents and with what reports have taught it.

    It holds weights and counts: no prompt, no answer, no name of an agent.
    """
    with report_errors(as_json=as_json):
        path = _configured(config)
        card = read_card(path or DEFAULT_CARD)
        if not is_by_role(card):
            draft, far = card.draft, card.far
        loaded = options.read_config(config)
        log = log or (None if loaded is None else loaded.policy.router.log)
        learned = _corrected(card, log, name="" if path is None else str(path), draft=draft, far=far)
        shared = by_role(learned)
        _write(shared, out)
        show(shared.model_dump(mode="json"), _card_lines(shared), as_json=as_json)


@cards.command("import")
def import_card(
    card: Annotated[Path, typer.Argument(help="File of a card by role.")],
    out: Annotated[Path, typer.Option(help="File for [policy.evidence] escalation.")] = Path("escalation.json"),
    draft: Draft = "near",
    far: Far = "far",
    opinion: Annotated[list[str] | None, typer.Option(help="Near agent that may be asked for an opinion. May be repeated.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Check a shared card, and bind it to agents of yours."""
    with report_errors(as_json=as_json):
        shared = read_card(card)
        if not is_by_role(shared):
            raise ConfigError(f"{card} names agents in place of roles", hint="nearfar policy card export writes one with roles")
        known, asked = opinions_of(shared), opinion or ()
        if len(asked) > len(known):
            warn(f"the card weighs {count_text(len(known), 'opinion')}, so these are not asked: {', '.join(asked[len(known) :])}")
        bound = bind(shared, draft=draft, far=far, opinions=asked[: len(known)])
        _write(bound, out)
        show({"escalation": str(out), **bound.model_dump(mode="json")}, _card_lines(bound), as_json=as_json)


def _configured(config: Path | None) -> Path | None:
    loaded = options.read_config(config)
    return None if loaded is None else loaded.policy.evidence.escalation


def _corrected(card: EscalationCard, log: Path | None, *, name: str, draft: str, far: str) -> EscalationCard:
    if log is None:
        return card
    store = OutcomeStore()
    store.read(log)
    correction = store.card_correction(name)
    outcomes = correction.corrected(drafts_of(draft), "").outcomes
    return baked(card, draft=correction.offset(drafts_of(draft), ""), far=correction.offset(escalated_to(far), ""), outcomes=outcomes)


def _write(card: EscalationCard, out: Path) -> None:
    try:
        Escalation(card).save(out)
    except OSError as error:
        raise ConfigError(
            f"{out} cannot be written: {error.strerror or error}", hint=hint_for(error, "name a file in a folder that you may write to")
        ) from error


def _card_lines(card: EscalationCard) -> Iterator[Line]:
    origin = card.provenance
    yield Text(f"{card.draft}, then {card.far}")
    facts = [("looks", ", ".join(look.name for look in card.looks)), ("drafts learned from", f"{card.traces:,}")]
    if origin is not None:
        facts += [
            ("sets", ", ".join(origin.sets)),
            ("licences", ", ".join(origin.licences)),
            ("date", origin.date),
            ("command", origin.command),
            ("note", origin.note),
            ("outcomes baked in", f"{origin.baked_in:,}"),
        ]
    yield fact_table([fact for fact in facts if fact[1]])


app = typer.Typer(no_args_is_help=True)


@app.command("check")
def check(config: options.Config = None, as_json: options.AsJson = False) -> None:
    """Print mistakes in a policy: rules that never match, settings that contradict each other, unknown agents.

    Exits with code 2 if the policy cannot be used.
    """
    with report_errors(as_json=as_json):
        loaded = options.read_config(config)
        if loaded is None:
            raise ConfigError(f"there is no {options.DEFAULT_CONFIG}", hint="create it, or name another file with --config")
        found = config_findings(loaded)
        show({"findings": [finding.model_dump() for finding in found]}, _finding_lines(found, loaded), as_json=as_json)
        if any(finding.kind == "error" for finding in found):
            raise typer.Exit(EXIT_USAGE)


@app.command("schema")
def schema() -> None:
    """Print the JSON Schema of nearfar.toml, for editors."""
    print_json(config_schema())


@app.command("explain")
def explain(
    prompt: options.Prompt,
    run: Annotated[bool, typer.Option("--run", help="Run the task too, and print what it really took.")] = False,
    task_class: options.TaskClass = "",
    tag: options.Tags = None,
    config: options.Config = None,
    near: options.Near = None,
    far: options.Far = None,
    strategy: options.StrategyName = None,
    mode: options.ModeName = None,
    public: options.Public = False,
    tools: options.Tools = None,
    as_json: options.AsJson = False,
) -> None:
    """Print which agents would serve a task, which are left out and why, and what is expected of each."""
    selection = options.AgentChoice(config, near, far, strategy, mode, public, tools)
    text = read_prompt(prompt, as_json=as_json)
    given: TaskOptions = {"task_class": task_class, "tags": tag or (), **selection.stated}

    async def work() -> None:
        result = None
        chosen = chosen_config(selection)
        async with open_hybrid(selection, chosen) as hybrid:
            decision = hybrid.explain_route(text, **given)
            if not as_json:
                print_lines(_decision_lines(decision, chosen.policy.preset))
            if run:
                result = await hybrid.run(text, **given)
        measured = None if result is None else result.model_dump(mode="json")
        data = {"preset": chosen.policy.preset, "decision": decision.model_dump(mode="json"), "result": measured}
        show(data, () if result is None else _result_lines(result), as_json=as_json)

    execute(work(), as_json=as_json)


@app.command("choose")
def choose(
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
    """Print which configuration the strategy auto would choose for a task, and what it expects of each. Nothing is run."""
    text = read_prompt(prompt, as_json=as_json)
    selection = options.AgentChoice(config, near, far, None, mode, public, tools)
    with report_errors(as_json=as_json):
        chosen = _with_outcomes(chosen_config(selection), outcomes)
        decision = open_hybrid(selection, chosen).explain(text)
        show(decision.model_dump(mode="json"), _choice_lines(decision), as_json=as_json)


app.add_typer(cards, name="card")
app.command("train")(train)
app.command("calibrate")(calibrate)
app.command("simulate")(simulate)


def _finding_lines(found: Sequence[PolicyFinding], config: Config) -> Iterator[Line]:
    for finding in found:
        style = "bold red" if finding.kind == "error" else "bold yellow"
        yield Note(Text.assemble((f"{finding.kind}: ", style), f"{finding.where}: {finding.problem}"), style="")
        if finding.hint:
            yield Note(Text(f"  {finding.hint}"))
    policy = config.policy
    verdict = "the policy cannot be used" if any(finding.kind == "error" for finding in found) else "the policy can be used"
    yield f"{verdict}: preset {policy.preset}, strategy {policy.strategy}, mode {policy.mode}, {count_text(len(policy.rules), 'rule')}"


def _decision_lines(decision: RouteDecision, preset: Preset) -> Iterator[Line]:
    yield Text(" then ".join(decision.candidates) if decision.denied is None else f"denied: {decision.denied}")
    yield Note(Text(f"preset {preset}"))
    for reason in decision.reasons:
        yield Note(Text(reason))
    yield Note(_agent_table(decision.considered), style="")


def _agent_table(considered: Sequence[ConsideredAgent]) -> Table:
    """Return a table with a column for each agent, the first candidate's first."""
    columns = [Column("")]
    for place, each in enumerate(considered):
        style = "bold" if place == 0 and each.objection is None else ""
        columns.append(Column(f"{each.agent} ({each.side})", style=style, overflow="fold"))
    rows = zip(FIGURES, *(each.figures for each in considered), strict=True)
    return table(columns, [row for row in rows if any(row[1:])])


def _result_lines(result: Result) -> Iterator[Line]:
    yield Text(result.text)
    rows: list[Sequence[str | Text]] = []
    for attempt in result.attempts:
        expected = result.decision.estimate_of(attempt.agent)
        if expected is not None:
            seconds, _, dollars, _, joules = expected.figures[2:]
            rows.append(style_cells((attempt.agent, "expected", seconds, dollars, joules), "dim"))
        dollars = "unknown" if attempt.dollars is None else f"{attempt.dollars:.5f}"
        joules = "unknown" if attempt.energy.joules is None else f"{attempt.energy.joules:.3g} ({attempt.energy.source})"
        rows.append((attempt.agent, attempt.outcome, f"{attempt.seconds:.2f}", dollars, joules))
    yield Note(table(("", "outcome", "seconds", "dollars", "joules"), rows), style="")
    yield Note(summary(result))


def _with_outcomes(config: Config, outcomes: Path | None) -> Config:
    if outcomes is None:
        return config
    auto = config.policy.auto.model_copy(update={"outcomes": outcomes})
    return config.model_copy(update={"policy": config.policy.model_copy(update={"auto": auto})})


def _choice_lines(decision: SelectionDecision) -> Iterator[Line]:
    yield Text(decision.winner.label)
    for reason in decision.reasons:
        yield Note(Text(reason))
    columns = ("configuration", "score", "dollars", "utility", "outcomes", "similar", "left out because")
    rows = (style_cells(_choice_cells(each), "bold" if each.arm == decision.chosen else "") for each in decision.candidates)
    yield Note(table(columns, rows), style="")


def _choice_cells(candidate: ConsideredArm) -> tuple[str, ...]:
    return (
        candidate.label,
        f"{candidate.score:.2f} \u00b1 {candidate.deviation:.2f}",
        "unknown" if candidate.dollars is None else f"{candidate.dollars:.5f}",
        f"{candidate.utility:.2f}",
        str(candidate.outcomes),
        str(candidate.similar),
        candidate.objection or "",
    )
