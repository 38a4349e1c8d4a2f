"""A server that is told to stop finishes what it has begun, and begins nothing more."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from nearfar.protocols import Message, ScriptedAgent, StepReply, StepRequest, Unavailable, complete
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.server import Server, serve
from nearfar.protocols.testing import chaos_proxy, eventually

pytestmark = pytest.mark.anyio
REQUEST = StepRequest(messages=(Message.user("go"),))


class Begun:
    """A server with one step under way, which ends when the gate opens."""

    def __init__(self, server: Server, remote: RemoteAgent, gate: anyio.Event) -> None:
        self.server = server
        self.remote = remote
        self.gate = gate
        self.replies: list[StepReply] = []

    async def ask(self) -> None:
        self.replies.append(await complete(self.remote, REQUEST))


@asynccontextmanager
async def begun() -> AsyncIterator[Begun]:
    gate = anyio.Event()
    with anyio.fail_after(30):
        async with serve(ScriptedAgent(lambda _: ["first ", gate, "last"])) as server:
            remote = await RemoteAgent.connect(server.address)
            yield Begun(server, remote, gate)
            await remote.aclose()


async def test_running_steps_finish_and_new_ones_are_refused_with_a_time_to_come_back() -> None:
    async with begun() as under_way, anyio.create_task_group() as tasks:
        tasks.start_soon(under_way.ask)
        await eventually(lambda: under_way.server.live_steps == 1)
        drained: list[bool] = []
        tasks.start_soon(_drain, under_way.server, drained)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(Unavailable, match="shutting down") as caught:
            await complete(under_way.remote, REQUEST.model_copy(update={"idempotency_key": "another"}))
        assert caught.value.retry_after == 1
        assert drained == []
        under_way.gate.set()
        await eventually(lambda: drained == [True])
    assert [reply.text for reply in under_way.replies] == ["first last"]


async def test_a_reader_whose_connection_breaks_may_still_resume() -> None:
    gate = anyio.Event()
    with anyio.fail_after(30):
        async with serve(ScriptedAgent(lambda _: ["first ", gate, "last"])) as server, chaos_proxy(server.address) as proxy:
            under_way = Begun(server, await RemoteAgent.connect(proxy.address), gate)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(under_way.ask)
                await eventually(lambda: server.live_steps == 1)
                tasks.start_soon(_drain, server, [])
                await anyio.wait_all_tasks_blocked()
                proxy.reset()
                await eventually(lambda: proxy.connections == 2)
                gate.set()
            await under_way.remote.aclose()
    assert [reply.text for reply in under_way.replies] == ["first last"]


async def test_steps_that_do_not_finish_in_time_are_left_to_the_shutdown() -> None:
    async with begun() as under_way, anyio.create_task_group() as tasks:
        tasks.start_soon(under_way.ask)
        await eventually(lambda: under_way.server.live_steps == 1)
        assert not await under_way.server.drain(0.01)
        under_way.gate.set()


async def test_health_says_not_serving_from_the_beginning_of_the_drain() -> None:
    async with begun() as under_way:
        assert await under_way.server.drain(1.0)
        async with grpc.aio.insecure_channel(under_way.server.address) as channel:
            reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="nearfar.v1.AgentService"))
    assert reply.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def _drain(server: Server, drained: list[bool]) -> None:
    drained.append(await server.drain(20))
