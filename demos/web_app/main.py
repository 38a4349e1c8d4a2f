"""A web app: FastAPI streams to the browser what the agents do, and one `Hybrid` serves all visitors.

`python demos/web_app/main.py --serve` serves the page at http://127.0.0.1:8000; without the option, two visitors ask at once.
"""

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import httpx
import uvicorn
from fastapi import FastAPI
from fastapi.responses import HTMLResponse, StreamingResponse

from nearfar import Hybrid, NearfarError, tool

NEAR = os.environ.get("NEARFAR_NEAR", "near")  # the two small models that ship with nearfar, or yours
FAR = os.environ.get("NEARFAR_FAR", "far")
passages = {
    "Port Elster": {"mayor": "Tomas Holm", "airline": "Orbix Foods"},
    "Orbix Foods": {"city": "Port Elster", "accountant": "Mira Holm"},
}
PAGE = """<!doctype html><title>Ask</title>
<form><input name=question size=60 value="What is the mayor of Port Elster?"><button>Ask</button></form>
<pre></pre><script>
const shown = document.querySelector("pre")
document.querySelector("form").onsubmit = (event) => {
  event.preventDefault()
  shown.textContent = ""
  const source = new EventSource("/ask?" + new URLSearchParams(new FormData(event.target)))
  source.onmessage = (message) => { shown.textContent += message.data + "\\n" }
  source.onerror = () => source.close()
}
</script>"""


@tool(effect="read", source="internal_tool")
def open(title: str, section: str) -> str:
    """A section of the passage with this exact title."""
    return passages[title].get(section, "not stated")


hybrid = Hybrid(near=NEAR, far=FAR, tools=[open])  # it opens no model before the first question


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Close the models with the app."""
    async with hybrid:
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/", response_class=HTMLResponse)
def index() -> str:
    return PAGE


@app.get("/ask")
async def ask(question: str) -> StreamingResponse:
    """Stream what happens as server-sent events. A visitor who leaves ends the stream, and with it the computing."""

    async def events() -> AsyncIterator[str]:
        try:
            async with aclosing(hybrid.stream(question, timeout=60)) as stream:
                async for event in stream:
                    match event.type:
                        case "tool_started":
                            yield data(calls=f"{event.call.name}({', '.join(map(str, event.call.arguments.values()))})")
                        case "tool_finished":
                            yield data(gets=event.result.content)
                        case "task_finished":
                            yield data(answer=event.result.text, by=event.result.agent)
        except NearfarError as error:
            yield data(error=error.message, hint=error.hint)

    return StreamingResponse(events(), media_type="text/event-stream")


def data(**fields: str) -> str:
    return f"data: {json.dumps(fields)}\n\n"


async def visit(client: httpx.AsyncClient, name: str, question: str) -> list[str]:
    """Ask as a browser does. Return a line for each event."""
    lines = [f"{name} asks: {question}"]
    async with client.stream("GET", "/ask", params={"question": question}) as response:
        lines += [f"  {line}" async for line in response.aiter_lines() if line]
    return lines


async def demo() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    questions = {"Ana": "What is the mayor of Port Elster?", "Bob": "What is the accountant of Port Elster's airline?"}
    async with httpx.AsyncClient(base_url=address, trust_env=False, timeout=60) as client:
        for lines in await asyncio.gather(*(visit(client, name, question) for name, question in questions.items())):
            print(*lines, sep="\n")
    server.should_exit = True
    await serving


if __name__ == "__main__":
    uvicorn.run(app) if "--serve" in sys.argv else asyncio.run(demo())
