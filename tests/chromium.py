"""A headless Chromium for tests of pages, driven by playwright.

    from chromium import browser  # noqa: F401 - a fixture

    async def test_a_page(browser: Browser) -> None:
        page = await browser.new_page()
        await page.goto(url)

The browser is the machine's own (apt package `chromium`, or the program in CHROMIUM); playwright's own ones are not used. Tests that use
the fixture are skipped where playwright or Chromium is missing. It is started for each test, in the test's event loop; `opened(...)` with
`require_chromium()` serves fixtures of a wider scope, and scripts. `Watched` collects what a page must not do: errors in its console,
breaches of its policy, requests elsewhere.
"""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page, Request

_OPTIONS = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")
"""In containers, Chromium has no user namespaces for its sandbox, and little shared memory."""


def chromium() -> str | None:
    """Return the path of the machine's Chromium; None: there is none."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


def require_chromium() -> None:
    """Skip the test, or the module, where playwright or Chromium is missing."""
    pytest.importorskip("playwright.async_api", reason="playwright is not installed: pip install playwright")
    if chromium() is None:
        pytest.skip("there is no Chromium here: apt-get install chromium, or name one in CHROMIUM", allow_module_level=True)


@asynccontextmanager
async def opened(*options: str) -> "AsyncIterator[Browser]":
    """Run a browser until the context ends."""
    from playwright.async_api import async_playwright

    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=chromium(), args=[*_OPTIONS, *options])
        try:
            yield browser
        finally:
            await browser.close()


@pytest.fixture
async def browser() -> "AsyncIterator[Browser]":
    """A browser of the test's own."""
    require_chromium()
    async with opened() as running:
        yield running


@dataclass
class Watched:
    """What a page did that it must not do."""

    page: "Page"
    errors: list[str] = field(default_factory=list)
    """Errors in its console, and exceptions that it did not catch. A breach of its policy is one, too."""
    elsewhere: list[str] = field(default_factory=list)
    """Addresses of requests that left this machine."""

    def __post_init__(self) -> None:
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._look)

    def _look(self, request: "Request") -> None:
        if urlsplit(request.url).hostname not in ("localhost", "127.0.0.1", "::1", None):
            self.elsewhere.append(request.url)
