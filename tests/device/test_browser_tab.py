"""A browser tab as a near worker: it loads the model, answers, survives what happens to tabs, and tells its owner what it does."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from browser_tab import TOKENS, Tab, attached_tab, long_prompt, near, require_tab, served
from chromium import Watched, browser
from near_model import OPEN, QUESTION, ask

from benchmarks.fault_figures.tabs import CASES
from nearfar import Hybrid, tool
from nearfar.orchestrator.compose.hub import PageModel
from nearfar.protocols import Agent, ScriptedAgent, Side, Unavailable, complete, stream
from nearfar.protocols.testing import eventually
from nearfar.protocols.testing.agent_conformance import (
    Check,
    Subject,
    confidence_is_a_probability,
    log_probabilities_come_with_the_text,
    run_check,
)
from nearfar.protocols.tls import ensure_certificate

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

require_tab()
pytestmark = pytest.mark.anyio
__all__ = ["browser"]

HIDE = """
    Object.defineProperty(document, 'hidden', { get: () => %s, configurable: true });
    document.dispatchEvent(new Event('visibilitychange'))
"""
"""Headless Chromium never hides a tab: this is what a page hears when that happens."""


@tool(effect="read")
def open(title: str, section: str) -> str:
    """Open a section of a passage about a person, company, city or country."""
    return {("Ines Falk", "employer"): "Orbix Labs", ("Orbix Labs", "city"): "Port Selby"}.get((title, section), "not stated")


@asynccontextmanager
async def a_tab(browser: "Browser", model: PageModel | None = None) -> AsyncIterator[Tab]:
    """A tab, and at the end nothing that a page must not do."""
    with anyio.fail_after(90):
        async with served(model) as hub:
            tab = await attached_tab(hub, browser)
            yield tab
            assert (tab.watched.errors, tab.watched.elsewhere) == ([], [])


async def until_status(page: "Page", text: str) -> None:
    await page.get_by_role("status").filter(has_text=text).wait_for()


async def test_the_question_of_the_readme_is_answered_by_the_tab(browser: "Browser") -> None:
    far = ScriptedAgent([], name="far", side=Side.FAR)
    async with a_tab(browser) as tab, Hybrid(near=tab.agent, far=far, tools=[open]) as hybrid:
        result = await hybrid.run("What is the city of the employer of Ines Falk?", sensitivity="public")
        assert (result.text, result.side, result.model) == ("Port Selby", Side.NEAR, "near")
        await until_status(tab.page, "Attached: waiting for steps")
        assert "tokens/s" in await tab.page.inner_text("#speed")
        assert "Port Selby" in await tab.page.inner_text("#output")
        assert tab.agent.device_state.battery == 1.0  # as Chromium says of a machine without one


async def test_browsers_without_wasm_of_64_bits_run_the_compatible_engine(browser: "Browser") -> None:
    with anyio.fail_after(90):
        async with served() as hub:
            page = await browser.new_page()
            watched = Watched(page)
            await page.add_init_script("delete WebAssembly.Suspending; delete WebAssembly.promising")
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            await page.goto(hub.link)
            agent = await hub.hub.wait_for("phone")
            reply = await complete(agent, ask(QUESTION, tools=(OPEN,)))
            assert [call.name for call in reply.tool_calls] == ["open"]
            assert any(url.endswith("/engine/compat.js") for url in asked)
            assert watched.elsewhere == []


async def test_a_tab_computes_on_several_threads(browser: "Browser") -> None:
    with anyio.fail_after(90):
        async with served() as hub:
            page = await browser.new_page()
            await page.add_init_script("Object.defineProperty(navigator, 'hardwareConcurrency', { value: 4 })")
            await page.goto(hub.link)
            agent = await hub.hub.wait_for("phone")
            assert agent.card.execution is not None
            assert agent.card.execution.threads == 2
            assert (await complete(agent, ask(QUESTION))).text


@pytest.mark.parametrize("check", [confidence_is_a_probability, log_probabilities_come_with_the_text])
async def test_a_model_without_tools_says_how_sure_it_is(check: Check, browser: "Browser") -> None:
    async with a_tab(browser, replace(near(), described={**near().described, "takes_tools": False})) as tab:
        assert (tab.agent.card.capabilities.confidence, tab.agent.card.capabilities.tools) == (True, False)

        async def create() -> Agent:
            return tab.served.hub.agent("phone")

        await run_check(check, Subject(create=create, prompt=QUESTION, long_prompt=QUESTION))


async def test_a_tab_attaches_over_tls_once_its_owner_accepts_the_certificate(browser: "Browser", tmp_path: Path) -> None:
    certificate = tmp_path / "hub.pem"
    ensure_certificate(certificate, tmp_path / "key.pem", ["127.0.0.1"])
    with anyio.fail_after(90):
        async with served(certificate=certificate) as hub:
            assert hub.url.startswith("https://")
            tab = await attached_tab(hub, await browser.new_context(ignore_https_errors=True))
            assert (await complete(tab.agent, ask(QUESTION))).text
            assert await tab.page.evaluate("crossOriginIsolated")


async def test_a_revoked_tab_says_so_and_does_not_come_back(browser: "Browser") -> None:
    async with a_tab(browser) as tab:
        tab.served.hub.revoke("phone")
        await until_status(tab.page, "was revoked")
        await tab.page.get_by_role("button", name="Start").wait_for()


async def test_the_token_is_in_no_address_that_is_sent(browser: "Browser") -> None:
    with anyio.fail_after(90):
        async with served() as hub:
            page = await browser.new_page()
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            await page.goto(hub.link)
            await hub.hub.wait_for("phone")
            assert not [url for url in asked if "token" in url.partition("#")[0]]
            assert page.url == hub.link.partition("#")[0]


@pytest.mark.parametrize("case", CASES)
async def test_another_agent_answers_for_a_tab_that_is_lost_in_mid_step(case: str, browser: "Browser") -> None:
    asked = []

    def answer(request: object) -> str:
        asked.append(request)
        return "from afar"

    far = ScriptedAgent(answer, name="far", side=Side.FAR)
    with anyio.fail_after(90):
        async with served() as hub:
            tab = await attached_tab(hub, browser)
            prompt = await long_prompt(tab)
            async with Hybrid(near=tab.agent, far=far, policy={"strategy": "cascade", "sensitivity": "public"}) as hybrid:
                serving = asyncio.create_task(hybrid.run(prompt))
                await eventually(lambda: tab.live_steps == 1)
                undo = await CASES[case](tab.page)
                result = await serving
                await undo()
            assert (result.text, len(asked)) == ("from afar", 1)
            assert [(attempt.agent, attempt.error is None) for attempt in result.attempts] == [("phone", False), ("far", True)]


async def test_a_tab_attaches_again_when_the_hub_is_back(browser: "Browser") -> None:
    with anyio.fail_after(90):
        async with served() as first:
            page = (await attached_tab(first, browser)).page
            port = int(first.url.rpartition(":")[2])
        await until_status(page, "Not connected")
        async with served(port=port) as second:
            agent = await second.hub.wait_for("phone")
            assert (await complete(agent, ask(QUESTION))).text


async def test_a_tab_in_the_background_says_so_and_returns(browser: "Browser") -> None:
    async with a_tab(browser) as tab:
        await tab.page.evaluate(HIDE % "true")
        await eventually(lambda: "phone" not in tab.served.hub.attached)
        await until_status(tab.page, "Asleep")
        with pytest.raises(Unavailable):
            await complete(tab.agent, ask(QUESTION))
        await tab.page.evaluate(HIDE % "false")
        await tab.served.hub.wait_for("phone")
        assert (await complete(tab.agent, ask(QUESTION))).text


async def test_a_step_under_way_is_finished_before_the_tab_leaves(browser: "Browser") -> None:
    async with a_tab(browser) as tab:
        prompt = await long_prompt(tab)
        async with stream(tab.agent, ask(prompt, max_output_tokens=100)) as events:
            await anext(aiter(events))
            await tab.page.evaluate(HIDE % "true")
            assert [event async for event in events][-1].type == "finished"
        await eventually(lambda: "phone" not in tab.served.hub.attached)


async def test_stop_ends_the_step_and_leaves_the_hub(browser: "Browser") -> None:
    async with a_tab(browser) as tab:
        prompt = await long_prompt(tab)
        async with stream(tab.agent, ask(prompt)) as events:
            await anext(aiter(events))
            await tab.page.get_by_role("button", name="Stop").click()
            with pytest.raises(Unavailable, match="the owner of the device stopped the step"):
                [event async for event in events]
        await eventually(lambda: "phone" not in tab.served.hub.attached)
        await until_status(tab.page, "Stopped")
        await tab.page.get_by_role("button", name="Start").click()
        await tab.served.hub.wait_for("phone")


async def test_a_second_tab_is_told_that_another_one_is_attached(browser: "Browser") -> None:
    async with a_tab(browser) as tab:
        second = await browser.new_page()
        await second.goto(tab.served.link)
        await until_status(second, "another worker is attached as 'phone'")
        assert (await complete(tab.agent, ask(QUESTION))).text


async def test_a_wrong_token_is_told(browser: "Browser") -> None:
    with anyio.fail_after(90):
        async with served() as hub:
            page = await browser.new_page()
            await page.goto(hub.link.replace("phone", "stranger"))
            await until_status(page, "the token is wrong")
            assert hub.hub.attached == {}


async def test_the_model_is_fetched_once(browser: "Browser") -> None:
    async with a_tab(browser) as tab:
        fetched: list[str] = []
        tab.page.on("request", lambda request: fetched.append(request.url))
        await tab.page.reload()
        await eventually(lambda: any(url.endswith("/model") for url in fetched))
        await until_status(tab.page, "Attached")
        assert not [url for url in fetched if "/model/" in url]


async def test_a_download_goes_on_where_it_broke(browser: "Browser") -> None:
    (digest,) = near().parts
    size = near().described["parts"][0]["bytes"]
    kept = near().parts[digest].read_bytes()[: size // 2]
    store = """async ([name, bytes]) => {
        const folder = await navigator.storage.getDirectory();
        const file = await (await folder.getFileHandle(name, { create: true })).createWritable();
        await file.write(new Uint8Array(bytes)); await file.close();
    }"""
    with anyio.fail_after(90):
        async with served() as hub:
            page = await browser.new_page()
            asked: list[Mapping[str, str]] = []
            page.on("request", lambda request: asked.append(request.headers) if "/model/" in request.url else None)
            await page.goto(hub.link.partition("#")[0])
            await page.evaluate(store, [f"{digest}.partial", list(kept)])
            await page.goto(hub.link)
            await page.reload()
            agent = await hub.hub.wait_for("phone")
            assert [headers["range"] for headers in asked] == [f"bytes={len(kept)}-"]
            assert (await complete(agent, ask(QUESTION))).text


async def test_a_model_with_another_checksum_is_not_loaded(browser: "Browser", tmp_path: Path) -> None:
    (digest,) = near().parts
    damaged = tmp_path / "damaged.gguf"
    content = bytearray(near().parts[digest].read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    with anyio.fail_after(90):
        async with served(replace(near(), parts={digest: damaged})) as hub:
            page = await browser.new_page()
            await page.goto(hub.link)
            await until_status(page, "the model has the wrong checksum")
            assert hub.hub.attached == {}


async def test_forgetting_leaves_nothing_in_the_browser(browser: "Browser") -> None:
    async with a_tab(browser) as tab:
        await tab.page.get_by_role("button", name="Forget").click()
        await until_status(tab.page, "Scan the QR code")
        kept = await tab.page.evaluate(
            """async () => {
                const folder = await navigator.storage.getDirectory();
                return [localStorage.length, (await Array.fromAsync(folder.keys())).length];
            }"""
        )
        assert kept == [0, 0]


async def test_the_page_can_be_installed_and_keeps_only_its_own_files(browser: "Browser") -> None:
    async with a_tab(browser) as tab:
        await tab.page.evaluate("navigator.serviceWorker.ready")
        session = await tab.page.context.new_cdp_session(tab.page)
        errors = (await session.send("Page.getInstallabilityErrors"))["installabilityErrors"]
        assert {error["errorId"] for error in errors} <= {"in-incognito"}  # as every context of playwright's is
        await tab.page.reload()
        await until_status(tab.page, "Attached")
        kept = await tab.page.evaluate(
            """async () => (await (await caches.open("nearfar-worker")).keys()).map((request) => new URL(request.url).pathname)"""
        )
        assert "/page.js" in kept
        assert not [path for path in kept if path.startswith("/model")]


async def test_the_model_is_sent_to_those_with_a_token(browser: "Browser") -> None:
    with anyio.fail_after(60):
        async with served() as hub:
            page = await browser.new_page()
            await page.goto(hub.url)
            (digest,) = near().parts
            found = await page.evaluate(
                """async ([digest, token]) => {
                    const ask = async (path, headers) => (await fetch(path, { headers })).status;
                    const known = { Authorization: `Bearer ${token}` };
                    const file = `/model/${digest}`;
                    return [await ask("/model", {}), await ask(file, {}), await ask(file, known), await ask("/model/..%2fkey.pem", known)];
                }""",
                [digest, TOKENS["phone"]],
            )
            assert found == [401, 401, 200, 404]
