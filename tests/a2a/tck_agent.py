"""The agent that the A2A project's compatibility kit (TCK) is run against: a real server and `Hybrid` with a scripted model.

    python tests/a2a/tck_agent.py PORT GRPC_PORT FOLDER

The kit tells by the beginning of a message's id what the agent has to do, and sends the same id again and again for new tasks. So this
agent, unlike Nearfar, begins a task for each message. Files, JSON and bare messages as answers, which no model of Nearfar's gives, are
made of what the scripted model says.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from uuid import uuid4

import anyio.lowlevel
from a2a.server.context import ServerCallContext
from a2a.types import Artifact, Message, SendMessageRequest, Task
from google.protobuf.json_format import Parse

from nearfar import Hybrid, ScriptedAgent, ToolCall, tool
from nearfar.orchestrator import a2a
from nearfar.orchestrator.a2a import records
from nearfar.orchestrator.a2a.tasks import A2aTasks
from nearfar.orchestrator.compose.hub import ServeConfig
from nearfar.orchestrator.task.results import Result
from nearfar.protocols.address import Address
from nearfar.protocols.steps import StepRequest

_FILE = '{"filename": "output.txt", "mediaType": "text/plain", '
_ANSWERS = {
    "tck-artifact-text": '{"text": "Generated text content"}',
    "tck-artifact-file-url": _FILE + '"url": "https://example.com/output.txt"}',
    "tck-artifact-file": _FILE + '"raw": "dGNr"}',
    "tck-artifact-data": '{"data": {"key": "value", "count": 42}}',
    "tck-message-response": '{"text": "Direct message response"}',
    "tck-stream-001": '{"text": "Stream hello from TCK"}',
    "tck-stream-003": '{"text": "Stream task lifecycle"}',
    "tck-stream-ordering-001": '{"text": "Ordered output"}',
    "tck-stream-artifact-text": '{"text": "Streamed text content"}',
    "tck-stream-artifact-file": _FILE + '"raw": "dGNr"}',
    "tck-stream-artifact-chunked": '{"text": "chunk-1 "}, {"text": "chunk-2"}',
}
_SLOW = "test-resubscribe-message-id"
_SLOW_SECONDS = 4.0
"""Twice the kit's timeout of streams."""


@tool(approval=True)
def proceed() -> str:
    """Proceed."""
    return "done"


async def _pause() -> None:
    await anyio.lowlevel.checkpoint()


def _reply(request: StepRequest) -> str | ToolCall:
    prompt = request.messages[-1].text if request.messages[-1].role == "user" else ""
    if "tck-input-required" in prompt:
        return ToolCall(id=uuid4().hex, name="proceed", arguments={})
    return next((parts for prefix, parts in _ANSWERS.items() if prompt.startswith(prefix)), '{"text": "Hello from TCK"}')


class SlowAgent(ScriptedAgent):
    """Takes its time where the kit asks for it."""

    async def step(self, request: StepRequest) -> AsyncGenerator:  # type: ignore[type-arg]  # as the fake has it
        if _SLOW in request.messages[-1].text:
            await anyio.sleep(_SLOW_SECONDS)
        async for event in super().step(request):
            yield event


class TckTasks(A2aTasks):
    """Shows the model the ids of messages, and begins a task for each."""

    def run_of(self, message: Message, caller: str) -> str:
        return f"{records.PREFIX}{uuid4().hex}"

    def prompt_of(self, message: Message) -> str:
        return f"{message.message_id}: {super().prompt_of(message)}"

    def decision_of(self, message: Message) -> bool | None:
        return True if message.message_id.startswith("tck-complete-task") else None


class TckHandler(a2a.A2aHandler):
    """Answers with a bare message where the kit asks for one."""

    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task | Message:
        is_bare = params.message.message_id.startswith("tck-message-response")
        answered = await super().on_message_send(params, context)
        if not is_bare or isinstance(answered, Message):
            return answered
        return Message(message_id=uuid4().hex, context_id=answered.context_id, role="ROLE_AGENT", parts=answered.artifacts[0].parts)


def _artifact(result: Result) -> Artifact:
    """Return the artifact whose parts the model has written as JSON."""
    made = Parse(f'{{"artifactId": "{records.ANSWER}", "parts": [{result.text}]}}', Artifact())
    assert isinstance(made, Artifact)
    return made


async def main(port: int, grpc_port: int, folder: Path) -> None:
    """Serve until the process is ended."""
    records.answer_of = _artifact
    a2a.A2aHandler = TckHandler  # type: ignore[misc]
    agent = SlowAgent(_reply, pace=_pause)
    serving = {"address": Address(host="127.0.0.1", port=port), "grpc_port": grpc_port, "insecure": True, "tasks": TckTasks}
    async with Hybrid(near=agent, tools=[proceed], records=folder) as hybrid, a2a.serve_a2a(hybrid, ServeConfig(), **serving) as running:  # type: ignore[arg-type]
        print(running.url, flush=True)  # noqa: T201 - for the test that waits for it
        await anyio.sleep_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
