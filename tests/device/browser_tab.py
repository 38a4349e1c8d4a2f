"""A hub with its page, and a tab of a real browser that is attached to it with the shipped near model."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from chromium import Watched, require_chromium
from near_model import CONTEXT_TOKENS, prompt_with_long_answer
from node_environment import NODE_VENV

from nearfar.device.store import silent
from nearfar.device.store.browser_engine import VERSION, install_engine
from nearfar.orchestrator.compose.hub import PageModel, ServeConfig, read_page_model
from nearfar.protocols import Side
from nearfar.protocols.hub import AttachedAgent, Hub, WorkerTerms

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Page

ARCHIVES = Path(os.environ.get("NEARFAR_WLLAMA", NODE_VENV))
"""The folder with wllama's archives, which `make node` fetches."""
TOKENS = {"phone": "the token of the phone", "tablet": "the token of the tablet"}
OWN = {name: WorkerTerms(side=Side.NEAR) for name in TOKENS}


def require_tab() -> None:
    """Skip the module where a tab cannot be opened."""
    require_chromium()
    pytest.importorskip("websockets", reason="the page's connection is an extra: pip install 'nearfar[serve]'")
    if not (ARCHIVES / f"wllama-wllama-compat-{VERSION}.tgz").exists():
        pytest.skip("wllama is not here: run `make node`, or name a folder with its archives in NEARFAR_WLLAMA", allow_module_level=True)


@cache
def engine() -> Path:
    """Install wllama into the tests' own folder."""
    return install_engine(silent, ARCHIVES)


@cache
def near() -> PageModel:
    """The near model, with a context in which long answers end soon."""
    model = read_page_model("near", silent)
    return replace(model, described={**model.described, "context_tokens": CONTEXT_TOKENS})


@dataclass
class Served:
    """A hub whose page is served."""

    hub: Hub
    url: str

    @property
    def link(self) -> str:
        """The pairing link of the phone. A browser trusts `localhost` without a certificate."""
        return f"{self.url.replace('127.0.0.1', 'localhost')}/#token={TOKENS['phone'].replace(' ', '%20')}"


@asynccontextmanager
async def served(model: PageModel | None = None, *, port: int = 0, certificate: Path | None = None) -> AsyncIterator[Served]:
    """Serve the page of a hub until the context ends; with a `certificate`, its key lies next to it as `key.pem`."""
    from nearfar.orchestrator.serve.hub import serve_page

    hub = Hub(TOKENS, policies=OWN)
    key = None if certificate is None else certificate.with_name("key.pem")
    config = ServeConfig(address=f"127.0.0.1:{port}", certificate=certificate, key=key)
    async with serve_page(hub, model or near(), engine(), config) as url:
        yield Served(hub, url)


@dataclass
class Tab:
    """A tab that is attached."""

    served: Served
    page: "Page"
    watched: Watched
    agent: AttachedAgent

    @property
    def live_steps(self) -> int:
        session = self.served.hub.attached.get("phone")
        return 0 if session is None else session.live_steps


async def long_prompt(tab: Tab) -> str:
    """A prompt that the tab answers with hundreds of tokens."""
    if not _found:
        _found.append(await prompt_with_long_answer(tab.agent))
    return _found[0]


_found: list[str] = []


async def attached_tab(served: Served, browser: "Browser | BrowserContext") -> Tab:
    """Open the pairing link in a tab, and wait until it is attached."""
    page = await browser.new_page()
    watched = Watched(page)
    await page.goto(served.link)
    return Tab(served, page, watched, await served.hub.wait_for("phone"))
