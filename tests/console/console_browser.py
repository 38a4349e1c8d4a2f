"""Chromium in front of the console, logged in: what its pages ask for and complain about is kept, and axe-core judges them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chromium import Watched, opened
from console_face import Opened
from node_environment import node_environment

if TYPE_CHECKING:
    from playwright.async_api import Page

PAGES: Final = ("/", "/runs", "/approvals", "/policy", "/tradeoff", "/money", "/memory", "/devices", "/privacy")
"""The pages of the menu, below /console."""
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


@dataclass(slots=True)
class ConsoleBrowser:
    """A page of the console that is open, and what went wrong on it."""

    page: "Page"
    address: str
    watched: Watched

    async def open(self, path: str) -> None:
        """Open a page of the console."""
        await self.page.goto(f"{self.address}/console{path}", wait_until="load")

    @property
    def complaints(self) -> list[str]:
        """Errors of scripts and of the content security policy, and requests that would leave this machine."""
        return [*self.watched.errors, *self.watched.elsewhere]

    async def violations(self) -> list[Any]:
        """Return what axe-core finds on the page that is serious or critical."""
        found = await self.page.evaluate(_RUN_AXE)
        return [each for each in found if each[1] in ("serious", "critical")]

    async def overflow(self) -> int:
        """Return the pixels by which the page is wider than its window."""
        return int(await self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


@asynccontextmanager
async def browsing(console: Opened, *, width: int = 1280, height: int = 900, dark: bool = False) -> AsyncIterator[ConsoleBrowser]:
    """Open Chromium, logged in. axe-core, which tests bring along, is put into pages past their content security policy."""
    axe = (node_environment() / _AXE).read_text(encoding="utf-8")
    async with opened() as chrome:
        context = await chrome.new_context(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light")
        context.set_default_timeout(_WAIT)
        await context.add_init_script(_TELL_OF_POLICY)
        await context.add_init_script(axe)
        page = await context.new_page()
        browser = ConsoleBrowser(page, console.address, Watched(page))
        await page.goto(console.link)
        yield browser
