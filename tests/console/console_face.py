"""A console on loopback in front of a `Hybrid` with records, and a browser without scripts."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import httpx

from nearfar import Hybrid, Records, ScriptedAgent, Tool
from nearfar.orchestrator.compose.config import Config
from nearfar.orchestrator.compose.hub import ServeConfig
from nearfar.orchestrator.console import console_around
from nearfar.orchestrator.console.view import BrowserLogins
from nearfar.orchestrator.serve import HttpServer, serve_hybrid
from nearfar.orchestrator.task.stores import RunsConfig

TOKEN = "t" * 32


@dataclass(frozen=True, slots=True)
class Opened:
    """A console that is served."""

    server: HttpServer
    logins: BrowserLogins
    hybrid: Hybrid

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def link(self) -> str:
        return f"{self.address}/console/enter?key={self.logins.link()}"

    @asynccontextmanager
    async def browser(self) -> AsyncIterator[httpx.AsyncClient]:
        """Yield a browser that is logged in."""
        async with httpx.AsyncClient(base_url=self.address, follow_redirects=True, timeout=30) as client:
            assert (await client.get(self.link)).status_code == 200
            yield client


@asynccontextmanager
async def opened(
    folder: Path,
    near: ScriptedAgent,
    far: ScriptedAgent | None = None,
    tools: tuple[Tool, ...] = (),
    file: Path | None = None,
    drain: float = 0.0,
) -> AsyncIterator[Opened]:
    """Serve the console of a `Hybrid` whose records lie in a folder."""
    serve = ServeConfig(address="127.0.0.1:0")
    config = Config(runs=RunsConfig(folder=folder / "runs"))
    async with (
        Hybrid(near=near, far=far, tools=list(tools), records=Records(folder / "runs")) as hybrid,
        console_around(hybrid, config, serve, file) as (logins, front),
        serve_hybrid(hybrid, serve, tokens={"app": TOKEN}, front=front, drain=drain) as server,
    ):
        yield Opened(server, logins, hybrid)


def fields_of(page: str, action: str) -> dict[str, str]:
    """Return the hidden fields of the form that goes to an address."""
    form = re.search(rf'<form[^>]*action="{re.escape(action)}"[^>]*>(.*?)</form>', page, re.DOTALL)
    assert form is not None, page
    return dict(re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', form[1]))


class Tags(HTMLParser):
    """The elements of a page, and what a script could hang on."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.handlers: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.handlers += [f"{tag} {name}" for name, value in attrs if name.startswith("on") or (value or "").startswith("javascript:")]
