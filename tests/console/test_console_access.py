"""The console opens by a link that works once; a cookie counts on its own host; a change needs the token of its session."""

import asyncio
import re
from pathlib import Path

import httpx
import pytest
from console_face import TOKEN, fields_of, opened

from nearfar import ScriptedAgent, Unauthenticated
from nearfar.orchestrator.console.view import LINK_SECONDS, SESSION_SECONDS, BrowserLogins

pytestmark = pytest.mark.anyio

PAGES = ("/console/", "/console/runs", "/console/approvals", "/console/money", "/console/privacy")


def near() -> ScriptedAgent:
    return ScriptedAgent(lambda _: "Here.", name="near", confidence=0.9)


async def test_every_page_needs_a_login(tmp_path: Path) -> None:
    async with opened(tmp_path, near()) as console, httpx.AsyncClient(base_url=console.address) as client:
        for path in (*PAGES, "/console/run?id=x", "/console/live/runs"):
            reply = await client.get(path, headers={"authorization": f"Bearer {TOKEN}"})
            assert reply.status_code in (204, 401)
            assert "Here" not in reply.text
        assert (await client.post("/console/ask", data={"prompt": "Hi."})).status_code == 401


async def test_a_link_works_once(tmp_path: Path) -> None:
    async with opened(tmp_path, near()) as console, httpx.AsyncClient() as first, httpx.AsyncClient() as second:
        link = console.link
        entered = await first.get(link)
        cookie = entered.headers["set-cookie"]
        assert entered.status_code == 303
        assert all(part in cookie for part in ("HttpOnly", "SameSite=strict", "Path=/console"))
        again = await second.get(link)
        assert (again.status_code, "used already" in again.text, "set-cookie" in again.headers) == (401, True, False)


def test_a_link_and_a_session_expire() -> None:
    now = [0.0]
    logins = BrowserLogins(lambda: now[0])
    late = logins.link()
    now[0] = LINK_SECONDS + 1
    with pytest.raises(Unauthenticated, match="expired"):
        logins.enter(late, "here")
    cookie = logins.enter(logins.link(), "here")
    assert logins.session(cookie, "here").host == "here"
    now[0] += SESSION_SECONDS + 1
    with pytest.raises(Unauthenticated, match="ended"):
        logins.session(cookie, "here")


async def test_a_cookie_counts_on_the_host_that_it_was_made_for(tmp_path: Path) -> None:
    async with opened(tmp_path, near()) as console, console.browser() as browser:
        stolen = {"cookie": "; ".join(f"{name}={value}" for name, value in browser.cookies.items())}
        port = console.address.rpartition(":")[2]
        async with httpx.AsyncClient(base_url=console.address) as thief:
            assert (await thief.get("/console/runs", headers=stolen)).status_code == 200
            assert (await thief.get("/console/runs", headers={**stolen, "host": f"localhost:{port}"})).status_code == 401
            assert (await thief.get("/console/runs", headers={**stolen, "host": "evil.example"})).status_code == 403


async def test_a_form_without_the_sessions_token_changes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path, near()) as console, console.browser() as browser:
        page = (await browser.get("/console/")).text
        fields = fields_of(page, "/console/ask")
        for csrf in (None, "", "wrong", "\u00e9"):
            form = {**fields, "prompt": "Hi.", "csrf": csrf} if csrf is not None else {"session": fields["session"], "prompt": "Hi."}
            reply = await browser.post("/console/ask", data=form)
            assert (reply.status_code, "does not come from this console" in reply.text) == (403, True)
        assert console.hybrid.runs.list() == []
        assert (await browser.post("/console/ask", json={**fields, "prompt": "Hi."})).status_code == 400


async def test_a_page_of_another_origin_sends_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path, near()) as console, console.browser() as browser:
        fields = fields_of((await browser.get("/console/")).text, "/console/ask")
        for origin in ("https://evil.example", "null"):
            reply = await browser.post("/console/ask", data={**fields, "prompt": "Hi."}, headers={"origin": origin})
            assert reply.status_code == 403
        assert console.hybrid.runs.list() == []


async def test_pages_allow_no_foreign_content_and_no_frames(tmp_path: Path) -> None:
    async with opened(tmp_path, near()) as console, console.browser() as browser:
        for path in PAGES:
            reply = await browser.get(path)
            policy = reply.headers["content-security-policy"]
            assert "default-src 'self'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert (reply.headers["x-content-type-options"], reply.headers["cache-control"]) == ("nosniff", "no-store")
            assert not re.search(r'(?:src|href)="(?!/console/|#)', reply.text)
            assert " style=" not in reply.text


async def test_the_faces_are_served_beside_the_console(tmp_path: Path) -> None:
    async with opened(tmp_path, near()) as console, httpx.AsyncClient(base_url=console.address) as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.get("/v1/models", headers={"authorization": f"Bearer {TOKEN}"})).status_code == 200


async def test_a_body_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path, near()) as console, console.browser() as browser:
        form = {"content-type": "application/x-www-form-urlencoded"}
        assert (await browser.post("/console/ask", content=b"prompt=" + b"a" * 21_000_000, headers=form)).status_code == 413
        assert (await browser.post("/console/ask", content=b"a=1&" * 1000, headers=form)).status_code == 400
        assert (await browser.post("/console/ask", content=b"\xff=\xfe", headers=form)).status_code in (400, 403)


async def test_a_logout_ends_the_open_pages_of_its_browser(tmp_path: Path) -> None:
    async with opened(tmp_path, near()) as console, console.browser() as browser, asyncio.timeout(20):
        csrf = fields_of((await browser.get("/console/")).text, "/console/ask")["csrf"]
        async with browser.stream("GET", "/console/live/runs") as page:
            parts = page.aiter_bytes()
            assert b"No task was served yet" in await anext(parts)
            await browser.post("/console/leave", data={"csrf": csrf})
            await console.hybrid.run("Hello?")
            assert [part async for part in parts] == []


async def test_a_browser_logs_out_by_the_button_of_every_page(tmp_path: Path) -> None:
    async with opened(tmp_path, near()) as console, console.browser() as browser:
        reply = await browser.post("/console/leave", data=fields_of((await browser.get("/console/runs")).text, "/console/leave"))
        assert "logged out" in reply.text
        assert (await browser.get("/console/runs")).status_code == 401
