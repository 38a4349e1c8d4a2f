"""Browser tabs that are lost in mid-step: closed, killed, frozen or offline, and how soon another agent answers in their place."""

import asyncio
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.llama import MODELS, endless
from nearfar import Hybrid, Policy
from nearfar.device.store import silent
from nearfar.device.store.browser_engine import install_engine, require_engine
from nearfar.orchestrator.compose.hub import ServeConfig, read_page_model
from nearfar.protocols import ConfigError, ScriptedAgent, Side
from nearfar.protocols.hub import Hub, WorkerTerms

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

_QUESTION: Final = "What is the mayor of the city of Orbix Labs?"
_TOKEN: Final = "the-token-of-the-phone"
_ROUNDS, _QUICK_ROUNDS = 50, 2
_HUNG_SECONDS: Final = 30.0
_LONGEST_WAIT: Final = 1.5
"""Seconds into the step until the tab is lost, at most: one interval of the heartbeats."""
_OPTIONS: Final = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """`lost_tab_s`: from a tab's loss in mid-step to the far side's answer, the slowest of 50; those that hung, and those whose answer
    came twice. No `data`."""
    try:
        engine = _needed()
    except ConfigError as error:
        return {**dict.fromkeys(("lost_tab_s", "lost_tab_s_by_case", "lost_tabs_hung", "lost_tabs_twice")), "lost_tabs_missing": str(error)}
    return asyncio.run(_figures(engine, rounds=_QUICK_ROUNDS if quick else _ROUNDS))


def _needed() -> Path:
    """Return the folder of wllama's files. Raises `ConfigError` for what is not installed."""
    try:
        import playwright.async_api  # noqa: F401 - whether it is there
    except ImportError:
        raise ConfigError("playwright is not installed") from None
    if shutil.which("chromium") is None:
        raise ConfigError("there is no Chromium")
    archives = Path(__file__).parents[2] / ".venv-node"  # where `make node` has put them
    return install_engine(silent, archives) if any(archives.glob("wllama-*.tgz")) else require_engine()


@dataclass
class _Found:
    seconds: dict[str, list[float]] = field(default_factory=dict)
    hung: int = 0
    twice: int = 0


async def _figures(engine: Path, *, rounds: int) -> dict[str, Any]:
    from playwright.async_api import async_playwright

    found, random_ = _Found(), random.Random(7)
    cases = [*CASES] * (rounds // len(CASES) + 1)
    with tempfile.TemporaryDirectory() as name:
        model = endless(MODELS / "near.gguf", Path(name) / "endless.gguf")
        async with async_playwright() as driver, _hub_with_page(model, engine) as (hub, url):
            for case in cases[:rounds]:
                browser = await driver.chromium.launch(executable_path=shutil.which("chromium"), args=_OPTIONS)
                try:
                    await _round(found, case, hub, url, browser, random_)
                finally:
                    await browser.close()
    slowest = {case: round(max(seconds), 2) for case, seconds in found.seconds.items()}
    return {
        "lost_tab_s": max(slowest.values(), default=None),
        "lost_tab_s_by_case": slowest,
        "lost_tabs_hung": found.hung,
        "lost_tabs_twice": found.twice,
    }


@asynccontextmanager
async def _hub_with_page(model: Path, engine: Path) -> AsyncIterator[tuple[Hub, str]]:
    from nearfar.orchestrator.serve.hub import serve_page

    hub = Hub({"phone": _TOKEN}, policies={"phone": WorkerTerms(side=Side.NEAR)})
    lent = read_page_model(str(model), lambda *_: None)
    async with serve_page(hub, lent, engine, ServeConfig(address="127.0.0.1:0")) as url:
        yield hub, f"{url}/#token={_TOKEN}"


async def _round(found: _Found, case: str, hub: Hub, link: str, browser: "Browser", random_: random.Random) -> None:
    while "phone" in hub.attached:  # noqa: ASYNC110 - a hub sets no event when a worker leaves
        await asyncio.sleep(0.05)
    page = await browser.new_page()
    await page.goto(link)
    async with asyncio.timeout(_HUNG_SECONDS):
        tab = await hub.wait_for("phone")
    far = ScriptedAgent(lambda _: "from afar", name="far", side=Side.FAR)
    policy = Policy.model_validate({"strategy": "cascade", "sensitivity": "public", "maximum_output_tokens": 100_000})
    async with Hybrid(near=tab, far=far, policy=policy) as hybrid:
        serving = asyncio.create_task(hybrid.run(_QUESTION))
        while not (session := hub.attached["phone"]).live_steps:  # noqa: ASYNC110 - nor when a step begins
            await asyncio.sleep(0.01)
        await asyncio.sleep(random_.uniform(0.05, _LONGEST_WAIT))
        if not session.live_steps:
            raise RuntimeError("the step was over before the tab was lost")
        async with _lost(case, page):
            started = time.monotonic()
            try:
                async with asyncio.timeout(_HUNG_SECONDS):
                    result = await serving
            except TimeoutError:
                found.hung += 1
                return
            found.seconds.setdefault(case, []).append(time.monotonic() - started)
        answered = [attempt.agent for attempt in result.attempts if attempt.error is None]
        found.twice += answered != ["far"] or result.text != "from afar"


@asynccontextmanager
async def _lost(case: str, page: "Page") -> AsyncIterator[None]:
    """Lose the tab for as long as the context lasts."""
    undo = await CASES[case](page)
    try:
        yield
    finally:
        await undo()


async def _nothing() -> None:
    """A tab that is gone does not come back."""


async def _close(page: "Page") -> Callable[[], Awaitable[None]]:
    await page.close()
    return _nothing


async def _kill(page: "Page") -> Callable[[], Awaitable[None]]:
    for process in await _renderers(page):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return _nothing


async def _freeze(page: "Page") -> Callable[[], Awaitable[None]]:
    stopped = await _renderers(page)
    for process in stopped:
        os.kill(process, signal.SIGSTOP)

    async def thaw() -> None:
        for process in stopped:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)

    return thaw


async def _disconnect(page: "Page") -> Callable[[], Awaitable[None]]:
    await page.context.set_offline(True)
    return lambda: page.context.set_offline(False)


async def _renderers(page: "Page") -> list[int]:
    """The processes that run the pages of this page's browser."""
    browser = page.context.browser
    if browser is None:
        raise RuntimeError("the page's browser is gone")
    session = await browser.new_browser_cdp_session()
    processes = (await session.send("SystemInfo.getProcessInfo"))["processInfo"]
    return [process["id"] for process in processes if process["type"] == "renderer"]


CASES: Final[Mapping[str, Callable[["Page"], Awaitable[Callable[[], Awaitable[None]]]]]] = {
    "frozen": _freeze,
    "killed": _kill,
    "offline": _disconnect,
    "closed": _close,
}
"""The ways to lose a tab; each returns what brings it back."""
