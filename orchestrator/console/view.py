"""One request for a page: the browser that makes it, what it asks for, and the frame around every page."""

import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ...protocols import InvalidRequest, PermissionDenied, Unauthenticated
from ..budgets import BudgetBook
from ..compose.config import Config
from ..hybrid.hybrid import Hybrid
from ..safety.outbound_filter import PrivacyRecords
from .html import Html, join, tag, text
from .live import PERIOD, Fragments

if TYPE_CHECKING:
    from .chat import Chats  # whose page is a `View`

LINK_SECONDS: Final = 600.0
"""Seconds for which a one-time link can be opened."""
SESSION_SECONDS: Final = 12 * 3600.0
"""Seconds for which a browser stays logged in."""
_MOST: Final = 100
"""Links, and sessions, that are remembered."""
_HINT: Final = "run `nearfar serve console` again, or press Enter in its terminal, for a new link"


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
