"""The client that the conformance suite tests: Nearfar's own, with a `Hybrid` that calls every tool of the server once.

`python conformance_client.py URL`
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
from mcp_stubs import Caller, approve

from nearfar import ApprovalRequest, McpServer, PinnedTool

EXAMPLES: dict[str, Any] = {"string": "text", "number": 3, "integer": 3, "boolean": True, "array": [], "object": {}}


async def main(url: str) -> None:
    """Approve what the server offers, and call it."""
    config = McpServer(name="stub", url=url, call_seconds=10)
    offers = await approve(config)
    given = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}")).get("toolCalls", [])
    calls = [(call["name"], call["arguments"]) for call in given]
    calls = calls or [(offer.tool.name, example(offer.tool, offers[0].tool)) for offer in offers if offer.state != "unusable"]
    async with Caller(config, agree) as server:
        for name, arguments in calls:
            result = await server.call(name, **{key: value for key, value in arguments.items() if value is not None})
            sys.stderr.write(f"{name} {result.is_error} {result.content}\n")


async def agree(requests: Sequence[ApprovalRequest]) -> Mapping[str, bool]:
    """Say yes to every question."""
    return {request.id: True for request in requests}


def example(tool: PinnedTool, first: PinnedTool) -> dict[str, Any]:
    """Return arguments for a tool. One that takes a schema gets that of the first tool."""
    known = {name: EXAMPLES.get(schema.get("type"), "text") for name, schema in tool.parameters.get("properties", {}).items()}
    return {**known, "schema": first.parameters} if "schema" in known else known


if __name__ == "__main__":
    os.environ.setdefault("NEARFAR_HOME", ".")
    anyio.run(main, sys.argv[-1])
