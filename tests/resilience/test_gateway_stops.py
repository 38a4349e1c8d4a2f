"""A gateway process that is told to stop."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

import anyio
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from http_server import Exchange, http_server, sse

from nearfar.protocols import Message, Sensitivity, StepReply, StepRequest, Unavailable, complete
from nearfar.protocols.client import RemoteAgent

pytestmark = pytest.mark.anyio
REQUEST = StepRequest(messages=(Message.user("go"),), sensitivity=Sensitivity.PUBLIC)


def chunk(text: str) -> dict[str, object]:
    return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}


async def test_a_running_step_is_finished_and_a_new_one_refused(tmp_path: Path) -> None:
    asked, gate = anyio.Event(), anyio.Event()

    async def answer(exchange: Exchange) -> None:
        await exchange.open_stream()
        await exchange.send(sse(chunk("first ")))
        asked.set()
        await gate.wait()
        await exchange.send(sse(chunk("last"), {**chunk(""), "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, "[DONE]"))
        await exchange.finish()

    replies: list[StepReply] = []
    async with http_server(answer) as provider:
        config = tmp_path / "nearfar.toml"
        config.write_text(f'[far]\nprovider = "openai"\nmodel = "m"\nbase_url = "{provider.base_url}"\n', encoding="utf-8")
        command = ("-m", "nearfar.orchestrator.cli", "serve", "gateway", "--config", str(config), "--address", "127.0.0.1:0", "--json")
        with anyio.fail_after(60):
            process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=PIPE, stderr=DEVNULL)
            assert process.stdout is not None
            address = json.loads(await process.stdout.readline())["address"]
            remote = await RemoteAgent.connect(address)

            async def ask() -> None:
                replies.append(await complete(remote, REQUEST))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                await asked.wait()
                process.send_signal(signal.SIGTERM)
                await _until_not_serving(address)
                with pytest.raises(Unavailable, match="shutting down"):
                    await complete(remote, REQUEST.model_copy(update={"idempotency_key": "new"}))
                gate.set()
            await remote.aclose()
            assert await process.wait() == 0
    assert [reply.text for reply in replies] == ["first last"]
    assert len(provider.exchanges) == 1


async def _until_not_serving(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        watching = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="nearfar.v1.AgentService"))
        async for reply in watching:
            if reply.status == health_pb2.HealthCheckResponse.NOT_SERVING:
                break
        watching.cancel()
