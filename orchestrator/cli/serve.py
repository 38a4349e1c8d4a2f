"""`nearfar serve`: serve agents, or a hub for workers, to other processes and machines over gRPC, and keep the tokens of the callers."""

import logging
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import anyio
import typer
from rich.text import Text

from ...protocols import Agent, ConfigError
from ...protocols import token_file as keeping
from ...protocols.address import fingerprint_of
from ...protocols.limits import ask_for_open_files
from ...protocols.security import ANY_CERTIFICATE, Scope, TokenRecord, system_time
from ...protocols.tls import ServerTls, first_certificate, read_roots, server_tls
from ...protocols.token_file import follow_tokens, read_tokens
from ..compose import FarConfig, NearConfig, NearSection, caller_tokens, open_near, parse_far, parse_near, serve_near
from ..compose.gateway_process import open_far_in_process, serve_far
from ..compose.hub import HubConfig, accept_workers
from ..memory import open_memory
from . import options
from .http import serve_a2a, serve_console, serve_http
from .mcp import serve_mcp
from .memory_store import StoreChoice, chosen_memory
from .running import Line, Note, asynchronous, notes, report_errors, show, table

if TYPE_CHECKING:
    from ...protocols.server import Server  # with gRPC, which `serve http` does without

Serving = Callable[..., "AbstractAsyncContextManager[Server]"]
"""Serves an agent at an address, with `ServeOptions`."""
Address = Annotated[str, typer.Option(help="HOST:PORT (port 0: any free one) or unix:/path.")]
Caller = Annotated[str, typer.Argument(help="Name of the device or person that the token is for.")]
EditedTokens = Annotated[Path, typer.Option("--tokens", help="The token file of the server. `add` creates it.")]
Scopes = Annotated[
    list[str] | None, typer.Option("--scope", help="What it allows: describe, steps, memory, attach, tasks or metrics. May be repeated.")
]
Lifetime = Annotated[str, typer.Option("--expires", help="Time after which it expires: 12h, 30d, 8w. Default: never.")]
_DEFAULT_FILE: Final = Path("tokens.toml")
_FOR_AGENTS: Final = (Scope.DESCRIBE, Scope.STEPS)
_DURATION: Final = re.compile(r"(\d{1,4})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
app = typer.Typer(no_args_is_help=True)
token_app = typer.Typer(help="Make, list, replace and revoke the tokens that callers of a server need.", no_args_is_help=True)


@app.command("gateway")
@asynchronous
async def serve_gateway(
    config: options.Config = None,
    far: options.Far = None,
    address: Address = "127.0.0.1:7443",
    certificate: options.Certificate = None,
    key: options.PrivateKey = None,
    client_authority: options.ClientAuthority = None,
    tokens: options.TokenFile = None,
    insecure: options.Insecure = False,
    drain: options.Drain = 30.0,
    as_json: options.AsJson = False,
) -> None:
    """Serve the far agent until Ctrl-C or SIGTERM. This process holds the provider's key, its callers only a token."""
    listening = options.Listening(address, certificate, key, tokens, insecure, client_authority)
    chosen, loaded = _chosen_far(config, far), options.read_config(config)
    serving = partial(serve_far, limits=None if loaded is None else loaded.gateway)
    await _serve(lambda: open_far_in_process(chosen), listening, serving, seconds=drain, as_json=as_json)


@app.command("agent")
@asynchronous
async def serve_agent(
    config: options.Config = None,
    near: options.Near = None,
    address: Address = "127.0.0.1:7444",
    certificate: options.Certificate = None,
    key: options.PrivateKey = None,
    client_authority: options.ClientAuthority = None,
    tokens: options.TokenFile = None,
    insecure: options.Insecure = False,
    drain: options.Drain = 30.0,
    as_json: options.AsJson = False,
) -> None:
    """Serve this machine's near agent to other processes until Ctrl-C or SIGTERM."""
    listening = options.Listening(address, certificate, key, tokens, insecure, client_authority)
    chosen = chosen_near(config, near)
    await _serve(lambda: open_near(chosen, name="near"), listening, serve_near, seconds=drain, as_json=as_json)


@app.command("hub")
@asynchronous
async def serve_hub(
    config: options.Config = None,
    address: Annotated[str, typer.Option(help="HOST:PORT at which devices reach the hub. Default: [hub] address.")] = "",
    certificate: options.Certificate = None,
    key: options.PrivateKey = None,
    client_authority: options.ClientAuthority = None,
    tokens: Annotated[Path | None, typer.Option(help="File with a token for each worker. Default: [hub] tokens.")] = None,
    web: Annotated[bool, typer.Option("--web", help="Also serve a page that makes browser tabs workers, and show its QR code.")] = False,
    device: Annotated[str, typer.Option(help="With --web: name of the device to pair.")] = "phone",
    model: Annotated[str, typer.Option(help="With --web: GGUF model that browsers load. Default: [hub] web_model, else near.")] = "",
    insecure: options.Insecure = False,
    as_json: options.AsJson = False,
) -> None:
    """Accept devices that dial out to lend their models, and offer the models to the tasks on this machine.

    With [hub] memory, also synchronise this machine's memory with theirs.
    """
    listening = options.Listening(address, certificate, key, tokens, insecure, client_authority)
    from .worker import open_page, page_data, page_lines, plan_page  # it imports this module

    log_to_stderr()
    ask_for_open_files()
    chosen = chosen_hub(config, listening)
    page = plan_page(chosen.model_copy(update={"web_model": model} if model else {}), device, as_json=as_json) if web else None
    chosen = chosen if page is None else page.hub
    async with AsyncExitStack() as stack:
        memory = open_memory(chosen_memory(StoreChoice(None, config))) if chosen.memory else None
        if memory is not None:
            stack.callback(memory.close)
        hub, reached = await stack.enter_async_context(accept_workers(chosen, memory=memory, insecure=insecure))
        workers = sorted(hub.agents)
        data: dict[str, Any] = {"address": reached, "socket": str(chosen.socket), "workers": workers, "memory": chosen.memory}
        lines: list[Line] = [*_hub_lines(chosen, reached, workers)]
        if page is not None:
            link = await stack.enter_async_context(open_page(hub, page, insecure=insecure))
            data, lines = data | page_data(page, link), [*page_lines(page, link), *lines]
        show(data, lines, as_json=as_json)
        await until_stopped()


def chosen_near(config: Path | None, near: str | None) -> NearSection:
    """Return the model that this device serves: the named one, else the configured one, else the one that ships with nearfar."""
    loaded = options.read_config(config)
    return parse_near(near) if near else (loaded.near if loaded else None) or NearConfig()


def chosen_hub(config: Path | None, listening: options.Listening, *, default: Callable[[], HubConfig] = HubConfig) -> HubConfig:
    """Return the `[hub]` section, or the default one without it, with the options applied."""
    hub = options.read_section(config, "hub", default)
    given = {
        "address": listening.address or None,
        "certificate": listening.certificate,
        "key": listening.key,
        "tokens": listening.tokens,
        "client_authority": listening.client_authority,
    }
    return hub.model_copy(update={name: value for name, value in given.items() if value is not None})


async def until_stopped() -> None:
    """Wait for Ctrl-C or SIGTERM, then return, so that the server drains instead of being torn down. On Windows, Ctrl-C cancels the
    wait."""
    if sys.platform == "win32":
        await anyio.sleep_forever()
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            return


def _chosen_far(config: Path | None, far: str | None) -> FarConfig:
    if far is not None:
        return parse_far(far)
    loaded = options.read_config(config)
    if loaded is None:
        return parse_far("far")
    if loaded.far is None:
        raise ConfigError("the configuration has no [far] section", hint="add one, or pass --far openai:MODEL")
    return loaded.far


def log_to_stderr() -> None:
    """Write the log of a server to standard error."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")


async def _serve(
    open_agent: Callable[[], Awaitable[Agent]], listening: options.Listening, serving: Serving, *, seconds: float, as_json: bool
) -> None:
    log_to_stderr()
    ask_for_open_files()
    tokens = caller_tokens(listening.tokens)
    tls = server_tls(listening.certificate, listening.key, listening.client_authority)
    agent = await open_agent()
    try:
        async with serving(agent, listening.address, tokens=tokens, tls=tls, insecure=listening.insecure) as server:
            _announce(agent, server.address, tls, protected=bool(tokens), as_json=as_json)
            async with anyio.create_task_group() as tasks:
                if listening.tokens is not None:
                    tasks.start_soon(follow_tokens, listening.tokens, server.replace_tokens)
                await until_stopped()
                await drain(server.drain(seconds), f"{server.live_steps} steps", seconds)
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await agent.aclose()


async def drain(ending: Awaitable[object], live: str, seconds: float) -> None:
    """Let what is running (`live`: named, with its number) finish for up to `seconds`, as `ending` does; a second signal ends it."""

    async def finish() -> None:
        await ending
        tasks.cancel_scope.cancel()

    if not live.startswith("0 "):
        notes.print(f"{live} are running and have {seconds:g} s; stop them with Ctrl-C", style="dim")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(finish)
        await until_stopped()
        tasks.cancel_scope.cancel()


def _announce(agent: Agent, address: str, tls: ServerTls | None, *, protected: bool, as_json: bool) -> None:
    demands_certificates = tls is not None and tls.client_roots is not None
    guard = "callers need a token" if protected else "any local process may call it; --tokens FILE changes that"
    if demands_certificates:
        guard = "callers need a certificate" + (" and, unless the token file says that it is enough, a token" if protected else "")
    guards = {"tls": tls is not None, "token": protected, "client_certificate": demands_certificates}
    told = f"serving {agent.card.model} on {address} ({'plain text' if tls is None else 'TLS'}; {guard})"
    data = {"address": address, "agent": agent.card.model_dump(mode="json"), **guards}
    show(data, [Note(told, ""), Note("stop with Ctrl-C")], as_json=as_json)


def _hub_lines(config: HubConfig, address: str, workers: list[str]) -> list[Note]:
    lines = [Note(f"workers may attach at {address}: {', '.join(workers)}", "")]
    if config.memory:
        known = ", ".join(f"{name} as {worker.user}" for name, worker in config.workers.items() if worker.user is not None)
        missing = "no device: [hub.workers.NAME] user names the user of each"
        lines.append(Note(f"memory is synchronised with {known or missing}", ""))
    return [*lines, Note(f"tasks reach the workers at {config.socket}; stop with Ctrl-C")]


@token_app.command("add")
def add_token(
    caller: Caller,
    tokens: EditedTokens = _DEFAULT_FILE,
    scope: Scopes = None,
    expires: Lifetime = "",
    certificate: Annotated[
        str,
        typer.Option(help="PEM file of a client certificate that takes the place of a token; `any`: every one with the caller's name."),
    ] = "",
    as_json: options.AsJson = False,
) -> None:
    """Make a token for a caller and print it. It is not shown again. Without scopes, its caller may ask the agents of a server."""
    with report_errors(as_json=as_json):
        lifetime = _parse_duration(expires) if expires else None
        scopes = _parse_scopes(scope) or _FOR_AGENTS
        if certificate:
            shown = ANY_CERTIFICATE if certificate == ANY_CERTIFICATE else _fingerprint(Path(certificate))
            record = keeping.add_certificate(tokens, caller, shown, scopes=scopes, lifetime=lifetime)
            told = f"{caller} needs no token in addition to its certificate ({shown}); allowed: {_names(record)}"
            show({**_fields(record), "tokens": str(tokens)}, [told], as_json=as_json)
        else:
            made = keeping.add_token(tokens, caller, scopes=scopes, lifetime=lifetime)
            show(_token_data(made, tokens), _made_lines(made), as_json=as_json)


@token_app.command("list")
def list_tokens(tokens: EditedTokens = _DEFAULT_FILE, as_json: options.AsJson = False) -> None:
    """Print the caller of each token, what the token allows, and when it expires."""
    with report_errors(as_json=as_json):
        records, now = read_tokens(tokens), system_time()
        rows = table(("caller", "id", "shows", "scopes", "made", "expires (UTC)"), (_token_cells(record, now) for record in records))
        show({"tokens": [_fields(record) for record in records]}, [rows], as_json=as_json)


@token_app.command("rotate")
def rotate_token(
    caller: Caller,
    tokens: EditedTokens = _DEFAULT_FILE,
    overlap: Annotated[str, typer.Option(help="How long the old token stays valid: 90m, 1d; 0 ends it at once.")] = "1d",
    scope: Scopes = None,
    expires: Lifetime = "",
    as_json: options.AsJson = False,
) -> None:
    """Make a new token for a caller and print it. It is not shown again. The old token stays valid for a while.

    Scopes and lifetime are those of the old token, unless they are given.
    """
    with report_errors(as_json=as_json):
        lifetime = _parse_duration(expires) if expires else None
        rest = timedelta() if overlap == "0" else _parse_duration(overlap)
        made = keeping.rotate_token(tokens, caller, overlap=rest, scopes=_parse_scopes(scope), lifetime=lifetime)
        old = Note(f"the old token is {f'valid for another {overlap}' if rest else 'revoked'}")
        show(_token_data(made, tokens), [*_made_lines(made), old], as_json=as_json)


@token_app.command("revoke")
def revoke_token(
    caller: Caller,
    tokens: EditedTokens = _DEFAULT_FILE,
    id: Annotated[str, typer.Option(help="Id of the token to revoke, as `list` shows it. Default: all tokens of the caller.")] = "",
    as_json: options.AsJson = False,
) -> None:
    """Revoke a caller's tokens. Running servers notice within two seconds and end the steps that were started with them."""
    with report_errors(as_json=as_json):
        gone = [record.id for record in keeping.revoke_tokens(tokens, caller, id=id or None)]
        told = f"revoked: {', '.join(gone)}; a server that runs with {tokens} notices within two seconds"
        show({"caller": caller, "revoked": gone}, [told], as_json=as_json)


def _fingerprint(certificate: Path) -> str:
    return fingerprint_of(first_certificate(read_roots(certificate)))


def _token_data(made: keeping.NewToken, tokens: Path) -> dict[str, Any]:
    return {**_fields(made.record), "token": made.token, "tokens": str(tokens)}


def _made_lines(made: keeping.NewToken) -> Iterator[Line]:
    record = made.record
    until = "" if record.expires is None else f", until {_minute(record.expires)} UTC"
    yield Note(f"the token of {record.caller} ({_names(record)}{until}), for its NEARFAR_TOKEN; it is not shown again:", style="")
    yield made.token


def _token_cells(record: TokenRecord, now: datetime) -> tuple[str | Text, ...]:
    ends = "never" if record.expires is None else _minute(record.expires)
    expiry = Text(f"{ends} (expired)", style="red") if record.is_expired(now) else Text(ends)
    made = _minute(record.created)[: len("2026-03-01")]
    return (record.caller, record.id, "certificate" if record.certificate else "token", _names(record), made, expiry)


def _fields(record: TokenRecord) -> dict[str, Any]:
    times = {"created": record.created, "expires": record.expires}
    shown = {name: None if time is None else time.isoformat() for name, time in times.items()}
    return {"caller": record.caller, "id": record.id, "certificate": record.certificate or None, "scopes": sorted(record.scopes), **shown}


def _names(record: TokenRecord) -> str:
    return ", ".join(sorted(record.scopes))


def _minute(time: datetime | None) -> str:
    return "" if time is None else f"{time:%Y-%m-%d %H:%M}"


def _parse_scopes(names: Sequence[str] | None) -> frozenset[Scope] | None:
    known = {str(scope): scope for scope in Scope}
    if unknown := [name for name in names or () if name not in known]:
        raise ConfigError(f"there is no scope {unknown[0]!r}", hint=f"the scopes are {', '.join(known)}")
    return frozenset(known[name] for name in names) if names else None


def _parse_duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    length = timedelta() if found is None else timedelta(**{_UNITS[found[2]]: int(found[1])})
    if not length:
        raise ConfigError(f"{text!r} is not a length of time", hint="write a number and s, m, h, d or w, as in 12h or 30d")
    return length


app.command("a2a")(serve_a2a)
app.command("http")(serve_http)
app.command("console")(serve_console)
app.command("mcp")(serve_mcp)
app.add_typer(token_app, name="token")
