"""`nearfar policy card`: see, share and take over the cards by which a cascade weighs its evidence."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ...protocols import ConfigError
from ..routing.cards import DEFAULT_CARD, baked, bind, by_role, is_by_role, opinions_of
from ..routing.draft_outcomes import drafts_of, escalated_to
from ..routing.escalation import Escalation, EscalationCard, read_card
from ..routing.outcomes import OutcomeStore
from . import options
from .printing import Line, count_text, fact_table, show, warn
from .running import report_errors

app = typer.Typer(no_args_is_help=True, help="See, share and take over the cards by which a cascade weighs its evidence.")
Log = Annotated[Path | None, typer.Option(help="Router's log whose outcomes are baked in. Default: [policy.router] log.")]
Draft = Annotated[str, typer.Option(help="Agent whose drafts are judged.")]
Far = Annotated[str, typer.Option(help="Agent to which is escalated.")]


@app.command("show")
def show_card(
    card: Annotated[Path | None, typer.Argument(help="File of a card. Default: the policy's card, else the shipped one.")] = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Print what a card was learned from, and what it looks at."""
    with report_errors(as_json=as_json):
        known = read_card(card or _configured(config) or DEFAULT_CARD)
        show(known.model_dump(mode="json"), _lines(known), as_json=as_json)


@app.command("export")
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
        learned = _with_outcomes(card, log, name="" if path is None else str(path), draft=draft, far=far)
        shared = by_role(learned)
        _write(shared, out)
        show(shared.model_dump(mode="json"), _lines(shared), as_json=as_json)


@app.command("import")
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
        show({"escalation": str(out), **bound.model_dump(mode="json")}, _lines(bound), as_json=as_json)


def _configured(config: Path | None) -> Path | None:
    loaded = options.read_config(config)
    return None if loaded is None else loaded.policy.evidence.escalation


def _with_outcomes(card: EscalationCard, log: Path | None, *, name: str, draft: str, far: str) -> EscalationCard:
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
            f"{out} cannot be written: {error.strerror or error}", hint="name a file in a folder that you may write to"
        ) from error


def _lines(card: EscalationCard) -> Iterator[Line]:
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
