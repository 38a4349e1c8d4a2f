"""The page of what left this device, and of what was held back."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from ..runs.run import Run
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
    told = f"The newest {len(runs)} runs. Texts are not recorded here: only their size, digest, label and findings."
    return PageContent("Privacy", join([tag("p", told), *_summary([each for _, records in found for each in records]), *_by_run(found)]))


def _summary(records: Sequence[OutboundRecord]) -> Iterator[Html]:
    """Yield how much left for each agent, and how much was held back."""
    for outcome, caption in (("left", "What left this device"), ("held", "What was held back"), ("cached", "What a cache answered")):
        of_agent: dict[str, list[OutboundRecord]] = {}
        for each in records:
            if each.outcome == outcome:
                of_agent.setdefault(each.agent, []).append(each)
        rows = [(text(agent), f"{len(sent):,}", f"{sum(each.bytes for each in sent):,}", _kinds(sent)) for agent, sent in of_agent.items()]
        if rows or outcome == "left":
            empty = "Nothing left this device."
            yield table(caption, ("for", "messages", "bytes", "personal data found in them"), rows, empty=empty)


def _kinds(records: Sequence[OutboundRecord]) -> str:
    counts: Counter[str] = Counter()
    for each in records:
        counts.update(each.findings)
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "none"


def _by_run(found: Sequence[tuple[Run, Sequence[OutboundRecord]]]) -> Iterator[Html]:
    """Yield each run with its messages; those of which something was held back are unfolded."""
    from .runs import run_link

    yield tag("h2", "By run")
    for run, records in found:
        if records:
            is_held = any(each.outcome == "held" for each in records)
            link = tag("p", "Run ", run_link(run.id), class_="note")
            yield fold(text(run.title, 120), outbound_table(records), link, key=run.id, opened=is_held)
    if not any(records for _, records in found):
        yield tag("p", "Nothing was about to leave this device. A task goes to a far agent only if it is public.", class_="empty")


PRIVACY: Final = Page("/privacy", "Privacy", _show)
