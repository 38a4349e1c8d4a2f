"""Conversations: a turn runs on while its page is closed; under each answer stands who gave it, why, and at what cost."""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final
from urllib.parse import quote
from uuid import uuid4

from ...protocols import ApprovalNeeded, Cancelled, InternalError, InvalidRequest, NearfarError, NotFound
from ...protocols.secrets import log_defect
from ..hybrid import Hybrid
from ..hybrid.arguments import TaskOptions
from ..hybrid.session import Session
from ..runs import Run, RunState
from ..runs.sessions import SessionStore, SessionSummary
from ..runs.store import RunStore
from ..task.events import (
    AgentText,
    AttemptEnded,
    AttemptStarted,
    Routed,
    SupervisorSpoke,
    TaskEvent,
    TaskFinished,
    ToolFinished,
    ToolStarted,
)
from ..task.results import Result
from ..util.runtime import cancel_task, in_thread
from .html import Html, fold, form_field, join, tag, text
from .runs import run_link, state
from .view import Fragments, Page, PageContent, View, live

USER: Final = "console"
"""On whose behalf the console's conversations are held."""
_MOST_STEPS: Final = 200
_AT_ONCE: Final = 0.5
"""Seconds for which a page waits to hear that a run cannot go on."""
_MOST_KEPT: Final = 50
"""Conversations whose last turn is shown."""

logger = logging.getLogger(__name__)
_LISTED: Final = 20


@dataclass(slots=True)
class ShownTurn:
    """One turn, as far as it has come."""

    prompt: str
    text: str = ""
    """Text of the attempt that is under way, or the answer."""
    steps: list[str] = field(default_factory=list)
    """Events so far, in plain words."""
    result: Result | None = None
    error: NearfarError | None = None
    task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self.task is not None and not self.task.done()

    def hear(self, event: TaskEvent) -> None:
        """Take in the next event."""
        match event:
            case Routed(decision=decision):
                self._step(f"asks {', then '.join(decision.candidates)}: {'; '.join(decision.reasons[:3])}")
            case AttemptStarted():
                self.text = ""
                self._step(f"{event.agent} ({event.side}, {event.model}) begins")
            case AgentText():
                self.text += event.text
            case ToolStarted(call=call):
                self._step(f"calls {call.name}({', '.join(map(str, call.arguments.values()))})")
            case ToolFinished(result=result):
                self._step(f"{result.name} -> {result.content[:500]}")
            case SupervisorSpoke():
                self._step(f"{event.agent} {'plans' if event.verdict is None else f'says {event.verdict}'}: {event.text[:500]}")
            case AttemptEnded(attempt=attempt):
                self._step(f"{attempt.agent} {attempt.outcome}" + (f": {attempt.reason}" if attempt.reason else ""))
            case TaskFinished(result=result):
                self.result, self.text = result, result.text

    def _step(self, said: str) -> None:
        if len(self.steps) < _MOST_STEPS:
            self.steps.append(said)


class Chats:
    """The conversations that pages have begun."""

    def __init__(self, hybrid: Hybrid) -> None:
        self._hybrid = hybrid
        self._turns: dict[str, ShownTurn] = {}
        self._resumed: set[asyncio.Task[None]] = set()

    def last(self, name: str) -> ShownTurn | None:
        """Return the last turn of a conversation that this process has served."""
        return self._turns.get(name)

    def begin(self, name: str, prompt: str, options: TaskOptions) -> None:
        """Begin a turn. Raises `InvalidRequest` while the turn before it runs."""
        if (earlier := self._turns.pop(name, None)) is not None and earlier.is_running:
            self._turns[name] = earlier
            raise InvalidRequest("this conversation is being answered", hint="wait for the answer, or stop it")
        turn = self._turns[name] = ShownTurn(prompt)
        turn.task = asyncio.create_task(self._serve(turn, name, options))
        for old in [key for key, each in self._turns.items() if not each.is_running][:-_MOST_KEPT]:
            del self._turns[old]

    async def resume(self, run: str, *, user: str, approvals: Mapping[str, bool]) -> None:
        """Let a run go on, with answers to the calls that it waits for. Raises what stops it at once; it may wait for further calls."""

        async def work() -> None:
            with suppress(ApprovalNeeded):
                await self._hybrid.resume(run, user=user, approvals=approvals)

        task = asyncio.create_task(work())
        self._resumed.add(task)
        task.add_done_callback(self._resumed.discard)
        await asyncio.wait({task}, timeout=_AT_ONCE)
        if task.done():
            task.result()
        else:
            task.add_done_callback(_log_failure)

    async def stop(self, name: str) -> None:
        """Stop the turn that runs, if there is one."""
        if (turn := self._turns.get(name)) is not None and turn.task is not None:
            await cancel_task(turn.task)
            turn.error = turn.error or (Cancelled("this turn was stopped") if turn.result is None else None)

    async def aclose(self) -> None:
        """Stop all turns."""
        for name in tuple(self._turns):
            await self.stop(name)
        for task in tuple(self._resumed):
            await cancel_task(task)

    async def _serve(self, turn: ShownTurn, name: str, options: TaskOptions) -> None:
        try:
            session = self._hybrid.session(name, user=USER)
            async with aclosing(session.stream(turn.prompt, **options)) as events:
                async for event in events:
                    turn.hear(event)
        except NearfarError as error:  # the boundary of a task: its page tells of it
            turn.error = error
            logger.info("a turn of the console failed: %s", error)
        except Exception as defect:  # the boundary of a task
            log_defect(logger, "a turn of the console failed", defect)
            turn.error = InternalError("this turn failed", hint="the server's log has the details")


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("a run that the console resumed failed: %s", error)


async def _show(view: View) -> PageContent:
    name = view.query.get("session") or f"chat-{uuid4().hex[:8]}"
    session = view.console.hybrid.session(name, user=USER)
    known = _listed(await in_thread(_known, view), name)
    talk = live("talk", await _talk(view, session), follows=True)
    return PageContent("Chat", join([known, talk, _ask(view, name)]), live=_address(name))


async def _renew(view: View) -> Fragments:
    return {"talk": await _talk(view, view.console.hybrid.session(view.asked("session"), user=USER))}


def _address(name: str) -> str:
    return f"/live/?session={quote(name, safe='')}"


def _known(view: View) -> Sequence[SessionSummary]:
    return SessionStore(view.console.hybrid.runs).list(user=USER)[:_LISTED]


def _listed(known: Sequence[SessionSummary], name: str) -> Html:
    links = [
        tag(
            "li",
            tag(
                "a",
                text(each.title, 60),
                href=f"/console/?session={quote(each.name, safe='')}",
                aria_current="true" if each.name == name else None,
            ),
        )
        for each in known
    ]
    new = tag("a", "New conversation", href="/console/")
    return fold("Conversations", new, tag("ul", links), key="conversations") if links else Html()


async def _talk(view: View, session: Session) -> Html:
    """Return the conversation: what is kept of it, and the turn that is under way."""
    messages = await in_thread(lambda: session.messages)
    last = await in_thread(lambda: session.last_result)
    turn = view.console.chats.last(session.name)
    run = None if turn is None else await in_thread(_waiting_run, view.console.hybrid.runs, turn)
    said = [_bubble(message.role, message.text) for message in messages if message.role in ("user", "assistant") and message.text]
    if turn is not None and (turn.is_running or turn.error is not None) and (run is None or run.state is not RunState.DONE):
        return join([*said, _bubble("user", turn.prompt), _under_way(view, turn, session.name, run)])
    if last is not None:
        said.append(_why(last, turn))
    return join(said) if said else tag("p", "Ask something. It stays on this device unless you say that it may leave.", class_="empty")


def _waiting_run(runs: RunStore, turn: ShownTurn) -> Run | None:
    """Return the run of a turn that waited for approval, as it is now: it may have gone on, and its answer be kept."""
    with suppress(NotFound):
        return runs.show(turn.error.run) if isinstance(turn.error, ApprovalNeeded) else None
    return None


@lru_cache(maxsize=512)
def _bubble(role: str, said: str) -> Html:
    return tag("div", text(said), class_=f"bubble {role}")


def _under_way(view: View, turn: ShownTurn, name: str, run: Run | None) -> Html:
    steps = tag("ol", [tag("li", text(step, 600)) for step in turn.steps])
    if run is not None and run.state is not RunState.WAITING:
        return tag("div", tag("p", "The call was answered. Run ", run_link(run.id), ": ", state(run)), class_="problem fine")
    if turn.error is not None:
        where = tag("a", "Answer it on the page Approvals.", href="/console/approvals") if isinstance(turn.error, ApprovalNeeded) else None
        told = tag(
            "div", tag("p", text(turn.error.message)), tag("p", text(turn.error.hint)) if turn.error.hint else None, where, class_="problem"
        )
        return join([told, fold(f"{len(turn.steps)} steps", steps, key="steps")])
    stop = view.action("/stop", tag("input", type="hidden", name="session", value=name), button="Stop")
    draft = tag("div", text(turn.text), class_="bubble assistant draft") if turn.text else tag("p", "Working …", class_="note")
    return join([draft, fold(f"{len(turn.steps)} steps so far", steps, key="steps"), stop])


def _why(result: Result, turn: ShownTurn | None) -> Html:
    """Return who gave the last answer, and why, what it cost, and the attempts before it."""
    who = f"{result.agent} ({result.side}, {result.model})"
    cost = "price unknown" if result.dollars is None else f"${result.dollars:.6f}".rstrip("0").rstrip(".")
    sure = "" if result.confidence is None else f", confidence {result.confidence:.2f}"
    head = f"{who}{sure}, {cost}, {result.seconds:.2f} s"
    steps = [] if turn is None else [tag("h3", "Steps"), tag("ol", [tag("li", text(step, 600)) for step in turn.steps])]
    inside = [
        tag("ul", list(_attempts(result))),
        tag("ul", [tag("li", text(reason)) for reason in result.reasons]),
        *steps,
        tag("p", "Run ", run_link(result.id)),
    ]
    return tag("div", fold(text(head), *inside, key="why"), class_=f"why {result.side}")


def _attempts(result: Result) -> Iterator[Html]:
    for attempt in result.attempts:
        why = f": {attempt.reason}" if attempt.reason else ""
        yield tag("li", text(f"{attempt.agent} ({attempt.side}) {attempt.outcome}{why}"))


def _ask(view: View, name: str) -> Html:
    prompt = tag("textarea", name="prompt", required=True, rows=3, maxlength=100000, autofocus=True)
    leave = tag("label", tag("input", type="checkbox", name="public", value="yes"), tag("span", "It may leave this device"), class_="check")
    hidden = tag("input", type="hidden", name="session", value=name)
    return view.action("/ask", hidden, form_field("Ask", prompt), leave, button="Send", css="ask")


async def _begin(view: View) -> str:
    name = view.asked("session")
    options: TaskOptions = {"sensitivity": "public"} if view.form.get("public") == "yes" else {}
    view.console.chats.begin(name, view.asked("prompt"), options)
    return f"/?session={quote(name, safe='')}"


async def _stop(view: View) -> str:
    name = view.asked("session")
    await view.console.chats.stop(name)
    return f"/?session={quote(name, safe='')}"


CHAT: Final = Page("/", "Chat", _show, {"ask": _begin, "stop": _stop}, renew=_renew)
