"""`nearfar privacy audit`."""

from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ...protocols import ConfigError, NotFound
from ..safety.privacy.audit import Departure
from ..safety.privacy.records import PrivacyRecords
from .configuration import read_config
from .console import notes, output, print_json, reported
from .run_choice import RunChoice


def audit_run(chosen: RunChoice, path: Path | None, *, as_json: bool) -> None:
    """Print the departures of a run."""
    with reported(as_json=as_json):
        config = read_config(path)
        if config is None or config.runs is None:
            raise ConfigError("no record is kept of what leaves this device", hint="[runs] in nearfar.toml keeps one for each run")
        with closing(PrivacyRecords(config.runs.folder)) as records:
            run = chosen.of(records)
            found = records.departures(run)
        if not found:
            raise NotFound(f"nothing is on record that was to leave this device for a run {run!r}", hint="the id of a result names its run")
    if as_json:
        print_json({"run": run, "departures": [departure.model_dump(mode="json") for departure in found]})
    else:
        _show(found)


def _show(found: Sequence[Departure]) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("at", "agent", "role", "outcome", "bytes", "label", "placeholders", "findings", "why"):
        table.add_column(column, justify="right" if column == "bytes" else "left")
    for each in found:
        at = datetime.fromtimestamp(each.at).astimezone().isoformat(sep=" ", timespec="seconds")
        findings = ", ".join(f"{count} {type}" for type, count in sorted(each.findings.items()))
        message = (at, each.agent, each.role, each.outcome, f"{each.bytes:,}", each.tier)
        table.add_row(*message, ", ".join(each.placeholders), findings, each.reason)
    output.print(table)
    left = [each.bytes for each in found if each.outcome == "left"]
    held = sum(each.outcome == "held" for each in found)
    notes.print(f"{len(left)} messages of {sum(left):,} bytes left; {held} were held back", style="dim")
