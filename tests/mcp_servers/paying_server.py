"""Serve a `Hybrid` on standard input and output whose tool needs approval. `python paying_server.py`"""

import anyio

from nearfar import Hybrid, ScriptedAgent, StepRequest, ToolCall, tool
from nearfar.orchestrator.serve.mcp_server import mcp_server, serve_stdio


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"{amount} is paid"


def reply(request: StepRequest) -> str | ToolCall:
    """Pay, and repeat what the tool says."""
    told = request.messages[-1].tool_result
    return told.content if told is not None else ToolCall(id="1", name="pay", arguments={"amount": 5})


async def main() -> None:
    """Serve until the host leaves."""
    async with Hybrid(near=ScriptedAgent(reply), tools=[pay]) as hybrid:
        await serve_stdio(mcp_server(hybrid))


if __name__ == "__main__":
    anyio.run(main)
