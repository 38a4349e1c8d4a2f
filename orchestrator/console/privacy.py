"""The page of what left this device, and of what was held back."""

from collections.abc import Sequence
from typing import Final

from ..safety.privacy_records import OutboundRecord
from ..util.runtime import in_thread
from .html import Html, fold, join, table, tag, text
from .view import Page, PageContent, View

_RUNS: Final = 30
"""Newest runs whose records are shown."""


def outbound_table(records: Sequence[OutboundRecord]) -> Html:
    """Return what left for a run, or was held back, and why."""
    from .runs import when

    rows = [
        [
            when(each.at),
            text(each.agent),
            tag("span", each.outcome, class_=f"state {'warn' if each.outcome == 'held' else ''}".strip()),
            f"{each.bytes:,}",
            each.tier.value,
            ", ".join(f"{count} {kind}" for kind, count in sorted(each.findings.items())),
            text(each.reason),
        ]
        for each in records
    ]
    head = ("when", "for", "outcome", "bytes", "label", "findings", "why")
    return table("Messages to other agents", head, rows, empty="Nothing was about to leave this device.")


async def _show(view: View) -> PageContent:
    console = view.console
    runs = await in_thread(console.hybrid.runs.list, limit=_RUNS)
    found = [(run, await in_thread(console.privacy.outbound_log, run.id)) for run in runs]
    left = [each for _, records in found for each in records if each.outcome == "left"]
    held = sum(each.outcome == "held" for _, records in found for each in records)
    counted = tag(
        "p",
        f"Of the newest {len(runs)} runs, {len(left)} messages of {sum(each.bytes for each in left):,} bytes left this device, and "
        f"{held} were held back. Texts are not recorded: only their size, digest, label and findings.",
    )
    each_run = [
        fold(text(run.title, 120), outbound_table(records), key=run.id, opened=number == 0)
        for number, (run, records) in enumerate(found)
        if records
    ]
    return PageContent("Privacy", join([counted, *(each_run or [tag("p", "Nothing was about to leave this device.", class_="empty")])]))


PRIVACY: Final = Page("/privacy", "Privacy", _show)
