"""The page of tool calls that wait for a yes or a no."""

from collections.abc import Iterator, Mapping
from typing import Final

from pydantic import JsonValue

from ...protocols import ApprovalRequest, NotFound, StoreError
from ..runs.leases import RunDetails, read_details
from ..runs.run import RunState
from ..safety.provenance import TrustedTexts
from ..tracing import RunBegan, ToolRan
from ..util.runtime import in_thread
from ..util.text import spell_out
from .html import Html, facts, join, tag, text
from .live import Fragments
from .runs import run_link, when
from .view import Answer, Page, PageContent, View, live

_SHOWN: Final = 50
_USER: Final = "the user's words"
Texts = Mapping[str, TrustedTexts]
"""Texts that a run has read, by their origin."""


async def _show(view: View) -> PageContent:
    return PageContent("Approvals", live("approvals", await _body(view)), live="/live/approvals")


async def _renew(view: View) -> Fragments:
    return {"approvals": await _body(view)}


async def _body(view: View) -> Html:
    runs = view.console.hybrid.runs
    waiting = await in_thread(runs.list, state=RunState.WAITING, limit=_SHOWN)
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


APPROVALS: Final = Page(
    "/approvals", "Approvals", _show, {"yes": _answering(is_approved=True), "no": _answering(is_approved=False)}, renew=_renew
)
