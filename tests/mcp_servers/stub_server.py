"""An MCP server with tools that do well, hang, die, flood, change and ask. `python stub_server.py [--legacy]`"""

import json
import os
import signal
import sys
from typing import Any

import anyio
from mcp import MCPError
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import METHOD_NOT_FOUND, ElicitRequest, ElicitRequestFormParams, ErrorData, InputRequiredResult, JSONRPCError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import BaseModel, Field

server = MCPServer("stub")
notes: list[str] = []


class Sum(BaseModel):
    total: int


class Slow(BaseModel):
    text: str = Field(json_schema_extra={"pattern": "^(a|a)*$"})  # on which Python's `re` may work for ever


class Confirmation(BaseModel):
    sure: bool


class Address(BaseModel):
    street: str


@server.tool()
def add(a: int, b: int) -> Sum:
    """Add two numbers."""
    return Sum(total=a + b)


@server.tool()
def note(text: str) -> str:
    """Keep a note."""
    notes.append(text)
    return f"kept: {text}"


@server.tool()
def count() -> int:
    """Count the notes."""
    return len(notes)


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("the disk is full")


@server.tool()
def slow() -> Slow:
    """Return a text that does not fit the schema."""
    return Slow(text=f"{'a' * 60}!")


@server.tool()
def refuse(text: str, context: Context) -> str:
    """Refuse a text by an error of the protocol, which tells it and the baggage of the request."""
    raise MCPError(-32010, f"no {text}, baggage {(context.request_context.meta or {}).get('baggage')}")


@server.tool()
def environment() -> str:
    """Return the environment and the folder of this process."""
    return json.dumps({"variables": dict(os.environ), "folder": os.getcwd(), "parent": os.getppid(), "id": os.getpid()})


@server.tool()
def process() -> int:
    """Return the id of this process."""
    return os.getpid()


@server.tool()
async def hang() -> str:
    """Answer nothing, and nothing else either, from now on."""
    os.kill(os.getpid(), signal.SIGSTOP)
    return "never"


@server.tool()
async def wait() -> str:
    """Wait for ever, while other calls are answered."""
    await anyio.sleep_forever()
    return "never"


@server.tool()
def die() -> str:
    """End the process in the middle of a call."""
    sys.stderr.write("out of memory\n")
    sys.stderr.flush()
    os._exit(3)


@server.tool()
def flood() -> str:
    """Return a text that is longer than any message may be."""
    return "x" * 20_000_000


@server.tool()
def much() -> str:
    """Return a long text."""
    return "word " * 100_000


@server.tool()
async def change(description: str, context: Context) -> str:
    """Change the description of the tool `note`."""
    server.remove_tool("note")
    server.add_tool(note, description=description)
    if context.request_context.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
        await context.session.send_tool_list_changed()
    else:
        await context.notify_tools_changed()
    return "changed"


QUESTIONS: dict[str, tuple[str, type[BaseModel]]] = {
    "ask": ("delete 3 files?", Confirmation),
    "ask_address": ("where do you live?", Address),
}


async def answer_of(context: Context, name: str) -> Any:  # noqa: ANN401 - the package's types of the two versions differ
    """Ask the user, in the way of the client's protocol version; None: a question was sent, and the call comes again."""
    message, kind = QUESTIONS[name]
    if context.request_context.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
        return await context.elicit(message, kind)
    return (context.input_responses or {}).get("question")


def question(name: str) -> InputRequiredResult:
    """Return the result that asks."""
    message, kind = QUESTIONS[name]
    schema = {"type": "object", "properties": kind.model_json_schema()["properties"]}
    asked = ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))
    return InputRequiredResult(input_requests={"question": asked}, request_state="once more")


@server.tool(structured_output=False)
async def ask(context: Context) -> str | InputRequiredResult:
    """Ask whether to go on."""
    answer = await answer_of(context, "ask")
    return question("ask") if answer is None else str(answer.action)


@server.tool(structured_output=False)
async def ask_address(context: Context) -> str | InputRequiredResult:
    """Ask for an address."""
    answer = await answer_of(context, "ask_address")
    return question("ask_address") if answer is None else str(answer.action)


async def serve_older_clients() -> None:
    """Serve as a server does that knows the handshake only, and not `server/discover`."""
    low = server._lowlevel_server
    async with stdio_server() as (heard, said), anyio.create_task_group() as tasks:
        known_send, known = anyio.create_memory_object_stream[Any](0)
        tasks.start_soon(low.run, known, said, low.create_initialization_options())
        async with known_send:
            async for message in heard:
                if getattr(message.message, "method", None) == "server/discover":
                    unknown = ErrorData(code=METHOD_NOT_FOUND, message="Method not found")
                    await said.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=message.message.id, error=unknown)))
                else:
                    await known_send.send(message)


if __name__ == "__main__":
    if "--legacy" in sys.argv:
        anyio.run(serve_older_clients)
    else:
        server.run()
