"""The console in a real browser: nothing foreign is loaded, nothing complains, everybody can use it, and its forms do what they say."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from busy_console import WAITS, busy
from chromium import require_chromium
from console_browser import PAGES, ConsoleBrowser, browsing
from console_face import opened

from nearfar import ScriptedAgent
from nearfar.orchestrator.compose.policy_file import SETTLED
from nearfar.orchestrator.runs import Run

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]
HOSTILE = (
    '<script>window.hacked=1</script><img src=x onerror="window.hacked=1">\u202egnp.exe\x1b[31m" autofocus onfocus="window.hacked=1" x=\''
    "</textarea></title></svg><svg onload=window.hacked=1>{{7*7}}" + "w" * 400
)


@pytest.fixture(autouse=True, scope="module")
def has_chromium() -> None:
    require_chromium()


async def visited(browser: ConsoleBrowser, runs: Sequence[Run]) -> list[str]:
    """Visit every page and return what is wrong."""
    wrong = []
    for path in (
        *PAGES,
        *(f"/run?id={run.id}" for run in runs),
        "/?session=weekend",
        "/tradeoff?by=joules",
        "/memory?q=Ana",
        "/memory/erasure?subject=Ana",
    ):
        await browser.open(path)
        wrong += [f"{path}: {each}" for each in (*await browser.violations(), *browser.complaints)]
        if (wide := await browser.overflow()) > 0:
            wrong.append(f"{path} is {wide} px too wide")
    return wrong


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
async def test_every_page_is_accessible_and_loads_nothing_foreign(tmp_path: Path, width: int, dark: bool) -> None:
    async with busy(tmp_path) as console, browsing(console, width=width, dark=dark) as browser:
        assert await visited(browser, console.hybrid.runs.list()) == []


async def test_what_the_tests_look_for_would_be_found(tmp_path: Path) -> None:
    async with busy(tmp_path) as console, browsing(console) as browser:
        await browser.open("/runs")
        await browser.page.evaluate("document.body.insertAdjacentHTML('beforeend', '<input><img alt=\"\" src=\"http://other.invalid/x\">')")
        await browser.page.evaluate(
            "document.body.append(Object.assign(document.createElement('script'), { textContent: 'window.hacked = 1' }))"
        )
        assert ["label", "critical"] in [each[:2] for each in await browser.violations()]
        assert any("img-src" in each for each in browser.complaints)
        assert any("script-src" in each for each in browser.complaints)
        assert await browser.page.evaluate("window.hacked") is None


async def test_a_page_is_used_by_the_keyboard(tmp_path: Path) -> None:
    async with busy(tmp_path) as console, browsing(console) as browser:
        page = browser.page
        await browser.open("/memory")
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.textContent") == "Skip to the content"
        await page.keyboard.press("Enter")
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.name") == "q"
        await page.keyboard.type("plumber")
        await page.keyboard.press("Enter")
        await page.get_by_text("Items that match").wait_for()
        assert "aisle" not in await page.inner_text("main")


async def test_hostile_texts_execute_nothing_and_break_no_page(tmp_path: Path) -> None:
    async with busy(tmp_path, hostile=HOSTILE) as console, browsing(console) as browser:
        assert await visited(browser, console.hybrid.runs.list()) == []
        for path in PAGES:
            await browser.open(path)
            assert await browser.page.evaluate("window.hacked") is None


@pytest.mark.parametrize(("button", "then"), [("Approve", "sent 40 euros"), ("Deny", "the user")])
async def test_a_waiting_call_is_decided_by_a_click(tmp_path: Path, button: str, then: str) -> None:
    async with busy(tmp_path) as console, browsing(console) as browser:
        run = next(run.id for run in console.hybrid.runs.list() if run.title == WAITS)
        await browser.open("/approvals")
        await browser.page.get_by_role("button", name=button).click()
        await browser.page.get_by_text("No tool call waits").wait_for()
        await browser.open(f"/run?id={run}")
        await browser.page.get_by_text(re.compile(then)).first.wait_for(state="attached")
        assert browser.complaints == []


async def test_an_answer_streams_into_the_open_page(tmp_path: Path) -> None:
    async with busy(tmp_path) as console, browsing(console) as browser:
        await browser.open("/")
        await browser.page.get_by_label("Ask").fill("What is the capital of Chile?")
        await browser.page.get_by_role("button", name="Send").click()
        await browser.page.get_by_text("Santiago is the capital").wait_for()
        await browser.page.locator(".why summary").click()
        await browser.page.get_by_text("near (near) accepted").wait_for()
        assert browser.complaints == []


async def test_an_answer_of_several_paragraphs_is_shown_as_it_was_written(tmp_path: Path) -> None:
    async with opened(tmp_path, ScriptedAgent(lambda _: "One.\n\n\nTwo.", name="near")) as console, browsing(console) as browser:
        await browser.open("/")
        await browser.page.get_by_label("Ask").fill("Hello,\n\nwho is there?")
        await browser.page.get_by_role("button", name="Send").click()
        await browser.page.locator(".why summary").wait_for()
        shown = "[...document.querySelectorAll('.bubble')].map((each) => each.textContent)"
        assert await browser.page.evaluate(shown) == ["Hello,\n\nwho is there?", "One.\n\n\nTwo."]


async def test_tabs_that_are_hidden_leave_connections_to_others_and_are_renewed_when_shown(tmp_path: Path) -> None:
    hide = """(hidden) => {
      Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    async with opened(tmp_path, ScriptedAgent(lambda _: "Here.", name="near")) as console, browsing(console) as browser:
        await browser.open("/runs")
        await browser.page.evaluate(hide, True)
        for _ in range(7):  # browsers open six connections to a server
            page = await browser.page.context.new_page()
            await page.goto(f"{console.address}/console/runs")
            await page.evaluate(hide, True)
        await console.hybrid.run("What is new?")
        await browser.page.evaluate(hide, False)
        await browser.page.get_by_text("What is new?").wait_for()


async def test_what_has_the_focus_is_renewed_and_keeps_it(tmp_path: Path) -> None:
    async with busy(tmp_path) as console, browsing(console) as browser:
        await browser.open("/runs")
        older = browser.page.locator("#runs a").first
        address = await older.get_attribute("href")
        await older.focus()
        await console.hybrid.run("What is new today?", user="ana")
        await browser.page.get_by_text("What is new today?").wait_for()
        assert await browser.page.evaluate("document.activeElement.getAttribute('href')") == address
        assert await browser.page.locator("#runs a").first.get_attribute("href") != address


async def test_a_text_that_is_selected_stays_so_while_its_page_is_renewed(tmp_path: Path) -> None:
    async with busy(tmp_path) as console, browsing(console) as browser:
        await browser.open("/runs")
        select = "getSelection().selectAllChildren(document.querySelector('#runs td[data-name=task]'))"
        await browser.page.evaluate(select)
        selected = await browser.page.evaluate("getSelection().toString()")
        await console.hybrid.run("What is new today?", user="ana")
        await browser.page.get_by_text("What is new today?").wait_for()
        assert await browser.page.evaluate("getSelection().toString()") == selected != ""
        assert await browser.page.locator("#runs tbody tr").count() == len(console.hybrid.runs.list())


@pytest.mark.parametrize(
    ("before", "act", "after", "kept"),
    [
        (
            "<p data-key=a>a</p><p data-key=b><a href=#b>b</a></p>",
            "element.querySelector('a').focus()",
            "<p data-key=b><a href=#b>b</a></p><p data-key=a>a</p>",
            "document.activeElement.textContent === 'b'",
        ),
        (
            "<div>It is forty</div>",
            "getSelection().setBaseAndExtent(element.firstChild.firstChild, 0, element.firstChild.firstChild, 5)",
            "<div>It is forty-two.</div>",
            "getSelection().toString() === 'It is'",
        ),
        (
            "<form action=/x><input name=action value=1></form><p>a</p>",
            "element.querySelector('input').value = 'typed'",
            "<form action=/x><input name=action value=1></form><p>b</p>",
            "element.querySelector('input').value === 'typed'",
        ),
    ],
)
async def test_what_a_reader_does_outlives_a_renewal(tmp_path: Path, before: str, act: str, after: str, kept: str) -> None:
    async with opened(tmp_path, ScriptedAgent([], name="near")) as console, browsing(console) as browser:
        await browser.open("/")
        made = "const made = (html) => { const t = document.createElement('template'); t.innerHTML = html; return t.content; };"
        begun = "const element = document.createElement('div'); document.body.append(element);"
        script = f"([before, after]) => {{ {made} {begun} renewChildren(element, made(before)); {act};"
        script += f" renewChildren(element, made(after)); return [{kept}, element.textContent === made(after).textContent]; }}"
        assert await browser.page.evaluate(script, [before, after]) == [True, True]


async def test_a_policy_is_checked_while_it_is_written_and_a_broken_one_is_not_saved(tmp_path: Path) -> None:
    async with busy(tmp_path) as console, browsing(console) as browser:
        file = tmp_path / "nearfar.toml"
        before = file.read_text(encoding="utf-8")
        await browser.open("/policy")
        editor = browser.page.get_by_label("nearfar.toml")
        await editor.fill(before.replace("minimum_confidence = 0.7", "minimum_confidense = 0.7"))
        checked = browser.page.locator("#checked")
        await checked.get_by_text("line 4").wait_for()
        assert "minimum_confidence" in await checked.inner_text()
        await browser.page.get_by_role("button", name="Save").click()
        await browser.page.get_by_text("Not saved.").wait_for()
        assert file.read_text(encoding="utf-8") == before
        assert "minimum_confidense" in await editor.input_value()
        assert console.hybrid.policy.minimum_confidence == 0.7


async def test_a_policy_is_explained_simulated_saved_and_in_force(tmp_path: Path) -> None:
    async with busy(tmp_path) as console, browsing(console) as browser:
        page = browser.page
        await browser.open("/policy")
        editor = page.get_by_label("nearfar.toml")
        text = (await editor.input_value()).replace('strategy = "cascade"', 'strategy = "route"\nsensitivity = "public"')
        await editor.fill(text)
        await page.get_by_label("Prompt").fill("What is the capital of Chile?")
        await page.get_by_label("It may leave this device").check()
        await page.get_by_role("button", name="Explain").click()
        await page.get_by_text("Who would serve it").wait_for()
        assert await editor.input_value() == text
        await page.get_by_role("button", name="Simulate the change").click(no_wait_after=True)
        await page.get_by_role("cell", name="with this text", exact=True).wait_for(timeout=120_000)
        assert console.hybrid.policy.strategy == "cascade"
        assert (await browser.violations(), browser.complaints) == ([], [])
        await page.get_by_role("button", name="Save").click()
        await page.get_by_text("Saved. Tasks that start now").wait_for()
        assert (tmp_path / "nearfar.toml").read_text(encoding="utf-8") == text
        await page.wait_for_timeout(1000 * SETTLED)  # a file that rests is read again
        assert console.hybrid.policy.strategy == "route"


async def test_a_memory_is_erased_after_it_was_shown_and_confirmed(tmp_path: Path) -> None:
    async with busy(tmp_path) as console, browsing(console) as browser:
        page = browser.page
        await browser.open("/memory")
        await page.get_by_label("Everything about the person").fill("Ana")
        await page.get_by_role("button", name="Show what would be erased").click()
        await page.get_by_text("allergic").wait_for()
        page.once("dialog", lambda dialog: dialog.dismiss())
        await page.get_by_role("button", name="Erase this for good").click()
        assert "Erase this for good" in await page.inner_text("main")
        page.once("dialog", lambda dialog: dialog.accept())
        await page.get_by_role("button", name="Erase this for good").click()
        await page.get_by_text("are erased").wait_for()
        memory = console.hybrid.memory
        assert memory is not None
        assert memory.store.search(("notes",)) == []


async def test_a_device_is_paired_by_a_code(tmp_path: Path) -> None:
    async with busy(tmp_path) as console, browsing(console) as browser:
        page = browser.page
        await browser.open("/devices")
        await page.get_by_text("gemma-3-270m").wait_for()
        await page.get_by_label("Name of the device").fill("tablet")
        await page.get_by_role("button", name="Show its pairing code").click()
        await page.get_by_role("img", name=re.compile("QR code")).wait_for()
        assert "nearfar" in await page.get_by_role("textbox", name="The line").input_value()
        assert (await browser.violations(), browser.complaints) == ([], [])
