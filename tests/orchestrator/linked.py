"""A near and a far agent as one `Hybrid`, the far one met directly or through a server of its own."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from nearfar import Hybrid, Tool
from nearfar.orchestrator.task.policy import Policy
from nearfar.protocols import Agent
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.server import serve

LINKS = ["in process", "over gRPC"]


@asynccontextmanager
async def linked(near: Agent, far: Agent, policy: Policy, *tools: Tool, link: str = "in process") -> AsyncGenerator[Hybrid]:
    """The two agents together."""
    if link == "in process":
        async with Hybrid(near=near, far=far, tools=tools, policy=policy) as hybrid:
            yield hybrid
        return
    async with serve(far) as server:
        remote = await RemoteAgent.connect(server.address)
        try:
            async with Hybrid(near=near, far=remote, tools=tools, policy=policy) as hybrid:
                yield hybrid
        finally:
            await remote.aclose()
