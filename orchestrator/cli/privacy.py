"""`nearfar privacy`: show what left this device, and what was held back."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime

import typer

from ...protocols import ConfigError, NotFound
from ..safety.privacy_records import OutboundRecord, PrivacyRecords
from . import options
from .printing import Line, Note, right, show, table
from .running import report_errors

app = typer.Typer(no_args_is_help=True)


@app.command("audit")
def audit_run(
    run: options.RunName = None,
    last: options.Last = False,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Print what left the device for a run, when, for which agent and why it was allowed, and what was held back. Texts are not shown."""
    with report_errors(as_json=as_json):
        loaded = options.read_config(config)
        if loaded is None or loaded.runs is None:
            raise ConfigError("no record is kept of what leaves this device", hint="[runs] in nearfar.toml keeps one for each run")
        with closing(PrivacyRecords(loaded.runs.folder)) as records:
            chosen = options.RunChoice(run, last).id_in(records)
            found = records.outbound_log(chosen)
        if not found:
            raise NotFound(f"there is no privacy record for a run {chosen!r}", hint="the id of a result is the id of its run")
    data = {"run": chosen, "departures": [departure.model_dump(mode="json") for departure in found]}
    show(data, _lines(found), as_json=as_json)


def _lines(found: Sequence[OutboundRecord]) -> Iterator[Line]:
    yield table(("at", "agent", "role", "outcome", *right("bytes"), "label", "placeholders", "findings", "why"), map(_cells, found))
    left = [each.bytes for each in found if each.outcome == "left"]
    held = sum(each.outcome == "held" for each in found)
    yield Note(f"{len(left)} messages of {sum(left):,} bytes left; {held} were held back")


def _cells(departure: OutboundRecord) -> tuple[str, ...]:
    at = datetime.fromtimestamp(departure.at).astimezone().isoformat(sep=" ", timespec="seconds")
    findings = ", ".join(f"{count} {type}" for type, count in sorted(departure.findings.items()))
    size, placeholders = f"{departure.bytes:,}", ", ".join(departure.placeholders)
    return (at, departure.agent, departure.role, departure.outcome, size, departure.tier, placeholders, findings, departure.reason)
