"""An MCP server of version 2025-11-25 in plain JSON, which ignores that a call was given up. `python asking_server.py`"""

import json
import sys
from collections.abc import Callable

TOOLS = ("ask", "ask_twice_and_hang", "hang")
QUESTIONS: dict[int, Callable[[object], None]] = {}


def send(**message: object) -> None:
    """Send a message."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def ask(question: str, then: Callable[[object], None]) -> None:
    """Ask the client's user; `then` is called with what the client says."""
    number = 1000 + len(QUESTIONS)
    QUESTIONS[number] = then
    form = {"type": "object", "properties": {"sure": {"type": "boolean"}}}
    send(id=number, method="elicitation/create", params={"message": question, "requestedSchema": form})


def call(number: int, tool: str) -> None:
    """Run a tool."""
    if tool == "ask":
        ask("pay 900?", lambda said: send(id=number, result={"content": [{"type": "text", "text": json.dumps(said)}]}))
    if tool == "ask_twice_and_hang":
        ask("pay 1?", lambda _: None)
        ask("pay 2?", lambda _: None)


for line in sys.stdin:
    heard = json.loads(line)
    match heard.get("method"):
        case "initialize":
            offered = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "asking", "version": "1"}}
            send(id=heard["id"], result=offered)
        case "tools/list":
            schema = {"type": "object", "properties": {}}
            send(id=heard["id"], result={"tools": [{"name": name, "description": name, "inputSchema": schema} for name in TOOLS]})
        case "tools/call":
            call(heard["id"], heard["params"]["name"])
        case None:
            QUESTIONS[heard["id"]](heard.get("result", heard.get("error")))
        case _:
            if "id" in heard:
                send(id=heard["id"], error={"code": -32601, "message": "Method not found"})
