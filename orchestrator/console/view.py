"""A page of the console: the browser that asks for it, the frame around it, and keeping it up to date while it is open. What changes is
rendered once for all that show it, and only its new lines are sent.
"""

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from ...protocols import InvalidRequest, NearfarError, PermissionDenied, Unauthenticated
from ...protocols.secrets import log_defect
from ..budgets import BudgetBook
from ..compose.config import Config
from ..hybrid import Hybrid
from ..safety.outbound_filter import PrivacyRecords
from ..serve.dialect import event
from .html import Html, join, tag, text

if TYPE_CHECKING:
    from .chat import Chats  # whose page is a `View`


logger = logging.getLogger(__name__)
LINK_SECONDS: Final = 600.0
"""Seconds for which a one-time link can be opened."""
SESSION_SECONDS: Final = 12 * 3600.0
"""Seconds for which a browser stays logged in."""
_MOST: Final = 100
"""Links, and sessions, that are remembered."""
_HINT: Final = "run `nearfar serve console` again, or press Enter in its terminal, for a new link"
Fragments = Mapping[str, str]
"""HTML by the id of the element that it replaces."""
_NOTHING: Final[Fragments] = {}
Render = Callable[[], Awaitable[Fragments]]

PERIOD: Final = 0.2
"""Seconds between two looks at what a page shows."""
_SHARE: Final = 1.0
"""Seconds between two looks for each second that one takes: a long page is looked at less often."""
QUIET: Final = 15.0
"""Seconds after which a line without a change is kept open by a comment."""
MOST_PAGES: Final = 100
"""Pages that are kept up to date at once."""


class Update(NamedTuple):
    """The fragments of a page, and those that it had before."""

    before: Fragments
    after: Fragments


def patch(before: str, after: str) -> list[str | list[int]]:
    """Return the lines of a new text: a text for a new line, and the first and the end of a range of lines that the old text had.

    Of an empty text nothing is taken: a browser that connects again still holds the lines of its last connection.
    """
    old = before.split("\n") if before else []
    places = {line: number for number, line in enumerate(old)}
    parts: list[str | list[int]] = []
    for line in after.split("\n"):
        last = parts[-1] if parts else ""
        if isinstance(last, list) and old[last[1] : last[1] + 1] == [line]:
            last[1] += 1
        elif (place := places.get(line)) is not None:
            parts.append([place, place + 1])
        else:
            parts.append(line)
    return parts


class Channel:
    """One view that pages may have open, such as the list of runs: it is rendered for all of them together."""

    def __init__(self, render: Render, period: float = PERIOD) -> None:
        self._render = render
        self._period = period
        self._viewers = 0
        self._task: asyncio.Task[None] | None = None
        self._latest = _NOTHING
        self._told = ""
        self._news = _news()
        self._encoded = (Update(_NOTHING, _NOTHING), b"")

    @property
    def is_watched(self) -> bool:
        """Pages have it open."""
        return self._viewers > 0

    def encoded(self, update: Update) -> bytes:
        """Return an update as a server-sent event. What many pages are sent is encoded once."""
        before, after = update
        known = self._encoded[0]
        if known.before is not before or known.after is not after:
            changed = {name: patch(before.get(name, ""), html) for name, html in after.items() if before.get(name) != html}
            self._encoded = (update, event(orjson.dumps(changed), name="fragments"))
        return self._encoded[1]

    async def view(self) -> AsyncGenerator[Update | None, None]:
        """Yield the fragments whenever they have changed, and None after each quiet while.

        A viewer that is slow misses states in between, and none at the end.
        """
        self._viewers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._look())
        seen = _NOTHING
        try:
            while True:
                if self._latest is seen:
                    await asyncio.wait({self._news}, timeout=QUIET)
                before, seen = seen, self._latest
                yield None if seen is before else Update(before, seen)
        finally:
            self._viewers -= 1
            if not self._viewers and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _look(self) -> None:
        while True:
            began = time.monotonic()
            found = await self._found()
            if found != self._latest:
                news, self._news = self._news, _news()
                self._latest = found
                news.set_result(None)
            await asyncio.sleep(max(self._period, _SHARE * (time.monotonic() - began)))

    async def _found(self) -> Fragments:
        """Return what the view shows now; if that fails, what it showed before."""
        try:
            found = dict(await self._render())
        except NearfarError as error:
            if self._is_new(error):
                logger.warning("a page could not be renewed: %s", error)
        except Exception as defect:  # the boundary of a task: the pages would wait for ever for the next state
            if self._is_new(defect):
                log_defect(logger, "a page could not be renewed", defect)
        else:
            self._told = ""
            return found
        return self._latest

    def _is_new(self, error: Exception) -> bool:
        """The log was not told of this failure by the look before: a store that is damaged fails each of them."""
        before, self._told = self._told, f"{type(error).__name__}: {error}"
        return before != self._told


class Channels:
    """The views that are open, by their address."""

    def __init__(self) -> None:
        self._open: dict[str, Channel] = {}
        self._pages = 0

    @property
    def is_full(self) -> bool:
        """No further page may be opened."""
        return self._pages >= MOST_PAGES

    async def events(self, address: str, render: Render, period: float = PERIOD) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events with what changes in the view at an address, and comments while nothing does."""
        channel = self._open.setdefault(address, Channel(render, period))
        self._pages += 1
        try:
            async with aclosing(channel.view()) as updates:
                async for update in updates:
                    yield b": still here\n\n" if update is None else channel.encoded(update)
        finally:
            self._pages -= 1
            if not channel.is_watched:
                self._open.pop(address, None)


def _news() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True)
class BrowserSession:
    """One browser that is logged in."""

    host: str
    """Value of the `Host` header at the login: the cookie counts there alone."""
    ends: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    """Every form that changes something carries it: no other page can know it."""

    def check(self, token: object) -> None:
        """Raise `PermissionDenied` unless a form carries the token of this session."""
        if not isinstance(token, str) or not hmac.compare_digest(token.encode(), self.csrf.encode()):
            raise PermissionDenied("the form does not come from this console", hint="reload the page, and send it again")


class BrowserLogins:
    """The links that wait to be opened, and the sessions that they have become.

    Args:
        now: seconds that never run backwards.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._links: dict[str, float] = {}
        self._sessions: dict[str, BrowserSession] = {}

    def link(self) -> str:
        """Return the secret of a new link, which can be opened once, and within `LINK_SECONDS`."""
        secret = secrets.token_urlsafe(32)
        self._links[secret] = self._now() + LINK_SECONDS
        _drop_oldest(self._links)
        return secret

    def enter(self, secret: str, host: str) -> str:
        """Return the cookie of a new session for a link's secret. Raises `Unauthenticated` for one that is used, expired or unknown."""
        ends = self._links.pop(secret, None)
        if ends is None:
            raise Unauthenticated("this link was used already, or never was one", hint=_HINT)
        if ends < self._now():
            raise Unauthenticated("this link has expired", hint=_HINT)
        cookie = secrets.token_urlsafe(32)
        self._sessions[cookie] = BrowserSession(host, self._now() + SESSION_SECONDS)
        _drop_oldest(self._sessions)
        return cookie

    def session(self, cookie: str | None, host: str) -> BrowserSession:
        """Return the session of a cookie. Raises `Unauthenticated` for none, one that has ended, and one that was made for another host."""
        found = self._sessions.get(cookie or "")
        if found is None or found.host != host:
            raise Unauthenticated("this browser is not logged in", hint=_HINT)
        if found.ends < self._now():
            del self._sessions[cookie or ""]
            raise Unauthenticated("the session has ended", hint=_HINT)
        return found

    def is_in(self, cookie: str | None, host: str) -> bool:
        """The browser with this cookie is still logged in."""
        with suppress(Unauthenticated):
            return bool(self.session(cookie, host))
        return False

    def leave(self, cookie: str | None) -> None:
        """End the session of a cookie."""
        self._sessions.pop(cookie or "", None)


def _drop_oldest(kept: dict[str, float] | dict[str, BrowserSession]) -> None:
    while len(kept) > _MOST:
        kept.pop(next(iter(kept)))


ROOT: Final = "/console"
"""Path below which every page stands."""


@dataclass(frozen=True, slots=True)
class Console:
    """The parts that all pages share."""

    hybrid: Hybrid
    config: Config
    file: Path | None
    """The file that the configuration was read from; None: from none, so that the policy cannot be changed."""
    budgets: BudgetBook
    privacy: PrivacyRecords
    chats: "Chats"
    timelines: dict[str, tuple[int, Html]] = field(default_factory=dict)
    """Timelines of the runs shown last, with the number of entries of the trace they were made from."""


@dataclass(frozen=True, slots=True)
class View:
    """A request for a page, by a browser that is logged in."""

    console: Console
    session: BrowserSession
    query: Mapping[str, str]
    form: Mapping[str, str]
    """Fields of the form that is sent; empty where a page is only read."""

    def asked(self, name: str) -> str:
        """Return a field of the form, or of the address. Raises `InvalidRequest` without it."""
        value = self.form.get(name) or self.query.get(name)
        if not value:
            raise InvalidRequest(f"the form lacks {name}", hint="reload the page, and send it again")
        return value

    def action(self, path: str, *children: Html, button: str, confirm: str = "", css: str = "") -> Html:
        """Return a form that changes something, with its button. `confirm`: the question that is asked first."""
        secret = tag("input", type="hidden", name="csrf", value=self.session.csrf)
        send = tag("button", button, type="submit")
        return tag("form", secret, *children, send, method="post", action=ROOT + path, data_confirm=confirm or None, class_=css or None)


class PageContent(NamedTuple):
    """Title and body of a page."""

    title: str
    body: Html
    live: str = ""
    """Address of what renews it; empty: nothing does."""
    status: int = 200


Answer = Callable[[View], Awaitable[PageContent | str]]
"""Answers a request with a page, or with the path to go on to."""
Renew = Callable[[View], Awaitable[Fragments]]
"""Returns the parts of a page that may have changed."""


class Page(NamedTuple):
    """One page of the console."""

    path: str
    name: str
    """Its name in the menu; empty: it is reached from another page."""
    show: Answer
    actions: Mapping[str, Answer] = {}
    """Answers to its forms, by their path below that of the page."""
    renew: Renew | None = None
    period: float = PERIOD
    """Seconds between two looks at what it shows."""


def live(name: str, content: Html, *, follows: bool = False) -> Html:
    """Return an element whose content `Renew` returns. `follows`: a page that is read at its end stays there as it grows."""
    return tag("div", content, id=name, aria_live="polite", data_follows=follows)


def document(shown: PageContent, pages: tuple[Page, ...], path: str, session: BrowserSession | None) -> str:
    """Return the whole page."""
    menu = [
        tag("a", page.name, href=ROOT + page.path, aria_current="page" if page.path == path else None)
        for page in pages
        if page.name and session is not None
    ]
    head = join(
        [
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("title", f"{shown.title} · Nearfar"),
            tag("link", rel="stylesheet", href=f"{ROOT}/static/console.css"),
            tag("link", rel="icon", href=f"{ROOT}/static/icon.svg"),
            tag("script", src=f"{ROOT}/static/console.js", defer=True),
        ]
    )
    body = tag(
        "body",
        tag("a", "Skip to the content", href="#content", class_="skip"),
        tag(
            "header",
            tag("a", tag("b", "Nearfar"), href=ROOT + "/", class_="brand"),
            tag("nav", menu, aria_label="Pages"),
            _log_out(session),
        ),
        tag("main", tag("h1", shown.title), shown.body, id="content", tabindex=-1, data_live=ROOT + shown.live if shown.live else None),
    )
    return f"<!doctype html>\n{tag('html', tag('head', head), body, lang='en')}\n"


def _log_out(session: BrowserSession | None) -> Html | None:
    if session is None:
        return None
    secret = tag("input", type="hidden", name="csrf", value=session.csrf)
    return tag("form", secret, tag("button", "Log out", type="submit"), method="post", action=f"{ROOT}/leave", class_="quiet out")


def failure(message: str, hint: str) -> Html:
    """Return an error in the user's terms, and what to do about it."""
    return tag("div", tag("p", tag("strong", text(message))), tag("p", text(hint)) if hint else None, class_="problem", role="alert")
