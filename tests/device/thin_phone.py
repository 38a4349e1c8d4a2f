"""A phone as the tests have it: llama-server's HTTP interface in front of any agent, real llama.cpp included.

The shapes are those of llama.cpp's own server, build 0c1e570: what it answers was recorded from it.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from http_server import Exchange, http_server, sse

from nearfar.device import thin_worker as attachment
from nearfar.device.thin.llama_server import LlamaServer
from nearfar.protocols import (
    Agent,
    AgentCard,
    ContextOverflow,
    Finished,
    Message,
    NearfarError,
    Side,
    StepEvent,
    StepRequest,
    TextDelta,
    ToolCall,
    ToolResult,
    stream,
)
from nearfar.protocols.address import Pairing
from nearfar.protocols.errors import MAPPINGS, travelling_class
from nearfar.protocols.hub import AttachedAgent, Hub, WorkerTerms, serve_hub
from nearfar.protocols.tls import ClientTls
from nearfar.protocols.v1 import hub_pb2

JsonObject = dict[str, Any]
NAME, TOKEN = "phone", "7d" * 32
LOGPROB = -0.05
"""Of every token: the agents behind the server tell no single ones."""


class LlamaHttp:
    """Answers as llama-server does. `agent` computes; what the server itself would decide can be set."""

    def __init__(self, agent: Agent, *, slots: int = 2, takes_tools: bool = True) -> None:
        self.agent = agent
        self.slots = slots
        self.takes_tools = takes_tools
        self.is_loading = False
        self.keeps_to_parameters = True
        """Whether tools' parameters bind the model; llama-server's grammars leave some of JSON Schema out."""
        self.url = ""
        self.bodies: list[JsonObject] = []
        """Of every chat, in order."""
        self.abandoned = 0
        """Chats whose client left before the end."""

    async def answer(self, exchange: Exchange) -> None:
        if self.is_loading:
            await _refuse(exchange, 503, "unavailable_error", "Loading model")
            return
        replies = {"/health": {"status": "ok"}, "/props": self._properties(), "/v1/models": self._models()}
        if exchange.path in replies:
            await exchange.respond(200, json.dumps(replies[exchange.path]))
        elif exchange.path == "/apply-template" and self.takes_tools:
            await exchange.respond(200, json.dumps({"prompt": "..."}))
        elif exchange.path == "/v1/chat/completions":
            await self._chat(exchange)
        else:
            await _refuse(exchange, 404, "not_found_error", "File Not Found")

    async def _chat(self, exchange: Exchange) -> None:
        self.bodies.append(exchange.body)
        answering = asyncio.ensure_future(self._complete(exchange))
        leaving = asyncio.ensure_future(exchange.until_client_leaves())
        await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        is_told = answering.done() and not isinstance(answering.exception(), ConnectionError)  # a closed socket may show first in a write
        self.abandoned += not is_told
        for task in (answering, leaving):
            task.cancel()
        await asyncio.gather(answering, leaving, return_exceptions=True)

    async def _complete(self, exchange: Exchange) -> None:
        async with aclosing(self._chunks(exchange.body)) as chunks:
            try:
                first = await anext(chunks)
            except NearfarError as error:
                await _refuse_for(exchange, error)
                return
            if not exchange.body["stream"]:
                await exchange.respond(200, json.dumps(_whole([first] + [chunk async for chunk in chunks])))
                return
            await exchange.open_stream()
            await exchange.send(sse(first))
            async for chunk in chunks:
                await exchange.send(sse(chunk))
        await exchange.send(sse("[DONE]"))
        await exchange.finish()

    async def _chunks(self, body: JsonObject) -> AsyncGenerator[JsonObject, None]:
        calls = 0
        request = _request(body if self.keeps_to_parameters else _without_parameters(body))
        async with stream(self.agent, request) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    yield _chunk({"content": event.text}, logprobs=[{"token": event.text, "logprob": LOGPROB}])
                elif isinstance(event, Finished):
                    yield _chunk({}, reason=event.reason.value)
                    yield _closing(event, self.agent.card.model)
                else:
                    function = {"name": event.call.name, "arguments": json.dumps(event.call.arguments)}
                    piece = {"index": calls, "id": event.call.id, "type": "function", "function": function}
                    calls += 1
                    yield _chunk({"tool_calls": [piece]}, logprobs=[{"token": "", "logprob": LOGPROB}])

    def _properties(self) -> JsonObject:
        context = self.agent.card.limits.context_tokens or 4096
        return {"default_generation_settings": {"n_ctx": context}, "total_slots": self.slots, "model_alias": self.agent.card.model}

    def _models(self) -> JsonObject:
        return {"object": "list", "data": [{"id": self.agent.card.model, "meta": {"n_params": 1_377_408}}]}


@asynccontextmanager
async def llama_http(agent: Agent, *, slots: int = 2, takes_tools: bool = True) -> AsyncIterator[LlamaHttp]:
    """`agent` behind llama-server's interface on a free loopback port."""
    served = LlamaHttp(agent, slots=slots, takes_tools=takes_tools)
    async with http_server(served.answer) as server:
        served.url = server.base_url.removesuffix("/v1")
        yield served


def _request(body: JsonObject) -> StepRequest:
    """What a chat asks for, as a step."""
    schema = body.get("response_format", {}).get("json_schema", {}).get("schema")
    return StepRequest.model_validate(
        {
            "messages": [_message(message, body["messages"]) for message in body["messages"]],
            "tools": [tool["function"] for tool in body.get("tools", ())],
            "tool_choice": body.get("tool_choice", "auto"),
            "output_schema": schema,
            "max_output_tokens": body["max_tokens"],
            "temperature": body["temperature"],
            "seed": body.get("seed"),
            "stop": body.get("stop", ()),
        }
    )


def _without_parameters(body: JsonObject) -> JsonObject:
    functions = ({**tool["function"], "parameters": {"type": "object"}} for tool in body.get("tools", ()))
    return {**body, "tools": [{"function": function} for function in functions]}


def _message(message: JsonObject, conversation: list[JsonObject]) -> Message:
    if message["role"] == "tool":
        calls = [call for earlier in conversation for call in earlier.get("tool_calls", ())]
        name = next(call["function"]["name"] for call in calls if call["id"] == message["tool_call_id"])
        return Message.tool(ToolResult(call_id=message["tool_call_id"], name=name, content=message["content"]))
    calls = [
        ToolCall(id=call["id"], name=call["function"]["name"], arguments=json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls", ())
    ]
    return Message.model_validate({"role": message["role"], "text": message["content"] or "", "tool_calls": calls})


def _chunk(delta: JsonObject, *, reason: str | None = None, logprobs: list[JsonObject] | None = None) -> JsonObject:
    choice: JsonObject = {"index": 0, "delta": delta, "finish_reason": reason}
    if logprobs is not None:
        choice["logprobs"] = {"content": logprobs}
    return {"object": "chat.completion.chunk", "model": "near", "choices": [choice]}


def _closing(finished: Finished, model: str) -> JsonObject:
    usage = finished.usage
    counts = {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens}
    details = {"prompt_tokens_details": {"cached_tokens": usage.cached_tokens}}
    timings = {"prompt_per_second": 800.0, "predicted_per_second": 20.0}
    return {"model": model, "choices": [], "usage": counts | details, "timings": timings}


def _whole(chunks: list[JsonObject]) -> JsonObject:
    """What llama-server answers where no stream is asked for."""
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    deltas = [choice["delta"] for choice in choices]
    message = {
        "role": "assistant",
        "content": "".join(delta.get("content", "") for delta in deltas),
        "tool_calls": [{**call, "index": None} for delta in deltas for call in delta.get("tool_calls", ())],
    }
    logprobs = [token for choice in choices for token in choice.get("logprobs", {}).get("content", ())]
    whole = {"finish_reason": choices[-1]["finish_reason"], "index": 0, "message": message, "logprobs": {"content": logprobs}}
    return {**chunks[-1], "choices": [whole]}


async def _refuse_for(exchange: Exchange, error: NearfarError) -> None:
    kind = "exceed_context_size_error" if isinstance(error, ContextOverflow) else "invalid_request_error"
    status = MAPPINGS[travelling_class(error)].http_status
    await _refuse(exchange, 400 if status in (413, 501) else status, kind, error.message)


async def _refuse(exchange: Exchange, status: int, kind: str, message: str) -> None:
    await exchange.respond(status, json.dumps({"error": {"code": status, "message": message, "type": kind}}))


@dataclass(frozen=True, kw_only=True)
class Lent:
    """A llama-server that a thin worker lends to a hub, which takes it for the user's own device."""

    hub: Hub
    address: str
    """The hub's."""
    agent: AttachedAgent
    """The phone's model as the hub's side sees it."""
    running: "asyncio.Task[None]"
    stopping: asyncio.Event


@asynccontextmanager
async def lent(url: str) -> AsyncIterator[Lent]:
    """Hub and worker in this process, on two ends of a socket."""
    hub, stopping = Hub({NAME: TOKEN}, policies={NAME: WorkerTerms(side=Side.NEAR)}), asyncio.Event()
    async with serve_hub(hub) as address:
        running = asyncio.create_task(attachment.serve(thin_worker(url, address), stopping))
        try:
            yield Lent(hub=hub, address=address, agent=await hub.wait_for(NAME), running=running, stopping=stopping)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def lent_phone(agent: Agent) -> AsyncIterator[tuple[Lent, LlamaHttp]]:
    """`agent` behind llama-server's interface, lent to a hub."""
    async with llama_http(agent) as http, lent(http.url) as phone:
        yield phone, http


def thin_worker(
    url: str, address: str, *, fingerprint: str | None = None, look_every: float = 20.0, own: ClientTls | None = None
) -> attachment.ThinWorker:
    """A worker for the llama-server at `url`, on a device whose battery is half full."""
    return attachment.ThinWorker(
        server=LlamaServer(url),
        hub=Pairing(address=address, token=TOKEN, fingerprint=fingerprint),
        name=NAME,
        read_state=lambda: hub_pb2.DeviceState(battery=0.5, power_source=hub_pb2.POWER_SOURCE_BATTERY),
        look_every=look_every,
        own=own,
    )


class PhoneAgent:
    """A lent llama-server as an agent that closes all that was opened for it."""

    def __init__(self, lent: AttachedAgent, opened: AsyncExitStack) -> None:
        self._lent = lent
        self._opened = opened

    @property
    def card(self) -> AgentCard:
        return self._lent.card

    def step(self, request: StepRequest) -> AsyncIterator[StepEvent]:
        return self._lent.step(request)

    async def aclose(self) -> None:
        await self._lent.aclose()
        await self._opened.aclose()
