"""Serve the console: logins, pages, the forms that change something, and what keeps open pages up to date."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, closing
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl

import anyio
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...protocols import ConfigError, InternalError, InvalidRequest, NearfarError, NotFound, RateLimited, Unauthenticated
from ...protocols.address import parse_address
from ...protocols.secrets import log_defect
from ..budgets import open_budgets
from ..compose.config import Config
from ..compose.hub import ServeConfig
from ..hybrid import Hybrid
from ..safety.outbound_filter import PrivacyRecords
from ..serve import Front
from ..serve.callers import OriginCheck
from ..serve.endpoint import while_connected
from ..serve.requests import ClientLeft, anthropic_error, encoded, read_body, status_of
from .chat import CHAT, Chats
from .devices import DEVICES
from .memory import ERASURE, ITEM, MEMORY
from .money import MONEY, TRADEOFF
from .policy import POLICY
from .runs import APPROVALS, PRIVACY, RUN, RUNS
from .view import ROOT, Answer, BrowserLogins, BrowserSession, Channels, Console, Page, PageContent, View, document, failure

logger = logging.getLogger(__name__)

PAGES: Final = (CHAT, RUNS, RUN, APPROVALS, POLICY, TRADEOFF, MONEY, MEMORY, ITEM, ERASURE, DEVICES, PRIVACY)
"""In the order of the menu."""
COOKIE: Final = "nearfar_console"
_HEADERS: Final = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with no-referrer, browsers send the origin null with forms
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_MOST_FIELDS: Final = 100


class ConsoleApp:
    """Serves the console's pages.

    Args:
        console: what the pages show.
        logins: the links and sessions of its browsers.
        is_secure: the server has TLS, so that the cookie is sent over nothing else.
        hosts: names of the server.
    """

    def __init__(self, console: Console, logins: BrowserLogins, *, is_secure: bool, hosts: tuple[str, ...] = ()) -> None:
        self._console = console
        self._logins = logins
        self._is_secure = is_secure
        self._channels = Channels()
        self._renewals: set[anyio.CancelScope] = set()
        self._app = OriginCheck(self._routes(), hosts=hosts, origins=())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, _with_headers(send))

    def _routes(self) -> Starlette:
        pages = [Route(page.path, self._guarded(page, page.show), methods=["GET"]) for page in PAGES]
        actions = [
            Route(f"{page.path.rstrip('/')}/{name}", self._guarded(page, answer), methods=["POST"])
            for page in PAGES
            for name, answer in page.actions.items()
        ]
        renewed = [Route(f"/live{page.path}", _Renewed(self, page)) for page in PAGES if page.renew is not None]
        static = Mount("/static", StaticFiles(directory=Path(__file__).parent / "static"))
        door = [Route("/enter", self._enter, methods=["GET"]), Route("/leave", self._leave, methods=["POST"])]
        return Starlette(routes=[Mount(ROOT, routes=[*door, *actions, *renewed, static, *pages, Route("/{path:path}", self._missing)])])

    async def _enter(self, request: Request) -> Response:
        try:
            cookie = self._logins.enter(request.query_params.get("key", ""), request.headers.get("host", ""))
        except Unauthenticated as error:
            return self._page(_problem(error), "", None)
        response = RedirectResponse(f"{ROOT}/", status_code=303)
        response.set_cookie(COOKIE, cookie, httponly=True, samesite="strict", secure=self._is_secure, path=ROOT)
        return response

    async def _leave(self, request: Request) -> Response:
        try:
            session = self.session(request.scope)
            session.check((await _form(request)).get("csrf"))
        except NearfarError as error:
            return self._page(_problem(error), "", None)
        self._logins.leave(request.cookies.get(COOKIE))
        response = self._page(PageContent("You are logged out", failure("This browser is logged out.", "")), "", None)
        response.delete_cookie(COOKIE, path=ROOT)
        return response

    async def _missing(self, request: Request) -> Response:
        return self._page(_problem(NotFound("there is no such page", hint="use the menu")), "", None)

    def session(self, scope: Scope) -> BrowserSession:
        """Return the session of a request. Raises `Unauthenticated`."""
        request = Request(scope)
        return self._logins.session(request.cookies.get(COOKIE), request.headers.get("host", ""))

    def end_renewals(self) -> None:
        """Let no open page wait for news any more."""
        for renewal in self._renewals:
            renewal.cancel()

    def view(self, session: BrowserSession, query: Mapping[str, str], form: Mapping[str, str]) -> View:
        return View(self._console, session, query, form)

    def _guarded(self, page: Page, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        async def answered(request: Request) -> Response:
            session: BrowserSession | None = None
            try:
                session = self.session(request.scope)
                form = await _form(request) if request.method == "POST" else {}
                if request.method == "POST":
                    session.check(form.get("csrf"))
                found = await answer(self.view(session, dict(request.query_params), form))
            except ClientLeft:
                return Response(status_code=499)
            except NearfarError as error:
                return self._page(_problem(error), page.path, session)
            except Exception as defect:  # the boundary of a request: its reader learns that it failed, and the log where
                log_defect(logger, f"the page {page.path} failed", defect)
                return self._page(_problem(InternalError("this page failed", hint="the server's log has the details")), page.path, session)
            if isinstance(found, str):
                return RedirectResponse(ROOT + found, status_code=303)
            return self._page(found, page.path, session)

        return answered

    def _page(self, shown: PageContent, path: str, session: BrowserSession | None) -> HTMLResponse:
        return HTMLResponse(document(shown, PAGES, path, session), status_code=shown.status)

    async def renew(self, page: Page, scope: Scope, receive: Receive, send: Send) -> None:
        """Keep an open page up to date until its browser leaves, or its session ends."""
        assert page.renew is not None, "only such pages are"
        request = Request(scope)
        cookie, host = request.cookies.get(COOKIE), request.headers.get("host", "")
        session = self._logins.session(cookie, host)
        if self._channels.is_full:
            raise RateLimited("too many pages are open", hint="close some", retry_after=10.0)
        query = dict(request.query_params)
        view, renew = self.view(session, query, {}), page.renew
        address = f"{page.path}?{sorted(query.items())} {session.csrf}"  # which stands in the forms of what is rendered
        await send({"type": "http.response.start", "status": 200, "headers": encoded({"content-type": "text/event-stream"})})
        async with while_connected(receive) as renewal:
            self._renewals.add(renewal)
            try:
                async with aclosing(self._channels.events(address, lambda: renew(view), page.period)) as events:
                    async for data in events:
                        if not self._logins.is_in(cookie, host):
                            break
                        await send({"type": "http.response.body", "body": data, "more_body": True})
            finally:
                self._renewals.remove(renewal)
        await send({"type": "http.response.body", "body": b""})


class _Renewed:
    """The events that keep a page up to date."""

    def __init__(self, app: ConsoleApp, page: Page) -> None:
        self._app = app
        self._page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app.renew(self._page, scope, receive, send)
        except Unauthenticated:
            response = Response(status_code=204)  # which ends an EventSource for good
            await response(scope, receive, send)
        except RateLimited as error:
            await Response(error.message, status_code=429)(scope, receive, send)


def beside(console: ASGIApp, faces: ASGIApp) -> ASGIApp:
    """Return the app that serves the console below its own path, and everything else as the faces do."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope.get("path", ""))
        is_console = scope["type"] == "http" and (path == ROOT or path.startswith(f"{ROOT}/"))
        await (console if is_console else faces)(scope, receive, send)

    return serve


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            known = {name.lower() for name, _ in message.get("headers", [])}
            more = [(name, value) for name, value in encoded(_HEADERS) if name not in known]
            message = {**message, "headers": [*message.get("headers", []), *more]}
        await send(message)

    return sending


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form, whose lines browsers end by CR LF. Raises `InvalidRequest` for another body."""
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise InvalidRequest("a form is expected", hint="use the page")
    body = await read_body(request.receive, Headers(scope=request.scope))
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
        return {name: value.replace("\r\n", "\n") for name, value in fields}
    except ValueError as error:
        raise InvalidRequest(f"the form cannot be read: {error}") from None


def _problem(error: NearfarError) -> PageContent:
    # A form that needs what is not configured is the reader's to mend, and no failure of the server.
    status = 409 if isinstance(error, ConfigError) else status_of(error, anthropic_error)
    return PageContent("That did not work", failure(error.message, error.hint), status=status)


@asynccontextmanager
async def console_around(
    hybrid: Hybrid, config: Config, serve: ServeConfig, file: Path | None = None
) -> AsyncIterator[tuple[BrowserLogins, Front]]:
    """Yield the logins of the console, and its pages, to be put in front of an app.

    `file` is the one that the configuration was read from. Raises `ConfigError` where no runs are kept.
    """
    if config.runs is None:
        raise ConfigError("the console shows what is kept of runs", hint="[runs] in nearfar.toml keeps them")
    async with AsyncExitStack() as stack:
        budgets = stack.enter_context(closing(open_budgets(config.runs)))
        privacy = stack.enter_context(closing(PrivacyRecords(config.runs.folder, keep=config.runs.keep)))
        chats = Chats(hybrid)
        stack.push_async_callback(chats.aclose)
        logins = BrowserLogins()
        hosts = (*serve.hosts, parse_address(serve.address).host or "")
        app = ConsoleApp(
            Console(hybrid, config, file, budgets, privacy, chats), logins, is_secure=serve.certificate is not None, hosts=hosts
        )
        yield logins, Front(lambda faces: beside(app, faces), app.end_renewals)
