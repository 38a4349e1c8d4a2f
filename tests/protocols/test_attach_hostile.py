"""Whatever a hub sends, its worker runs each step at most once and is never kept busy by heartbeats."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import anyio
import grpc
import pytest
from attached_world import ask, running

from nearfar.protocols import ScriptedAgent, StepEvent, StepRequest, TextDelta, attach
from nearfar.protocols.access import Access, Context
from nearfar.protocols.hub import SERVICE
from nearfar.protocols.server import listening
from nearfar.protocols.testing import eventually
from nearfar.protocols.v1 import hub_pb2 as pb
from nearfar.protocols.wire import request_to_proto

pytestmark = pytest.mark.anyio


def start(step: int) -> pb.HubMessage:
    return pb.HubMessage(start=pb.StartStep(step=step, agent="scripted", idempotency_key="key", request=request_to_proto(ask())))


def registered(interval: float = 0.1, silence_limit: float = 30.0) -> pb.HubMessage:
    return pb.HubMessage(registered=pb.Registered(worker="phone", heartbeat_interval=interval, silence_limit=silence_limit))


@asynccontextmanager
async def hub_that_says(*messages: pb.HubMessage | anyio.Event) -> AsyncIterator[tuple[str, list[pb.WorkerMessage]]]:
    """Its address, and what its worker has sent. At an event it waits before it goes on."""
    heard: list[pb.WorkerMessage] = []

    async def attach(_: object, context: Context) -> None:
        for message in messages:
            await (message.wait() if isinstance(message, anyio.Event) else context.write(message))
        while isinstance(said := await context.read(), pb.WorkerMessage):
            heard.append(said)

    async def close() -> None:
        """There is nothing to end."""

    handler = grpc.stream_stream_rpc_method_handler(attach, pb.WorkerMessage.FromString, pb.HubMessage.SerializeToString)
    services = {SERVICE: grpc.method_handlers_generic_handler(SERVICE, {"Attach": handler})}
    serving = listening(services, "localhost:0", access=Access(None), tls=None, insecure=False, closing=close, time_limit=1.0)
    async with serving as address:
        yield str(address), heard


@pytest.mark.parametrize(("interval", "silence_limit"), [(5.0, 1.0), (1e-300, 1e300), (0.0, 1.0), (1.0, float("inf")), (float("nan"), 1.0)])
async def test_impossible_heartbeats_are_refused(interval: float, silence_limit: float, caplog: pytest.LogCaptureFixture) -> None:
    with anyio.fail_after(20):
        async with hub_that_says(registered(interval, silence_limit)) as (address, _), running(ScriptedAgent(["x"]), address) as state:
            await eventually(lambda: "impossible heartbeats" in caplog.text)
            assert not state.worker.attached.is_set()
            assert not state.done.is_set()


async def test_step_that_is_given_twice_runs_once() -> None:
    gate = anyio.Event()
    agent = ScriptedAgent(lambda _: [gate, "once"])
    with anyio.fail_after(20):
        async with (
            hub_that_says(registered(), start(1), start(1)) as (address, heard),
            running(agent, address) as state,
        ):
            await eventually(lambda: len(agent.requests) >= 1 and sum(message.HasField("heartbeat") for message in heard) >= 2)
            assert state.worker.live_steps == 1
            gate.set()
            await eventually(lambda: state.worker.live_steps == 0)
            await eventually(
                lambda: heard[-1].HasField("heartbeat") and any(message.output.event.HasField("finished") for message in heard)
            )
    assert len(agent.requests) == 1
    assert sum(message.output.event.HasField("finished") for message in heard) == 1


async def test_step_that_comes_while_the_worker_gives_its_hub_up_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "_STOP_LIMIT", 0.5)
    begun, stopping, stop = [0], anyio.Event(), anyio.Event()

    class Stubborn(ScriptedAgent):
        async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
            begun[0] += 1
            try:
                yield TextDelta(text="first")
                await anyio.sleep_forever()
            finally:
                stopping.set()
                with anyio.CancelScope(shield=True):
                    await stop.wait()

    silent = registered(interval=0.1, silence_limit=0.2)
    with anyio.fail_after(20):
        async with hub_that_says(silent, start(1), stopping, start(2)) as (address, _), running(Stubborn([]), address) as state:
            await state.worker.attached.wait()
            await eventually(lambda: not state.worker.attached.is_set())
            stop.set()
    assert begun == [1]
