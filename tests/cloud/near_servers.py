"""Servers that behave as the documentation of Ollama, LM Studio, llama-server and vLLM says, and servers that only pretend to."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from http_server import Exchange, Server, http_server, sse

ORDER = "Call the tool"
"""Words of a prompt upon which a model calls a tool by itself."""
MORE = "Tell me more"
"""Words of a prompt with a long answer."""
_LONGEST = 20_000
"""Characters of a conversation that a server takes."""


@dataclass
class FakeServer:
    """One server. The defaults are those of a server that does everything."""

    program: str = "vllm"
    models: Sequence[str] = ("tiny",)
    calls_tools: bool = True
    """Calls a tool where the prompt asks for it."""
    takes_tool_choice: bool = True
    schema_form: str | None = "json_schema"
    """The `response_format` that it enforces; others are ignored, or refused by a server that takes one only."""
    refuses_other_formats: bool = False
    logprobs: bool = True
    refuses_logprobs_with_tools: bool = False
    sees: bool = False
    """Its models read images, and it says so."""
    remote: dict[str, str] = field(default_factory=dict)
    """Hosts of models that it forwards, by name."""
    words: Sequence[str] = ("It ", "is ", "fine.")
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of the chat requests."""
    asked: list[str] = field(default_factory=list)
    """Paths of all requests."""

    async def answer(self, exchange: Exchange) -> None:
        self.asked.append(exchange.path)
        if exchange.path == "/v1/chat/completions":
            self.bodies.append(exchange.body)
            await self._chat(exchange)
            return
        page = self._page(exchange)
        status = 200 if page is not None else 404
        await exchange.respond(status, json.dumps(page if page is not None else {"error": {"message": "not found"}}))

    def _page(self, exchange: Exchange) -> object | None:
        if exchange.path == "/v1/models":
            return {"object": "list", "data": [self._listed(name) for name in self.models]}
        native = {"ollama": self._ollama, "lmstudio": self._lm_studio, "llama-server": self._llama_server}.get(self.program)
        return None if native is None else native(exchange)

    def _listed(self, name: str) -> dict[str, Any]:
        owner = {"vllm": "vllm", "llama-server": "llamacpp", "ollama": "library"}.get(self.program, "me")
        return {"id": name, "object": "model", "owned_by": owner, **({"max_model_len": 4096} if self.program == "vllm" else {})}

    def _ollama(self, exchange: Exchange) -> object | None:
        if exchange.path == "/api/version":
            return {"version": "0.32.15"}
        if exchange.path == "/api/tags":
            hosts = {name: {"remote_host": host, "remote_model": name} for name, host in self.remote.items()}
            family = {name: "nomic-bert" if "embed" in name else "qwen3" for name in self.models}
            return {"models": [{"name": name, "details": {"family": family[name]}, **hosts.get(name, {})} for name in self.models]}
        if exchange.path == "/api/ps":
            return {"models": [{"name": name, "context_length": 4096} for name in self.models if name not in self.remote]}
        if exchange.path == "/api/show":
            host = self.remote.get(exchange.body["model"])
            able = ["completion", *(["tools"] if self.calls_tools else []), *(["vision"] if self.sees else [])]
            return {"capabilities": able, "model_info": {"qwen3.context_length": 40960}, **({"remote_host": host} if host else {})}
        return None

    def _lm_studio(self, exchange: Exchange) -> object | None:
        if exchange.path != "/api/v0/models":
            return {"error": f"Unexpected endpoint or method. (GET {exchange.path})"}  # with status 200, as LM Studio does
        kinds = {name: "embeddings" if "embed" in name else "vlm" if self.sees else "llm" for name in self.models}
        used = any(self.bodies)
        loaded = {"state": "loaded", "loaded_context_length": 2048} if used else {"state": "not-loaded"}
        return {"data": [{"id": name, "type": kinds[name], "max_context_length": 32768, **loaded} for name in self.models]}

    def _llama_server(self, exchange: Exchange) -> object | None:
        if exchange.path != "/props":
            return None
        return {
            "default_generation_settings": {"n_ctx": 1024},
            "total_slots": 2,
            "model_alias": self.models[0],
            "modalities": {"vision": self.sees},
        }

    async def _chat(self, exchange: Exchange) -> None:
        body = exchange.body
        tools, form = body.get("tools"), body.get("response_format") or {}
        if body["model"] not in self.models:
            await exchange.respond(404, json.dumps({"error": {"message": "model not found", "code": "model_not_found"}}))
        elif tools and body.get("logprobs") and self.refuses_logprobs_with_tools:
            await exchange.respond(400, json.dumps({"error": {"message": "logprobs is not supported with tools + stream"}}))
        elif len(str(body["messages"])) > _LONGEST:
            await exchange.respond(400, json.dumps({"error": {"message": "This model's maximum context length is 4096 tokens."}}))
        elif form and form["type"] != self.schema_form and self.refuses_other_formats:
            await exchange.respond(500, json.dumps({"error": {"message": "Input should be 'text' or 'json_object'"}}))
        elif tools and self._calls(body):
            await self._stream(exchange, [self._call(tools[0]["function"])], "tool_calls")
        else:
            words = [json.dumps(instance(_schema(form)))] if form and form["type"] == self.schema_form else self.words
            words = ["on "] * 2000 if MORE in str(body["messages"][-1]["content"]) else words
            await self._stream(exchange, [{"content": word} for word in words], "stop")

    def _calls(self, body: dict[str, Any]) -> bool:
        choice = body.get("tool_choice")
        if choice in ("required", "none") and self.takes_tool_choice:
            return bool(choice == "required")
        return self.calls_tools and ORDER in str(body["messages"][-1]["content"])

    def _call(self, function: dict[str, Any]) -> dict[str, Any]:
        arguments = json.dumps(instance(function["parameters"]))
        return {
            "tool_calls": [{"index": 0, "id": "call_0", "type": "function", "function": {"name": function["name"], "arguments": arguments}}]
        }

    async def _stream(self, exchange: Exchange, deltas: Sequence[dict[str, Any]], reason: str) -> None:
        limit = exchange.body.get("max_tokens")
        cut = list(deltas)[:limit]
        ending = "length" if len(cut) < len(deltas) else reason
        tells = self.logprobs and exchange.body.get("logprobs")
        read = 10 * len(exchange.body["messages"]) + sum(len(str(message.get("content"))) for message in exchange.body["messages"])
        usage = {"prompt_tokens": read, "completion_tokens": len(cut)}
        told = [{"content": [{"token": delta.get("content"), "logprob": -0.1}]} if tells else None for delta in cut]
        choices = [{"index": 0, "delta": delta, "logprobs": logprobs} for delta, logprobs in zip(cut, told, strict=True)]
        chunks = [{"model": exchange.body["model"], "choices": [choice]} for choice in choices]
        await exchange.open_stream()
        for chunk in chunks:
            await exchange.send(sse(chunk))
        await exchange.send(
            sse({"choices": [{"index": 0, "delta": {}, "finish_reason": ending}]}, {"choices": [], "usage": usage}, "[DONE]")
        )
        await exchange.finish()


def _schema(form: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = form["json_schema"]["schema"] if form["type"] == "json_schema" else form["schema"]
    return found


def instance(schema: dict[str, Any]) -> object:
    """Return a value that is valid against a simple schema."""
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "object":
        return {name: instance(part) for name, part in schema.get("properties", {}).items()}
    return {"integer": 7, "number": 0.5, "boolean": True, "array": []}.get(str(schema.get("type")), "x")


@asynccontextmanager
async def running(server: FakeServer) -> AsyncIterator[Server]:
    """Serve on a free port of this machine."""
    async with http_server(server.answer) as seen:
        yield seen
