"""Stands in for Ollama where there is none: its API, over HTTP on this machine, in front of the small model that ships with Nearfar.

It is no toy: llama.cpp, or onnxruntime where there is none, computes every answer, and enforces tool calls and schemas. It prints its port
and serves until it is ended.
"""

import asyncio
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from importlib.util import find_spec
from threading import Thread
from typing import Any

from nearfar import Agent, LlamaAgent, Message, NearfarError, OnnxAgent, StepReply, StepRequest, ToolCall, ToolResult, ToolSpec, complete

MODEL = "tiny:1.4m"
PAGES = {
    "/api/version": {"version": "0.12.0"},
    "/api/tags": {"models": [{"name": MODEL, "details": {"family": "llama"}}]},
    "/api/ps": {"models": [{"name": MODEL, "context_length": 2048}]},
    "/api/show": {"capabilities": ["completion", "tools"]},
    "/v1/models": {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "library"}]},
}


def message_of(given: dict[str, Any], names: dict[str, str]) -> Message:
    """Return a message of OpenAI's API as one of ours. `names` collects the tools by call."""
    calls = []
    for call in given.get("tool_calls") or []:
        names[call["id"]] = call["function"]["name"]
        calls.append(ToolCall(id=call["id"], name=call["function"]["name"], arguments=json.loads(call["function"]["arguments"])))
    if given["role"] == "tool":
        call_id = given["tool_call_id"]
        return Message.tool(ToolResult(call_id=call_id, name=names[call_id], content=given["content"]))
    return Message(role=given["role"], text=given.get("content") or "", tool_calls=tuple(calls))


def request_of(body: dict[str, Any]) -> StepRequest:
    names: dict[str, str] = {}
    form = (body.get("response_format") or {}).get("json_schema")
    tools = [{name: each["function"][name] for name in ("name", "description", "parameters")} for each in body.get("tools", [])]
    return StepRequest(
        messages=tuple(message_of(message, names) for message in body["messages"]),
        tools=tuple(map(ToolSpec.model_validate, tools)),
        tool_choice=body.get("tool_choice", "auto"),
        output_schema=form and form["schema"],
        max_output_tokens=body.get("max_completion_tokens") or body.get("max_tokens"),
    )


def chunks_of(reply: StepReply) -> list[dict[str, Any]]:
    """Return a reply as the chunks of a stream."""
    calls = [
        {"index": index, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
        for index, call in enumerate(reply.tool_calls)
    ]
    delta = {"role": "assistant", "content": reply.text} | ({"tool_calls": calls} if calls else {})
    used = reply.finished.usage
    usage = {"prompt_tokens": used.input_tokens, "completion_tokens": used.output_tokens, "total_tokens": used.total_tokens}
    same = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": MODEL}
    end = {"index": 0, "delta": {}, "finish_reason": reply.finished.reason.value}
    return [same | {"choices": [{"index": 0, "delta": delta}]}, same | {"choices": [end]}, same | {"choices": [], "usage": usage}]


class Handler(BaseHTTPRequestHandler):
    """Answers one request, in a thread of its own; the model works in the event loop."""

    loop: asyncio.AbstractEventLoop
    agent: Agent

    def do_GET(self) -> None:
        page = PAGES.get(self.path)
        self.reply(200 if page else 404, "application/json", json.dumps(page or {"error": "not found"}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions":
            self.do_GET()
            return
        try:
            step = complete(self.agent, request_of(body))
            chunks = chunks_of(asyncio.run_coroutine_threadsafe(step, self.loop).result())
        except (NearfarError, ValueError) as error:
            self.reply(400, "application/json", json.dumps({"error": {"message": str(error)}}))
            return
        self.reply(200, "text/event-stream", "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n")

    def reply(self, status: int, kind: str, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main() -> None:
    Handler.loop = asyncio.new_event_loop()
    Thread(target=Handler.loop.run_forever, daemon=True).start()
    engine = OnnxAgent if find_spec("llama_cpp") is None else LlamaAgent
    loading = engine.load(str(files("nearfar.device") / "models" / "near.gguf"))
    Handler.agent = asyncio.run_coroutine_threadsafe(loading, Handler.loop).result()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
