"""The transport matrix: the same agent in-process, over TCP and over a unix socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..agent import Agent
from .subject import Transport


@asynccontextmanager
async def in_process(agent: Agent) -> AsyncIterator[Agent]:
    """The agent itself."""
    yield agent


TRANSPORTS: tuple[Transport, ...] = (in_process,)
"""Every transport, for a parametrised test."""
