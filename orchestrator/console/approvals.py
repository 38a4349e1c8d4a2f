"""The page of tool calls that wait for a yes or a no."""

from typing import Final

from ...protocols import ApprovalRequest
from ..runs.leases import RunDetails, read_details
from ..runs.run import RunState
from ..util.escaping import spell_out
from ..util.runtime import in_thread
from .html import Html, facts, join, tag, text
from .live import Fragments
from .runs import run_link, when
from .view import Answer, Page, PageContent, View, live

_SHOWN: Final = 50


async def _show(view: View) -> PageContent:
    return PageContent("Approvals", live("approvals", await _body(view)), live="/live/approvals")


async def _renew(view: View) -> Fragments:
    return {"approvals": await _body(view)}


async def _body(view: View) -> Html:
    runs = view.console.hybrid.runs
    waiting = await in_thread(runs.list, state=RunState.WAITING, limit=_SHOWN)
    found = [await in_thread(read_details, runs, run.id) for run in waiting]
    asked = [_asked(view, details, request) for details in found for request in details.waits_for]
    return join(asked) if asked else tag("p", "No tool call waits for approval.", class_="empty")


def _asked(view: View, details: RunDetails, request: ApprovalRequest) -> Html:
    """Return one call: the tool, its arguments spelled out, why it waits, and the two answers."""
    run = details.run
    arguments = facts((name, tag("code", text(spell_out(str(value))))) for name, value in request.call.arguments.items())
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
    )


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
