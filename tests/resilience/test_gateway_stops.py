"""A gateway process that is told to stop."""

import signal
from pathlib import Path

import anyio
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from http_server import Exchange, http_server
from real_gateway import real_gateway, said

from nearfar.protocols import Message, Sensitivity, StepReply, StepRequest, Unavailable, complete
from nearfar.protocols.client import RemoteAgent

pytestmark = pytest.mark.anyio
REQUEST = StepRequest(messages=(Message.user("go"),), sensitivity=Sensitivity.PUBLIC)


async def test_a_running_step_is_finished_and_a_new_one_refused(tmp_path: Path) -> None:
    asked, gate = anyio.Event(), anyio.Event()
    replies: list[StepReply] = []

    async def answer(exchange: Exchange) -> None:
        await exchange.open_stream()
        await exchange.send(said("first "))
        asked.set()
        await gate.wait()
        await exchange.send(said("last") + said("", finish="stop") + "data: [DONE]\n\n")
        await exchange.finish()

    async def ask(remote: RemoteAgent) -> None:
        replies.append(await complete(remote, REQUEST))

    with anyio.fail_after(60):
        async with http_server(answer) as provider, real_gateway(provider.base_url, tmp_path) as (address, process):
            remote = await RemoteAgent.connect(address)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, remote)
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
