"""`nearfar serve gateway` and `nearfar serve agent`."""

import logging
import signal
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import anyio

from ...protocols import Agent, ConfigError, Side
from ...protocols.channel import ServerTls, server_tls
from ...protocols.limits import ask_for_open_files
from ...protocols.server import Server
from ...protocols.token_following import follow_tokens
from ..compose.agents import FarConfig, NearConfig, caller_tokens, open_far_in_process, open_local, parse_far, serve_far, serve_near
from .configuration import read_config
from .console import execute, notes, print_json
from .options import Listening

Serving = Callable[..., AbstractAsyncContextManager[Server]]
"""Serves an agent at an address, with `ServeOptions`."""


def run_gateway(config: Path | None, far: str | None, listening: Listening, *, drain: float, as_json: bool) -> None:
    """Serve the far agent until Ctrl-C or SIGTERM; then running steps have `drain` seconds."""

    async def work() -> None:
        chosen, loaded = _chosen_far(config, far), read_config(config)
        serving = partial(serve_far, limits=None if loaded is None else loaded.gateway)
        await _serve(lambda: open_far_in_process(chosen), listening, serving, drain=drain, as_json=as_json)

    execute(work(), as_json=as_json)


def run_agent(config: Path | None, near: str | None, listening: Listening, *, drain: float, as_json: bool) -> None:
    """Serve the near agent until Ctrl-C or SIGTERM; then running steps have `drain` seconds."""

    async def work() -> None:
        chosen = chosen_near(config, near)
        await _serve(lambda: open_local(chosen, name="near", side=Side.NEAR), listening, serve_near, drain=drain, as_json=as_json)

    execute(work(), as_json=as_json)


def chosen_near(config: Path | None, near: str | None) -> NearConfig:
    """The model that this device serves: the named one, else the configured one, else the one that ships with nearfar."""
    loaded = read_config(config)
    return NearConfig(model=near) if near else (loaded.near if loaded else None) or NearConfig()


async def _serve(
    open_agent: Callable[[], Awaitable[Agent]], listening: Listening, serving: Serving, *, drain: float, as_json: bool
) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
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
    """Let running steps finish; a second signal ends them."""

    async def finish() -> None:
        await server.drain(seconds)
        tasks.cancel_scope.cancel()

    if server.live_steps:
        notes.print(f"{server.live_steps} steps are running and have {seconds:g} s; stop them with Ctrl-C", style="dim")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(finish)
        await until_stopped()
        tasks.cancel_scope.cancel()


async def until_stopped() -> None:
    """Wait for Ctrl-C or SIGTERM, then return, so that the server drains instead of being torn down."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            return


def _announce(agent: Agent, address: str, tls: ServerTls | None, *, protected: bool, as_json: bool) -> None:
    demands_certificates = tls is not None and tls.client_roots is not None
    if as_json:
        guards = {"tls": tls is not None, "token": protected, "client_certificate": demands_certificates}
        print_json({"address": address, "agent": agent.card.model_dump(mode="json"), **guards})
        return
    guard = "callers need a token" if protected else "any local process may call it; --tokens FILE changes that"
    if demands_certificates:
        guard = "callers need a certificate" + (" and, unless the token file says that it is enough, a token" if protected else "")
    notes.print(f"serving {agent.card.model} on {address} ({'plain text' if tls is None else 'TLS'}; {guard})")
    notes.print("stop with Ctrl-C", style="dim")


def _chosen_far(config: Path | None, far: str | None) -> FarConfig:
    if far is not None:
        return parse_far(far)
    loaded = read_config(config)
    if loaded is None:
        return parse_far("far")
    if loaded.far is None:
        raise ConfigError("the configuration has no [far] section", hint="add one, or pass --far openai:MODEL")
    return loaded.far
