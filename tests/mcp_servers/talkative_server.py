"""Serve a `Hybrid` on standard input and output whose tool prints, as do its child and the agent."""

import subprocess
import sys

import anyio

from nearfar import Hybrid, ScriptedAgent, ToolCall, tool
from nearfar.orchestrator.serve.mcp_server import mcp_server, serve_stdio


@tool(effect="read", source="internal_tool")
def talk() -> str:
    """Print, read standard input, and start a child that prints."""
    sys.stdout.write("the tool prints\n")
    sys.stdout.flush()
    subprocess.run(["echo", "a child prints"], check=True)
    return f"read {sys.stdin.read()!r}"


async def main() -> None:
    """Serve until the host leaves."""
    near = ScriptedAgent([ToolCall(id="1", name="talk"), "done"])
    async with Hybrid(near=near, tools=[talk]) as hybrid:
        await serve_stdio(mcp_server(hybrid))


if __name__ == "__main__":
    anyio.run(main)
