"""`nearfar serve`: serve agents, or a hub for workers, to other processes and machines over gRPC."""

import logging
import signal
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
import typer

from ...protocols import Agent, ConfigError, Side
from ...protocols.channel import ServerTls, server_tls
from ...protocols.limits import ask_for_open_files
from ...protocols.server import Server
from ...protocols.token_file import follow_tokens
from ..compose.agents import FarConfig, NearConfig, caller_tokens, open_far_in_process, open_local, parse_far, serve_far, serve_near
from ..compose.hub import HubConfig, accept_workers
from ..compose.memory import open_memory
from . import options, token
from .memory_store import StoreChoice, chosen_memory
from .printing import Note, notes, show
from .running import execute

Serving = Callable[..., AbstractAsyncContextManager[Server]]
"""Serves an agent at an address, with `ServeOptions`."""
Address = Annotated[str, typer.Option(help="HOST:PORT (port 0: any free one) or unix:/path.")]

app = typer.Typer(no_args_is_help=True)
app.add_typer(token.app, name="token")


@app.command("gateway")
def serve_gateway(
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

    async def work() -> None:
        chosen, loaded = _chosen_far(config, far), options.read_config(config)
        serving = partial(serve_far, limits=None if loaded is None else loaded.gateway)
        await _serve(lambda: open_far_in_process(chosen), listening, serving, drain=drain, as_json=as_json)

    execute(work(), as_json=as_json)


@app.command("agent")
def serve_agent(
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

    async def work() -> None:
        chosen = chosen_near(config, near)
        await _serve(lambda: open_local(chosen, name="near", side=Side.NEAR), listening, serve_near, drain=drain, as_json=as_json)

    execute(work(), as_json=as_json)


@app.command("hub")
def serve_hub(
    config: options.Config = None,
    address: Annotated[str, typer.Option(help="HOST:PORT at which devices reach the hub. Default: [hub] address.")] = "",
    certificate: options.Certificate = None,
    key: options.PrivateKey = None,
    client_authority: options.ClientAuthority = None,
    tokens: Annotated[Path | None, typer.Option(help="File with a token for each worker. Default: [hub] tokens.")] = None,
    insecure: options.Insecure = False,
    as_json: options.AsJson = False,
) -> None:
    """Accept devices that dial out to lend their models, and offer the models to the tasks on this machine.

    With [hub] memory, also synchronise this machine's memory with theirs.
    """
    listening = options.Listening(address, certificate, key, tokens, insecure, client_authority)

    async def work() -> None:
        _log_to_stderr()
        ask_for_open_files()
        chosen = chosen_hub(config, listening, otherwise=HubConfig())
        async with AsyncExitStack() as stack:
            memory = open_memory(chosen_memory(StoreChoice(None, config))) if chosen.memory else None
            if memory is not None:
                stack.callback(memory.close)
            hub, reached = await stack.enter_async_context(accept_workers(chosen, memory=memory, insecure=insecure))
            workers = sorted(hub.agents)
            data = {"address": reached, "socket": str(chosen.socket), "workers": workers, "memory": chosen.memory}
            show(data, _hub_lines(chosen, reached, workers), as_json=as_json)
            await until_stopped()

    execute(work(), as_json=as_json)


def chosen_near(config: Path | None, near: str | None) -> NearConfig:
    """Return the model that this device serves: the named one, else the configured one, else the one that ships with nearfar."""
    loaded = options.read_config(config)
    return NearConfig(model=near) if near else (loaded.near if loaded else None) or NearConfig()


def chosen_hub(config: Path | None, listening: options.Listening, *, otherwise: HubConfig) -> HubConfig:
    """Return the `[hub]` section, or `otherwise` without one, with the options applied."""
    loaded = options.read_config(config)
    hub = (loaded.hub if loaded is not None else None) or otherwise
    given = {
        "address": listening.address or None,
        "certificate": listening.certificate,
        "key": listening.key,
        "tokens": listening.tokens,
        "client_authority": listening.client_authority,
    }
    return hub.model_copy(update={name: value for name, value in given.items() if value is not None})


async def until_stopped() -> None:
    """Wait for Ctrl-C or SIGTERM, then return, so that the server drains instead of being torn down."""
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


def _log_to_stderr() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")


async def _serve(
    open_agent: Callable[[], Awaitable[Agent]], listening: options.Listening, serving: Serving, *, drain: float, as_json: bool
) -> None:
    _log_to_stderr()
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
                await _drain(server, drain)
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await agent.aclose()


async def _drain(server: Server, seconds: float) -> None:
    """Let running steps finish for up to `seconds`; a second signal ends them."""

    async def finish() -> None:
        await server.drain(seconds)
        tasks.cancel_scope.cancel()

    if server.live_steps:
        notes.print(f"{server.live_steps} steps are running and have {seconds:g} s; stop them with Ctrl-C", style="dim")
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
