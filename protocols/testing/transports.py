"""The transport matrix: the same agent in-process, over TCP and over a unix socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ..agent import Agent
from ..client import RemoteAgent
from ..server import serve
from .subject import Transport


@asynccontextmanager
async def in_process(agent: Agent) -> AsyncIterator[Agent]:
    """The agent itself."""
    yield agent


@asynccontextmanager
async def grpc_tcp(agent: Agent) -> AsyncIterator[Agent]:
    """The agent behind a server on a free loopback port."""
    async with _served(agent, "localhost:0") as remote:
        yield remote


@asynccontextmanager
async def grpc_unix(agent: Agent) -> AsyncIterator[Agent]:
    """The agent behind a server on a unix socket."""
    with TemporaryDirectory(prefix="nearfar-") as folder:
        async with _served(agent, f"unix:{Path(folder) / 'agent.sock'}") as remote:
            yield remote


@asynccontextmanager
async def _served(agent: Agent, address: str) -> AsyncIterator[Agent]:
    async with serve(agent, address) as server:
        remote = await RemoteAgent.connect(server.address)
        try:
            yield remote
        finally:
            await remote.aclose()


TRANSPORTS: tuple[Transport, ...] = (in_process, grpc_tcp, grpc_unix)
"""Every transport, for a parametrised test."""
