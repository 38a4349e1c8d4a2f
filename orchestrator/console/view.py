"""One request for a page: what it asks for, and the frame around every page."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from ...protocols import InvalidRequest
from ..budgets.book import BudgetBook
from ..compose.config import Config
from ..hybrid.hybrid import Hybrid
from ..safety.privacy_records import PrivacyRecords
from .access import BrowserSession
from .chats import Chats
from .html import Html, join, tag, text
from .live import PERIOD, Fragments

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
    chats: Chats
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
