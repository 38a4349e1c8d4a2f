"""An A2A server on loopback in front of a `Hybrid`, and the package's own client on each transport."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import anyio.lowlevel
import grpc
import httpx
from a2a.client import Client, ClientCallContext, ClientConfig, ClientFactory
from a2a.client.card_resolver import A2ACardResolver
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
)
from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct

from nearfar import Hybrid
from nearfar.orchestrator.a2a import A2aServer, serve_a2a
from nearfar.orchestrator.compose.hub import ServeConfig
from nearfar.protocols.address import Address

TRANSPORTS = ("GRPC", "JSONRPC", "HTTP+JSON")
TOKENS = {"ana": "a" * 32, "bob": "b" * 32}
LOOPBACK = Address(host="127.0.0.1", port=0)


@asynccontextmanager
async def served(hybrid: Hybrid, config: ServeConfig | None = None, **options: Any) -> AsyncIterator[A2aServer]:  # noqa: ANN401 - those of `serve_a2a`
    """Serve a `Hybrid` to the callers `ana` and `bob`."""
    given = {"address": LOOPBACK, "grpc_port": 0, "tokens": TOKENS, **options}
    async with serve_a2a(hybrid, config or ServeConfig(), **given) as server:
        yield server


class Caller:
    """A caller with a token, on one transport."""

    def __init__(self, client: Client, card: AgentCard, token: str) -> None:
        self.client = client
        self.card = card
        self.context = ClientCallContext(service_parameters={"authorization": f"Bearer {token}"}, timeout=30)

    async def stream(self, text: str = "Hello.", *, message: Message | None = None, wait: bool = True) -> AsyncIterator[StreamResponse]:
        """Send a message, and yield what comes back."""
        asked = SendMessageRequest(message=message or said(text), configuration=SendMessageConfiguration(return_immediately=not wait))
        async for response in self.client.send_message(asked, context=self.context):
            yield response

    async def send(self, text: str = "Hello.", *, message: Message | None = None, wait: bool = True) -> Task:
        """Send a message, and return the task as it is in the end."""
        asked = SendMessageRequest(message=message or said(text), configuration=SendMessageConfiguration(return_immediately=not wait))
        transport = self.client._transport  # type: ignore[attr-defined]  # the client would stream
        task: Task = (await transport.send_message(asked, context=self.context)).task
        return task

    async def get(self, task: str) -> Task:
        return await self.client.get_task(GetTaskRequest(id=task), context=self.context)

    async def list(self, **asked: Any) -> ListTasksResponse:  # noqa: ANN401 - the fields of a request
        return await self.client.list_tasks(ListTasksRequest(**asked), context=self.context)

    async def cancel(self, task: str) -> Task:
        return await self.client.cancel_task(CancelTaskRequest(id=task), context=self.context)

    async def extended_card(self) -> AgentCard:
        return await self.client.get_extended_agent_card(GetExtendedAgentCardRequest(), context=self.context)

    async def subscribe(self, task: str) -> AsyncGenerator[StreamResponse, None]:
        async for response in self.client.subscribe(SubscribeToTaskRequest(id=task), context=self.context):
            yield response


@asynccontextmanager
async def calling(server: A2aServer, transport: str, name: str = "ana") -> AsyncIterator[Caller]:
    """Connect as a caller."""
    async with httpx.AsyncClient(timeout=30) as http:
        card = await A2ACardResolver(http, server.url).get_agent_card()
        config = ClientConfig(httpx_client=http, grpc_channel_factory=grpc.aio.insecure_channel, supported_protocol_bindings=[transport])
        async with ClientFactory(config).create(card) as client:
            yield Caller(client, card, TOKENS[name])


@asynccontextmanager
async def both(server: A2aServer, transport: str) -> AsyncIterator[tuple[Caller, Caller]]:
    """Connect as two callers."""
    async with calling(server, transport, "ana") as ana, calling(server, transport, "bob") as bob:
        yield ana, bob


async def until(condition: Callable[[], bool]) -> None:
    """Let others work until the condition holds."""
    while not condition():
        await anyio.lowlevel.checkpoint()


def said(text: str, *, message: str = "", task: str = "", context: str = "") -> Message:
    """Return a user's message."""
    parts = [Part(text=text)]
    return Message(message_id=message or uuid4().hex, task_id=task, context_id=context, role=Role.ROLE_USER, parts=parts)


def answer(task: Task) -> str:
    """Return the text of all artifacts."""
    return "".join(part.text for artifact in task.artifacts for part in artifact.parts)


def facts(metadata: Struct) -> dict[str, Any]:
    """Return what an update tells under `nearfar`."""
    told: dict[str, Any] = MessageToDict(metadata).get("nearfar", {})
    return told
