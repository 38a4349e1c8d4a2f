"""A real browser, Chromium, in front of the console: what it asks for and complains about is kept."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pytest
from console_face import Opened
from node_environment import node_environment

if TYPE_CHECKING:
    from playwright.async_api import Page

PAGES: Final = ("/", "/runs", "/approvals", "/policy", "/tradeoff", "/money", "/memory", "/devices", "/privacy")
"""The pages of the menu, below /console."""
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_AXE: Final = "node_modules/axe-core/axe.min.js"
_WAIT: Final = 20_000
"""Milliseconds after which a page that does not show what a test waits for fails it."""
_TELL_OF_POLICY: Final = """document.addEventListener(
  "securitypolicyviolation", (event) => console.error("CSP", event.violatedDirective, event.blockedURI)
);"""
_RUN_AXE: Final = """async () => {
  const found = await axe.run(document, { resultTypes: ["violations"] });
  return found.violations.map((each) => [each.id, each.impact, each.nodes.map((node) => node.target.join(" ")).slice(0, 5)]);
}"""


def chromium() -> str:
    """Return the program, or skip the test where it, or what drives it, is missing."""
    pytest.importorskip("playwright", reason="it drives Chromium: pip install playwright")
    program = next((found for name in _NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    return program


@dataclass(slots=True)
class Browser:
    """A page that is open, and what went wrong on it."""

    page: "Page"
    address: str
    foreign: list[str] = field(default_factory=list)
    """Requests that would leave the server."""
    complaints: list[str] = field(default_factory=list)
    """Errors and warnings of the console, scripts that failed, dialogs, and reports of the content security policy."""

    async def open(self, path: str) -> None:
        """Open a page of the console."""
        await self.page.goto(f"{self.address}/console{path}", wait_until="load")

    async def violations(self) -> list[Any]:
        """Return what axe-core finds on the page that is serious or critical."""
        found = await self.page.evaluate(_RUN_AXE)
        return [each for each in found if each[1] in ("serious", "critical")]

    async def overflow(self) -> int:
        """Return the pixels by which the page is wider than its window."""
        return int(await self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    def hear(self) -> None:
        """Keep what goes wrong from now on."""
        own = urlsplit(self.address).netloc

        def asked(request: Any) -> None:  # noqa: ANN401 - playwright's
            if urlsplit(request.url).netloc != own and not request.url.startswith(("data:", "about:")):
                self.foreign.append(request.url)

        def said(message: Any) -> None:  # noqa: ANN401 - here, too
            if message.type in ("error", "warning"):
                self.complaints.append(f"{message.type}: {message.text}")

        self.page.on("request", asked)
        self.page.on("console", said)
        self.page.on("pageerror", lambda error: self.complaints.append(f"script: {error}"))


@asynccontextmanager
async def browsing(console: Opened, *, width: int = 1280, height: int = 900, dark: bool = False) -> AsyncIterator[Browser]:
    """Open Chromium, logged in. axe-core, which tests bring along, is put into pages past their content security policy."""
    from playwright.async_api import async_playwright

    program = chromium()
    axe = (node_environment() / _AXE).read_text(encoding="utf-8")
    async with async_playwright() as driver:
        # As root, as in a container, Chromium has no sandbox; the pages are the test's own.
        chrome = await driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            context = await chrome.new_context(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light")
            context.set_default_timeout(_WAIT)
            await context.add_init_script(_TELL_OF_POLICY)
            await context.add_init_script(axe)
            browser = Browser(await context.new_page(), console.address)
            browser.hear()
            await browser.page.goto(console.link)
            yield browser
        finally:
            await chrome.close()
