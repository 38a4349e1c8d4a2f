"""`nearfar serve http` and `nearfar serve console`: turns for clients of OpenAI and Anthropic, and pages for the owner."""

import asyncio
import gc
import logging
import os
import secrets
import sys
import webbrowser
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import anyio
import typer

from ...protocols import ConfigError
from ...protocols.limits import ask_for_open_files
from ...protocols.token_file import follow_tokens, load_tokens
from ...protocols.tokens import Scope, TokenRecord, hashed
from ..compose.config import Config
from ..compose.gateway_child import ask_providers_here
from ..compose.policy_file import PolicyFile
from ..task.stores import RunsConfig
from ..util.runtime import in_thread
from . import options
from .printing import Line, Note, show
from .running import execute, load_langgraph
from .selection import chosen_config, open_hybrid
from .telemetry import exporting

if TYPE_CHECKING:
    from ..console.access import BrowserLogins
    from ..hybrid.hybrid import Hybrid
    from ..serve.server import Front

_CALLER: Final = "local"
"""Name of the caller that the token of a server without a token file is made for."""
_PACKAGES: Final = ("starlette", "uvicorn")


def serve_http(
    config: options.Config = None,
    near: options.Near = None,
    far: options.Far = None,
    tools: options.Tools = None,
    strategy: options.StrategyName = None,
    mode: options.ModeName = None,
    public: options.Public = False,
    address: Annotated[str, typer.Option(help="HOST:PORT (port 0: any free one). Default: [serve] address.")] = "",
    certificate: options.Certificate = None,
    key: options.PrivateKey = None,
    tokens: Annotated[
        Path | None, typer.Option(help="File of tokens, see `serve token`. Default: [serve] tokens, else one token is made and printed.")
    ] = None,
    drain: options.Drain = 30.0,
    as_json: options.AsJson = False,
) -> None:
    """Let clients of OpenAI and Anthropic have their turns served, until Ctrl-C or SIGTERM."""
    selection = options.AgentChoice(config, near, far, strategy, mode, public, tools)

    async def work() -> None:
        config = _chosen(selection, address=address, certificate=certificate, key=key, tokens=tokens)
        await _serve(selection, config, drain, as_json=as_json)

    execute(work(), as_json=as_json)


def serve_console(
    config: options.Config = None,
    near: options.Near = None,
    far: options.Far = None,
    tools: options.Tools = None,
    strategy: options.StrategyName = None,
    mode: options.ModeName = None,
    public: options.Public = False,
    address: Annotated[str, typer.Option(help="HOST:PORT (port 0: any free one). Default: [serve] address.")] = "",
    certificate: options.Certificate = None,
    key: options.PrivateKey = None,
    drain: options.Drain = 5.0,
    as_json: options.AsJson = False,
) -> None:
    """Show pages of what this machine's agents do: chat, runs, approvals, policy, money, memory, devices. A one-time link opens them.

    The same process serves what `serve http` serves.
    """
    selection = options.AgentChoice(config, near, far, strategy, mode, public, tools)

    async def work() -> None:
        chosen = _chosen(selection, address=address, certificate=certificate, key=key)
        chosen = chosen.model_copy(update={"runs": chosen.runs or RunsConfig()})
        overrides = selection.strategy or selection.mode or selection.public
        file = None if overrides else options.config_file(config)
        async with open_hybrid(selection, chosen, policy=None if file is None else PolicyFile(file)) as hybrid:
            await open_console(hybrid, chosen, drain, as_json=as_json, file=file)

    execute(work(), as_json=as_json)


def _chosen(selection: options.AgentChoice, *, address: str, **given: Path | None) -> Config:
    """Return the configuration, with what the options say about serving in its place. Raises `ConfigError` without the packages."""
    if any(find_spec(package) is None for package in _PACKAGES):
        raise ConfigError("serving HTTP needs starlette and uvicorn", hint="pip install 'nearfar[serve]'")
    config = chosen_config(selection)
    update = {name: value for name, value in {"address": address or None, **given}.items() if value is not None}
    ask_for_open_files()
    return config.model_copy(update={"serve": config.serve.model_copy(update=update)})


async def open_console(
    hybrid: "Hybrid", config: Config, seconds: float, *, as_json: bool, file: Path | None = None, opens: bool = False
) -> None:
    """Serve the console of a `hybrid` until Ctrl-C or SIGTERM, and print the link to it. `opens`: also open it in a browser."""
    from ..console.serving import console_around

    load_langgraph()
    async with (
        AsyncExitStack() as stack,  # outlives the next blocks, the last of which serves until it is stopped
        console_around(hybrid, config, config.serve, file) as (logins, front),
        _served(hybrid, config, seconds, front) as (url, made),
    ):
        link = _link(url, logins)
        once = Note("open this link in a browser; it works once, within ten minutes:", "")
        stop = Note("press Enter for another link, stop with Ctrl-C" if _owns_terminal() and not as_json else "stop with Ctrl-C")
        show({"url": url, "link": link, "token": made or None}, [once, link, stop], as_json=as_json)
        if not as_json:
            stack.enter_context(_at_enter(lambda: show({}, [_link(url, logins)], as_json=False)))
        if opens:
            await in_thread(webbrowser.open, link)


def _link(url: str, logins: "BrowserLogins") -> str:
    return f"{url}/console/enter?key={logins.link()}"


@contextmanager
def _at_enter(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` each time that Enter is pressed in this process's terminal; never without one, and on Windows."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        if not _owns_terminal():
            return  # the keys are another process's: reading them would stop this one
        if sys.stdin.readline():
            act()
        else:
            loop.remove_reader(sys.stdin)  # its end

    if not _owns_terminal():
        yield
        return
    loop.add_reader(sys.stdin, read)
    try:
        yield
    finally:
        loop.remove_reader(sys.stdin)


def _owns_terminal() -> bool:
    """Standard input is a terminal, and this process is the one in front of it."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        return False
    return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()


async def _serve(selection: options.AgentChoice, config: Config, seconds: float, *, as_json: bool) -> None:
    load_langgraph()
    async with open_hybrid(selection, config) as hybrid, _served(hybrid, config, seconds) as (url, made):
        gc.collect()
        gc.freeze()  # what is loaded now lives as long as the server: no collection needs to look at it again
        agents = [handle.name for handle in hybrid.pool]
        show({"url": url, "agents": agents, "token": made or None}, _lines(url, agents, made), as_json=as_json)


@asynccontextmanager
async def _served(hybrid: "Hybrid", config: Config, seconds: float, front: "Front | None" = None) -> AsyncIterator[tuple[str, str]]:
    """Serve a `hybrid`; yield the URL and the token that was made, if none is configured; then serve on until Ctrl-C or SIGTERM."""
    from ..serve.server import Front, serve_hybrid
    from .serve import drain, log_to_stderr, until_stopped

    serve = config.serve
    log_to_stderr()
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    made = "" if serve.tokens is not None else secrets.token_hex(32)
    records = load_tokens(serve.tokens) if serve.tokens is not None else (_record(made),)
    async with (
        exporting(hybrid),
        serve_hybrid(hybrid, serve, tokens=records, drain=seconds, front=front or Front()) as server,
        anyio.create_task_group() as tasks,
    ):
        ask_providers_here(hybrid.pool, {"far": config.far, **config.other_far})
        if serve.tokens is not None:
            tasks.start_soon(follow_tokens, serve.tokens, server.access.replace_tokens)
        yield server.address, made
        await until_stopped()
        await drain(server.drain(), f"{server.live_requests} requests", seconds)
        server.end_now()
        tasks.cancel_scope.cancel()


def _record(token: str) -> TokenRecord:
    return TokenRecord(id=_CALLER, caller=_CALLER, digest=hashed(token), scopes=frozenset({Scope.TASKS, Scope.METRICS}))


def _lines(url: str, agents: list[str], token: str) -> Iterator[Line]:
    yield Note(f"serving {', '.join(agents)} at {url}; callers need a token", "")
    yield Note("to point OpenAI's or Anthropic's clients at it, with the model nearfar/auto:", "")
    shown = token or "TOKEN"
    yield f"export OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY={shown}"
    yield f"export ANTHROPIC_BASE_URL={url} ANTHROPIC_AUTH_TOKEN={shown}"
    yield Note("stop with Ctrl-C")
