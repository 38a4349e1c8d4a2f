"""The far agent of a gateway: opened and served, in a process of its own by `GatewayProcess` until the parent leaves."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Unpack

from pydantic import TypeAdapter

from ...cloud.config import A2aAgentConfig, GatewayLimits, ProviderConfig, build_provider
from ...protocols import Agent, ConfigError, NearfarError, Side
from ...protocols.limits import ask_for_open_files
from ..agents.pool import AgentPool
from ..storage.owners import remove_abandoned
from ..util.plugins import FarPluginConfig, open_plugin_agent
from ..util.runtime import run_in_daemon_thread
from .agents import FarConfig, GatewayConfig, LocalFarConfig, ServeOptions, open_local

if TYPE_CHECKING:
    from ...protocols.server import Server

_PIECE = 65_536
_ALONE = GatewayLimits(waiting=1_000_000, longest_wait=86_400)
"""The parent is the only caller, and may queue up as much as it likes."""


_CONFIG: TypeAdapter[FarConfig] = TypeAdapter(FarConfig)


async def open_far_in_process(config: FarConfig) -> Agent:
    """Open the far agent itself, as the gateway process does. Raises `ConfigError` for a `GatewayConfig`, whose agent is elsewhere."""
    if isinstance(config, GatewayConfig):
        raise ConfigError("a gateway cannot forward to another gateway", hint="name a provider or a model in [far]")
    if isinstance(config, LocalFarConfig):
        return await open_local(config, name="far", side=Side.FAR)
    if isinstance(config, FarPluginConfig):
        return await open_plugin_agent(config, name="far", side=Side.FAR)
    if isinstance(config, A2aAgentConfig):
        from ...cloud.a2a import RemoteTaskAgent

        return await RemoteTaskAgent.connect(config, name="far")
    if config.model is None:
        from ...cloud.server_info import with_only_model

        config = await with_only_model(config)
    return build_provider(config)


def ask_providers_here(pool: AgentPool, configs: Mapping[str, FarConfig | None]) -> None:
    """Let the agents of a pool that ask a provider do so from this process, for one that is a gateway itself: its callers hold a token
    and no provider's key. To be called before the first task."""
    for name, far in configs.items():
        if isinstance(far, ProviderConfig):
            pool[name].open_by(partial(open_far_in_process, far))


def serve_far(
    agent: Agent, address: str, *, limits: GatewayLimits | None = None, **options: Unpack[ServeOptions]
) -> "AbstractAsyncContextManager[Server]":
    """Serve a far agent as a gateway does: callers are known by their tokens, and each step is logged without its content."""
    from ...cloud.gateway import serve_gateway

    return serve_gateway({agent.card.name: agent}, address, limits=limits, **options)


async def serve_until_parent_leaves() -> None:
    """Open the far agent, serve it, and stop when standard input closes."""
    order = json.loads(await _read_line())
    async with contextlib.AsyncExitStack() as stack:
        try:
            agent = await open_far_in_process(_CONFIG.validate_python(order["far"]))
            stack.push_async_callback(agent.aclose)
            serving = serve_far(agent, order["address"], limits=_ALONE, tokens={"parent": order["token"]})
            server = await stack.enter_async_context(serving)
        except NearfarError as error:
            _answer({"error": type(error).__name__, "message": error.message, "hint": error.hint})
            return
        _answer({"address": server.address})
        while await _read():
            pass


async def _read_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        if not (piece := await _read()):
            raise SystemExit(0)  # the parent has left before it said anything
        line += piece
    return line


async def _read() -> bytes:
    """Return the next bytes of standard input, b"" at its end. A thread reads: on Windows an event loop cannot."""
    piece = await run_in_daemon_thread(partial(os.read, sys.stdin.fileno(), _PIECE))
    assert isinstance(piece, bytes), "of os.read"
    return piece


def _answer(message: dict[str, str]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Entry point of the child process."""
    logging.basicConfig(level=logging.WARNING, format="nearfar gateway: %(message)s")
    # Ctrl-C reaches the whole terminal; the parent decides when the gateway stops.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ask_for_open_files()
    asyncio.run(serve_until_parent_leaves())
    remove_abandoned()  # a parent that was killed has left its own


if __name__ == "__main__":
    main()
