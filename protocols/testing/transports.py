"""The transport matrix: the same agent in-process, over TCP, over a unix socket and as an attached worker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ..agent import Agent
from ..attach import Worker
from ..cards import Side
from ..client import RemoteAgent
from ..hub import Hub, WorkerTerms, serve_hub
from ..server import serve
from .subject import Transport


@asynccontextmanager
async def in_process(agent: Agent) -> AsyncIterator[Agent]:
    """Yield the agent itself."""
    yield agent


@asynccontextmanager
async def grpc_tcp(agent: Agent) -> AsyncIterator[Agent]:
    """Yield the agent behind a server on a free loopback port."""
    async with _served(agent, "localhost:0") as remote:
        yield remote


@asynccontextmanager
async def grpc_unix(agent: Agent) -> AsyncIterator[Agent]:
    """Yield the agent behind a server on a unix socket."""
    with TemporaryDirectory(prefix="nearfar-") as folder:
        async with _served(agent, f"unix:{Path(folder) / 'agent.sock'}") as remote:
            yield remote


@asynccontextmanager
async def attached(agent: Agent) -> AsyncIterator[Agent]:
    """Yield the agent on a worker that attached to a hub, which treats the worker as the user's own device."""
    name, token = agent.card.name, "the worker's own token"
    hub = Hub({name: token}, policies={name: WorkerTerms(side=Side.NEAR)})
    async with serve_hub(hub) as address:
        worker = Worker(agent, address, token=token)
        running = asyncio.create_task(worker.run())
        lent = await hub.wait_for(name)
        try:
            yield lent
        finally:
            await lent.aclose()
            await worker.drain(0)
            await running


@asynccontextmanager
async def _served(agent: Agent, address: str) -> AsyncIterator[Agent]:
    async with serve(agent, address) as server:
        remote = await RemoteAgent.connect(server.address)
        try:
            yield remote
        finally:
            await remote.aclose()


TRANSPORTS: tuple[Transport, ...] = (in_process, grpc_tcp, grpc_unix, attached)
"""Every transport, for a parametrised test."""
