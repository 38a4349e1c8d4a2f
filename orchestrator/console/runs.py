"""The list of runs, and the page of one: what happened, what it cost, what left the device."""

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final
from urllib.parse import quote

from ...protocols import NotFound, StoreError
from ..runs.leases import RunDetails, read_details
from ..runs.run import Run, RunState
from ..tracing.page import TraceRow, label_text, rows_of
from ..util.runtime import in_thread
from .blame import blame_form, find_step
from .html import Child, Html, facts, fold, join, table, table_row, tag, text
from .live import Fragments
from .privacy import outbound_table
from .view import Console, Page, PageContent, View, failure, live

_SHOWN: Final = 50
"""Runs in the list."""
_MOST_ROWS: Final = 500
"""Rows of a trace that a page shows; the last ones, if there are more."""
_MOST_TIMELINES: Final = 16
_HEAD: Final = ("run", "state", "strategy", "steps", "began", "user", "task")
_NAMED: Final = {RunState.DONE: "good", RunState.FAILED: "bad", RunState.WAITING: "warn"}


def run_link(run: str) -> Html:
    """Return a link to the page of a run."""
    return tag("a", text(run[:12]), href=f"/console/run?id={quote(run, safe='')}")


def when(seconds: float) -> Html:
    """Return a moment, in the server's own time zone."""
    moment = datetime.fromtimestamp(seconds).astimezone()
    return tag("time", f"{moment:%Y-%m-%d %H:%M:%S}", datetime=moment.isoformat())


async def _list(view: View) -> PageContent:
    return PageContent("Runs", live("runs", await _runs_table(view)), live="/live/runs")


async def _renew_list(view: View) -> Fragments:
    return {"runs": await _runs_table(view)}


async def _runs_table(view: View) -> Html:
    found = await in_thread(view.console.hybrid.runs.list, limit=_SHOWN)
    return table(f"The newest {_SHOWN} runs", _HEAD, map(_row_of, found), empty="No task was served yet. Ask something on the page Chat.")


@lru_cache(maxsize=4 * _SHOWN)
def _row_of(run: Run) -> Html:
    """Return the row of a run, which is made once for each of its states."""
    cells: Sequence[Child] = _cells(run)
    return table_row(_HEAD, cells, key=run.id)


def _cells(run: Run) -> Sequence[Child]:
    return run_link(run.id), state(run), run.strategy, run.steps, when(run.began), text(run.user), text(run.title)


def state(run: Run) -> Html:
    """Return the state of a run, in a colour and in words."""
    name = "interrupted" if run.is_orphaned else run.state.value
    return tag("span", name, class_=f"state {_NAMED.get(run.state, '')}".strip())


async def _run(view: View) -> PageContent:
    run = view.asked("id")
    details = await in_thread(read_details, view.console.hybrid.runs, run)
    body = join([live("run", await _run_body(view, run, details)), _actions(view, details), await blame_form(view, details.run)])
    return PageContent(f"Run {run[:12]}", body, live=f"/live/run?id={quote(run, safe='')}")


async def _renew_run(view: View) -> Fragments:
    run = view.asked("id")
    return {"run": await _run_body(view, run, await in_thread(read_details, view.console.hybrid.runs, run))}


async def _run_body(view: View, run: str, details: RunDetails) -> Html:
    try:
        happened = await in_thread(_happened, view.console, run)
    except NotFound:
        happened = tag("p", "No trace of this run is kept.", class_="empty")
    except StoreError as error:
        happened = failure(error.message, error.hint)
    left = await in_thread(view.console.privacy.outbound_log, run)
    return join([_facts(details), tag("h2", "What happened"), happened, tag("h2", "What left this device"), outbound_table(left)])


def _happened(console: Console, run: str) -> Html:
    """Return the timeline of a run. The trace is read again only where it has grown."""
    length = console.hybrid.traces.length(run)
    known = console.timelines.pop(run, None)
    if known is None or known[0] != length:
        known = (length, _timeline(rows_of(console.hybrid.traces.entries(run))))
    console.timelines[run] = known
    for oldest in list(console.timelines)[:-_MOST_TIMELINES]:
        console.timelines.pop(oldest, None)
    return known[1]


def _facts(details: RunDetails) -> Html:
    run, failed = details.run, details.failure
    pairs = [
        ("state", state(run)),
        ("task", text(details.prompt)),
        ("answer", None if details.answer is None else tag("p", text(details.answer), class_="said")),
        ("error", None if failed is None else text(f"{failed.error}: {failed.message}")),
        ("strategy", run.strategy),
        ("began", when(run.began)),
        ("attempts", ", ".join(f"{each.agent} {each.outcome}" for each in details.attempts)),
    ]
    return facts((name, value) for name, value in pairs if value)


def _actions(view: View, details: RunDetails) -> Html:
    run, found = details.run, []
    secret = tag("input", type="hidden", name="id", value=run.id)
    if run.is_orphaned:
        found.append(view.action("/run/resume", secret, button="Resume this run"))
    if run.state is RunState.RUNNING and not run.is_orphaned:
        found.append(view.action("/run/cancel", secret, button="Cancel this run", confirm="Cancel this run?"))
    return tag("div", found, class_="actions") if found else Html()


def _timeline(rows: Sequence[TraceRow]) -> Html:
    end = max((row.began + row.seconds for row in rows), default=0.0) or 1.0
    shown = [(number, row) for number, row in enumerate(rows)][-_MOST_ROWS:]
    return tag("div", [_row(row, end, f"row{number}") for number, row in shown], class_="timeline")


def _row(row: TraceRow, end: float, key: str) -> Html:
    side = str(row.side) if row.side is not None and row.kind in ("step", "attempt") else row.kind
    start, width = 100 * row.began / end, max(100 * row.seconds / end, 0.6)
    bar = tag(
        "svg", tag("rect", x=f"{min(start, 99.4):.2f}%", y="0", width=f"{width:.2f}%", height="100%"), class_="bar", aria_hidden="true"
    )
    figures = tag("span", " · ".join(row.figures), class_="figures")
    summary = [tag("span", text(f"{row.scope}: " * bool(row.scope) + row.title, 300), class_="what"), bar, figures]
    inside = [("asked", row.asked), ("said", row.text), ("label", "" if row.label is None else label_text(row.label))]
    details = [[tag("p", name, class_="note"), tag("pre", text(said))] for name, said in inside if said]
    moment = tag("p", f"{row.began:.3f} s after the run began", class_="note")
    css = " ".join(["row", side, *(["bad"] if row.is_bad else [])])
    return tag("div", fold(summary, details, moment, key=key), class_=css, data_key=key)


async def _resume(view: View) -> str:
    run = view.asked("id")
    found = await in_thread(view.console.hybrid.runs.show, run)
    await view.console.chats.resume(run, user=found.user, approvals={})
    return f"/run?id={quote(run, safe='')}"


async def _cancel(view: View) -> str:
    run = view.asked("id")
    await in_thread(view.console.hybrid.runs.cancel, run)
    return f"/run?id={quote(run, safe='')}"


RUNS: Final = Page("/runs", "Runs", _list, renew=_renew_list)
RUN: Final = Page("/run", "", _run, {"resume": _resume, "cancel": _cancel, "blame": find_step}, renew=_renew_run)
