"""Serve the console in the process of the HTTP server."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

from ...protocols import ConfigError
from ...protocols.address import parse_address
from ..budgets.book import open_budgets
from ..compose.config import Config
from ..compose.hub import ServeConfig
from ..hybrid.hybrid import Hybrid
from ..safety.privacy_records import PrivacyRecords
from ..serve.server import Front
from .access import BrowserLogins
from .app import ConsoleApp, beside
from .chats import Chats
from .view import Console


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
