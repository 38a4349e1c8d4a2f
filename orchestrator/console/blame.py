"""Find the step that failed a run, on the run's page: compared with a run of the same task that went well."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from ...protocols import DeadlineExceeded, InvalidRequest
from ..runs.run import Run, RunState
from ..util.runtime import in_thread
from .html import Child, Html, field, join, table, tag, text
from .view import PageContent, View

if TYPE_CHECKING:
    from ..lab.blame import Blame

_SECONDS: Final = 120.0
"""Seconds that a search may take."""
_CANDIDATES: Final = 30
"""Runs that went well among which the reader chooses."""


async def blame_form(view: View, run: Run) -> Html:
    """Return the form that asks for a run that went well, and for the right answer if that run's is not it."""
    done = await in_thread(view.console.hybrid.runs.list, state=RunState.DONE, limit=_CANDIDATES)
    others = [each for each in done if each.id != run.id]
    if not others or run.state not in (RunState.DONE, RunState.FAILED):
        return Html()
    choice = tag("select", [tag("option", text(f"{each.title} ({each.id[:12]})", 100), value=each.id) for each in others], name="reference")
    answer = tag("input", type="text", name="expected")
    hidden = tag("input", type="hidden", name="id", value=run.id)
    fields = [field("A run of the same task that went well", choice), field("The right answer, if that run's is not it", answer)]
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
        async with asyncio.timeout(_SECONDS):
            found = await find_blame(view.console.hybrid.pool, failed, good, expected)
    except TimeoutError:
        raise DeadlineExceeded(f"the search took longer than {_SECONDS:g} s", hint="nearfar trace blame has no such limit") from None
    return PageContent("Blame", _found(found))


def _found(found: "Blame") -> Html:
    decisive = found.decisive
    if decisive is None:
        told = "No single step could be shown to have failed this run."
    else:
        sure = "" if found.is_certain else " An earlier step may have failed it: the outcome of correcting it is unknown."
        told = f"Step {decisive.step}, {decisive.agent} ({decisive.side}), failed this run.{sure}"
    back = tag("p", tag("a", "Back to the run", href=f"/console/run?id={quote(found.run, safe='')}"))
    head = ("step", "agent", "said", "corrected", "then")
    return join([tag("p", told, class_="lead"), table("Steps that were corrected", head, _rows(found)), back])


def _rows(found: "Blame") -> Iterator[Sequence[Child]]:
    for trial in found.trials:
        then = trial.outcome if trial.answer is None else f"{trial.outcome}: {trial.answer}"
        told = f"{then} {trial.because}".strip()
        yield trial.step, text(f"{trial.agent} {trial.role}"), text(trial.said, 500), text(trial.corrected, 500), text(told, 500)
