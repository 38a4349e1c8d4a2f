"""The stub server: its configuration, its approval, and calls of its tools."""

import sys
from pathlib import Path
from typing import Any

import anyio

from nearfar import Approver, McpServer, McpToolOffer, ToolCall, ToolResult, review_mcp_server
from nearfar.orchestrator.mcp.tools import McpServers
from nearfar.orchestrator.task.context import asking

STUB = Path(__file__).with_name("stub_server.py")


def stub_config(*arguments: str, **options: Any) -> McpServer:  # noqa: ANN401 - any keys of the section
    """Return the configuration of the stub server."""
    return McpServer.model_validate({"name": "stub", "command": sys.executable, "args": (str(STUB), *arguments), **options})


async def approve(config: McpServer, *names: str) -> list[McpToolOffer]:
    """Approve the tools of these names, or all that a server offers."""
    with anyio.fail_after(30):
        return await review_mcp_server(config, lambda offer: offer.tool.name in names or not names)


class Caller:
    """Calls the tools of a server that is configured as `stub`."""

    def __init__(self, config: McpServer, approver: Approver | None = None) -> None:
        self.servers = McpServers([config])
        self.tools = {tool.name: tool for tool in self.servers.tools}
        self._approver = approver

    async def __aenter__(self) -> "Caller":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.servers.release()

    async def call(self, name: str, /, **arguments: Any) -> ToolResult:  # noqa: ANN401 - any JSON
        """Call a tool by the name that the server gives it."""
        with asking(self._approver), anyio.fail_after(60):
            return await self.tools[f"stub__{name}"].run(ToolCall(id="1", name=f"stub__{name}", arguments=arguments))
