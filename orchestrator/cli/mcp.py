"""`nearfar mcp`: see the configured MCP servers, and approve their tools. `nearfar serve mcp`: be one."""

from collections.abc import Callable, Iterator
from difflib import unified_diff
from importlib.util import find_spec
from json import dumps
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer
from rich.text import Text

from ...protocols import ConfigError
from ...protocols.token_file import follow_tokens, read_tokens
from ..compose.hub import ServeConfig
from ..mcp import McpServer, McpServerConfig, PinnedTool, Pins, read_pins
from ..mcp.tools import McpToolOffer, review_mcp_server, tool_name
from ..util.text import spell_out
from . import options
from .http import exporting
from .running import Line, Note, asynchronous, confirm, notes, report_errors, show, table
from .selection import chosen_config, open_hybrid

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_servers(config: options.Config = None, as_json: options.AsJson = False) -> None:
    """Print the configured servers and the tools that are approved. No server is started."""
    with report_errors(as_json=as_json):
        servers = _servers(config)
        pinned = {name: read_pins(server) for name, server in servers.items()}
        data = {name: _server_data(servers[name], pins) for name, pins in pinned.items()}
        rows = [row for name, server in servers.items() for row in _rows(name, server, pinned[name])]
        show({"servers": data}, [table(("server", "command or address", "tool", "effect"), rows)], as_json=as_json)


@app.command("review")
@asynchronous
async def review_servers(
    server: Annotated[str, typer.Argument(help="Name of the server. Default: all of them.")] = "",
    again: Annotated[bool, typer.Option("--again", help="Ask about approved tools, too.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Approve everything without asking.")] = False,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Start servers, show their tools that are new or have changed, and ask which ones the agents may call."""
    servers = _servers(config)
    if server and server not in servers:
        raise ConfigError(f"there is no MCP server {server!r}", hint=f"configured: {', '.join(servers) or 'none'}")
    reviewed = {}
    for name in [server] if server else servers:
        if _may_start(name, servers[name], yes=yes, as_json=as_json):
            approve = (lambda _: True) if yes else _asker(again=again, as_json=as_json)
            reviewed[name] = await review_mcp_server(McpServer.of_section(name, servers[name]), approve)
    data = {name: [_offer_data(offer) for offer in offers] for name, offers in reviewed.items()}
    show({"servers": data}, _review_lines(reviewed, servers), as_json=as_json)


@asynchronous
async def serve_mcp(
    config: options.Config = None,
    near: options.Near = None,
    far: options.Far = None,
    tools: options.Tools = None,
    strategy: options.StrategyName = None,
    mode: options.ModeName = None,
    public: options.Public = False,
    address: Annotated[str, typer.Option(help="HOST:PORT for HTTP. Default: standard input and output, for a host that starts it.")] = "",
    certificate: options.Certificate = None,
    key: options.PrivateKey = None,
    tokens: Annotated[Path | None, typer.Option("--tokens", help="File of tokens, see `serve token`. Default: [serve] tokens.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Let MCP hosts run tasks, recall memories, and see their runs, until the host leaves or Ctrl-C."""
    selection = options.AgentChoice(config, near, far, strategy, mode, public, tools)
    if find_spec("mcp") is None:
        raise ConfigError("serving MCP needs the Python package mcp", hint="pip install 'nearfar[mcp]'")
    from ..serve.mcp_server import mcp_server, serve_stdio

    chosen = chosen_config(selection)
    given = {"address": address, "certificate": certificate, "key": key, "tokens": tokens}
    serving = chosen.serve.model_copy(update={name: value for name, value in given.items() if value})
    async with open_hybrid(selection, chosen) as hybrid, exporting(hybrid):
        server = mcp_server(hybrid, serving)
        if address:
            await _serve_http(server, serving, as_json=as_json)
        else:
            await serve_stdio(server)


async def _serve_http(server: "MCPServer", config: ServeConfig, *, as_json: bool) -> None:
    from ...protocols.access import Access  # with gRPC
    from ..serve import serving_mcp
    from .serve import until_stopped

    access = Access({} if config.tokens is None else read_tokens(config.tokens))
    is_open = access.authenticator.is_open
    async with serving_mcp(server, config, access) as url, anyio.create_task_group() as tasks:
        guard = "any local program may call it; --tokens FILE changes that" if is_open else "callers need a token"
        show({"url": url, "token": not is_open}, [Note(f"serving MCP at {url} ({guard}); stop with Ctrl-C", "")], as_json=as_json)
        if config.tokens is not None:
            tasks.start_soon(follow_tokens, config.tokens, access.replace_tokens)
        await until_stopped()
        tasks.cancel_scope.cancel()


def _servers(config: Path | None) -> dict[str, McpServerConfig]:
    loaded = options.read_config(config)
    if loaded is None or not loaded.mcp:
        raise ConfigError("no MCP server is configured", hint='nearfar.toml: [mcp.NAME] with command = "..." or url = "..."')
    return dict(loaded.mcp)


def _may_start(name: str, server: McpServerConfig, *, yes: bool, as_json: bool) -> bool:
    """Show the exact command of a server, or its address, and what it is given, and ask before it is started for the first time."""
    notes.print(Text(f"{name}: {_command(server)}", style="bold"), soft_wrap=True)
    for line in _given(server):
        notes.print(Text(f"  {spell_out(line)}"), soft_wrap=True)
    if yes or read_pins(server) is not None:
        return True
    return confirm("connect to this address?" if server.url else "start this program?", as_json=as_json)


def _given(server: McpServerConfig) -> Iterator[str]:
    """Yield what else decides what is started, and the names of the secrets that the server gets."""
    if server.folder is not None:
        yield f"folder: {server.folder}"
    if server.env:
        yield f"environment: {join(f'{name}={value}' for name, value in server.env.items())}"
    if secrets := (*server.variables, *([server.token_variable] if server.token_variable else [])):
        yield f"gets the values of: {', '.join(secrets)}"


def _asker(*, again: bool, as_json: bool) -> Callable[[McpToolOffer], bool]:
    def approve(offer: McpToolOffer) -> bool:
        if offer.state == "approved" and not again:
            return True
        notes.print(Text(f"\n{spell_out(offer.tool.name)} ({offer.state})", style="bold yellow"))
        for line in _definition_lines(offer):
            notes.print(Text(f"  {spell_out(line)}"), soft_wrap=True)
        return confirm(f"may agents call {spell_out(offer.tool.name)}?", as_json=as_json)

    return approve


def _definition_lines(offer: McpToolOffer) -> Iterator[str]:
    """Yield the definition of a tool, or what has changed in it."""
    now = _text(offer.tool)
    if offer.approved is None or offer.state == "approved":
        yield from now
    else:
        yield from list(unified_diff(_text(offer.approved), now, "approved", "now", lineterm="", n=1))


def _text(tool: PinnedTool) -> list[str]:
    schemas = {"arguments": tool.parameters, "result": tool.result}
    written = [line for name, schema in schemas.items() if schema for line in (f"{name}:", *dumps(schema, indent=1).splitlines())]
    return [*tool.description.splitlines(), *written]


def _review_lines(reviewed: dict[str, list[McpToolOffer]], servers: dict[str, McpServerConfig]) -> Iterator[Line]:
    for name, offers in reviewed.items():
        pins = read_pins(servers[name])
        approved = [] if pins is None else list(pins.by_name)
        yield f"{name}: {len(approved)} of {len(offers)} tools are approved"
        for offer in offers:
            if offer.problem:
                yield Note(f"{spell_out(offer.tool.name)} cannot be used: {spell_out(offer.problem)}", "red")


def _rows(name: str, server: McpServerConfig, pins: Pins | None) -> Iterator[tuple[str, ...]]:
    if pins is None or not pins.tools:
        yield (name, _command(server), "none is approved: nearfar mcp review", "")
        return
    for tool in pins.by_name:
        yield (name, _command(server), tool_name(name, tool), str(server.of_tool(tool).effect))


def _server_data(server: McpServerConfig, pins: Pins | None) -> dict[str, Any]:
    tools = {} if pins is None else pins.by_name
    return {"command": list(server.shown), "approved": {name: tool.sha256 for name, tool in tools.items()}}


def _offer_data(offer: McpToolOffer) -> dict[str, Any]:
    return {"name": offer.tool.name, "state": offer.state, "problem": offer.problem or None, "sha256": offer.tool.fingerprint}


def _command(server: McpServerConfig) -> str:
    return spell_out(server.url or join(server.shown))
