"""The pages of runs: the list, one run with what happened and what it cost, the calls that wait for approval, and what left this device."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from pydantic import JsonValue

from ...protocols import ApprovalRequest, DeadlineExceeded, InvalidRequest, NotFound, StoreError
from ..runs import Run, RunState
from ..runs.leases import RunDetails, read_details
from ..safety.outbound_filter import OutboundRecord
from ..safety.provenance import TrustedTexts
from ..tracing import RunBegan, ToolRan
from ..tracing.page import TraceRow, label_text, rows_of
from ..util.runtime import in_thread
from ..util.text import spell_out
from .html import Child, Html, facts, fold, form_field, join, table, table_row, tag, text
from .view import Answer, Console, Fragments, Page, PageContent, View, failure, live

if TYPE_CHECKING:
    from ..lab.blame import Blame

_SHOWN: Final = 50
"""Runs in the list."""
_MOST_ROWS: Final = 500
"""Rows of a trace that a page shows; the last ones, if there are more."""
_MOST_TIMELINES: Final = 16
_HEAD: Final = ("run", "state", "strategy", "steps", "began", "user", "task")
_NAMED: Final = {RunState.DONE: "good", RunState.FAILED: "bad", RunState.WAITING: "warn"}
_BLAME_SECONDS: Final = 120.0
"""Seconds that a search for the step that failed a run may take."""
_CANDIDATES: Final = 30
"""Runs that went well among which the reader chooses."""
_PRIVACY_RUNS: Final = 30
"""Newest runs whose records are shown."""
_MOST_WAITING: Final = 50
_USER: Final = "the user's words"
Texts = Mapping[str, TrustedTexts]
"""Texts that a run has read, by their origin."""


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


async def blame_form(view: View, run: Run) -> Html:
    """Return the form that asks for a run that went well, and for the right answer if that run's is not it."""
    done = await in_thread(view.console.hybrid.runs.list, state=RunState.DONE, limit=_CANDIDATES)
    others = [each for each in done if each.id != run.id]
    if not others or run.state not in (RunState.DONE, RunState.FAILED):
        return Html()
    choice = tag("select", [tag("option", text(f"{each.title} ({each.id[:12]})", 100), value=each.id) for each in others], name="reference")
    answer = tag("input", type="text", name="expected")
    hidden = tag("input", type="hidden", name="id", value=run.id)
    fields = [form_field("A run of the same task that went well", choice), form_field("The right answer, if that run's is not it", answer)]
    note = tag("p", "Recorded results stand in for tools: none runs. Only near agents are asked again.", class_="note")
    asked = view.action("/run/blame", hidden, *fields, note, button="Find the step that failed this run", css="quiet")
    return tag("section", tag("h2", "Blame"), asked, class_="card")


async def find_step(view: View) -> PageContent:
    """Answer the form. Raises `InvalidRequest` for a run that did not fail, `DeadlineExceeded` for a search that takes too long."""
    from ..lab.blame import find_blame  # loads LangGraph
    from ..lab.blame_replay import RecordedRun

    run, reference = view.asked("id"), view.asked("reference")
    traces = view.console.hybrid.traces
    failed = RecordedRun(run, await in_thread(traces.entries, run))
    good = RecordedRun(reference, await in_thread(traces.entries, reference))
    expected = view.form.get("expected") or good.answer
    if expected is None:
        raise InvalidRequest("the right answer is not known", hint="the run that went well has none: name it")
    try:
        async with asyncio.timeout(_BLAME_SECONDS):
            found = await find_blame(view.console.hybrid.pool, failed, good, expected)
    except TimeoutError:
        raise DeadlineExceeded(f"the search took longer than {_BLAME_SECONDS:g} s", hint="nearfar trace blame has no such limit") from None
    return PageContent("Blame", _told_blame(found))


def _told_blame(found: "Blame") -> Html:
    decisive = found.decisive
    if decisive is None:
        told = "No single step could be shown to have failed this run."
    else:
        sure = "" if found.is_certain else " An earlier step may have failed it: the outcome of correcting it is unknown."
        told = f"Step {decisive.step}, {decisive.agent} ({decisive.side}), failed this run.{sure}"
    back = tag("p", tag("a", "Back to the run", href=f"/console/run?id={quote(found.run, safe='')}"))
    head = ("step", "agent", "said", "corrected", "then")
    return join([tag("p", told, class_="lead"), table("Steps that were corrected", head, _trial_rows(found)), back])


def _trial_rows(found: "Blame") -> Iterator[Sequence[Child]]:
    for trial in found.trials:
        then = trial.outcome if trial.answer is None else f"{trial.outcome}: {trial.answer}"
        told = f"{then} {trial.because}".strip()
        yield trial.step, text(f"{trial.agent} {trial.role}"), text(trial.said, 500), text(trial.corrected, 500), text(told, 500)


def outbound_table(records: Sequence[OutboundRecord]) -> Html:
    """Return what left for a run, or was held back, and why."""

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


async def _show_privacy(view: View) -> PageContent:
    console = view.console
    runs = await in_thread(console.hybrid.runs.list, limit=_PRIVACY_RUNS)
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

    yield tag("h2", "By run")
    for run, records in found:
        if records:
            is_held = any(each.outcome == "held" for each in records)
            link = tag("p", "Run ", run_link(run.id), class_="note")
            yield fold(text(run.title, 120), outbound_table(records), link, key=run.id, opened=is_held)
    if not any(records for _, records in found):
        yield tag("p", "Nothing was about to leave this device. A task goes to a far agent only if it is public.", class_="empty")


async def _show_approvals(view: View) -> PageContent:
    return PageContent("Approvals", live("approvals", await _approvals(view)), live="/live/approvals")


async def _renew_approvals(view: View) -> Fragments:
    return {"approvals": await _approvals(view)}


async def _approvals(view: View) -> Html:
    runs = view.console.hybrid.runs
    waiting = await in_thread(runs.list, state=RunState.WAITING, limit=_MOST_WAITING)
    found = [await in_thread(read_details, runs, run.id) for run in waiting]
    asked = [
        _asked(view, details, request, texts)
        for details in found
        for texts in [await in_thread(_texts_of, view, details.run.id)]
        for request in details.waits_for
    ]
    return join(asked) if asked else tag("p", "No tool call waits for approval.", class_="empty")


def _texts_of(view: View, run: str) -> Texts:
    """Return what a run was told, by its origin: the user's words, and the results of each tool. Empty without a trace that can be read."""
    try:
        entries = view.console.hybrid.traces.entries(run)
    except (NotFound, StoreError):
        return {}
    texts: dict[str, list[str]] = {}
    for entry in entries:
        if isinstance(entry, RunBegan):
            texts.setdefault(_USER, []).extend(message.text for message in entry.task.messages if message.role == "user")
        elif isinstance(entry, ToolRan):
            texts.setdefault(f"a result of {entry.call.name}", []).append(entry.result.content)
    return {origin: TrustedTexts(said) for origin, said in texts.items()}


def _origin(value: JsonValue, texts: Texts) -> str:
    """Return where an argument comes from, in words."""
    values = list(_values(value))
    origins = [origin for origin, said in texts.items() if values and all(said.strength(each) for each in values)]
    if not texts or not values:
        return ""
    return f"from {' and '.join(origins)}" if origins else "found in no text of the run: the model made it"


def _values(value: JsonValue) -> Iterator[str | float]:
    """Yield the texts and numbers in an argument."""
    if isinstance(value, dict):
        for each in value.values():
            yield from _values(each)
    elif isinstance(value, list):
        for each in value:
            yield from _values(each)
    elif isinstance(value, (str, int, float)) and not isinstance(value, bool):
        yield value


def _asked(view: View, details: RunDetails, request: ApprovalRequest, texts: Texts) -> Html:
    """Return one call: the tool, its arguments spelled out with their origins, why it waits, and the two answers."""
    run = details.run
    arguments = facts((name, _argument(value, texts)) for name, value in request.call.arguments.items())
    hidden = [tag("input", type="hidden", name=name, value=value) for name, value in (("id", run.id), ("call", request.id))]
    answers = [
        view.action("/approvals/yes", *hidden, button="Approve", css="yes"),
        view.action("/approvals/no", *hidden, button="Deny", css="no"),
    ]
    return tag(
        "section",
        tag("h2", "Call ", tag("code", text(request.call.name))),
        tag("p", text(request.reason)),
        arguments or tag("p", "It has no arguments."),
        tag("p", "For ", run_link(run.id), ", begun ", when(run.began), ": ", text(details.prompt, 500), class_="note"),
        tag("div", answers, class_="actions"),
        class_="card",
        data_key=request.id,
    )


def _argument(value: JsonValue, texts: Texts) -> Html:
    origin = _origin(value, texts)
    return join([tag("code", text(spell_out(str(value)))), tag("span", text(f" {origin}"), class_="note") if origin else None])


def _answering(*, is_approved: bool) -> Answer:
    async def answer(view: View) -> str:
        run, call = view.asked("id"), view.asked("call")
        found = await in_thread(view.console.hybrid.runs.show, run)
        await view.console.chats.resume(run, user=found.user, approvals={call: is_approved})
        return "/approvals"

    return answer


RUNS: Final = Page("/runs", "Runs", _list, renew=_renew_list)
RUN: Final = Page("/run", "", _run, {"resume": _resume, "cancel": _cancel, "blame": find_step}, renew=_renew_run)
PRIVACY: Final = Page("/privacy", "Privacy", _show_privacy)
APPROVALS: Final = Page(
    "/approvals",
    "Approvals",
    _show_approvals,
    {"yes": _answering(is_approved=True), "no": _answering(is_approved=False)},
    renew=_renew_approvals,
)
