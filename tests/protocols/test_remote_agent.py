"""RemoteAgent in trouble: servers that are down, silent, killed or foreign, and readers that leave."""

import asyncio
import gc
import logging
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable

import anyio
import grpc
import pytest

from nearfar.protocols import (
    ConfigError,
    DeadlineExceeded,
    Finished,
    FinishReason,
    InternalError,
    InvalidOutput,
    InvalidRequest,
    Limits,
    Message,
    NotFound,
    PrivacyViolation,
    RateLimited,
    ScriptedAgent,
    Sensitivity,
    Side,
    Stalled,
    StepEvent,
    StepRequest,
    TextDelta,
    Unauthenticated,
    Unavailable,
    Unsupported,
    Usage,
    client,
    complete,
    stream,
)
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.server import Retention, Server, serve
from nearfar.protocols.testing import chaos_proxy, eventually
from nearfar.protocols.v1 import agent_pb2 as pb
from nearfar.protocols.v1.agent_pb2_grpc import AgentServiceStub
from nearfar.protocols.wire import request_to_proto

pytestmark = pytest.mark.anyio

SERVER = """
import asyncio, sys
from nearfar.protocols import ScriptedAgent
from nearfar.protocols.server import serve

async def main():
    async with serve(ScriptedAgent(lambda request: ["tick "] * 1000, pace=0.01)) as server:
        print(server.address, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


def ask(text: str = "go", **fields: object) -> StepRequest:
    return StepRequest.model_validate({"messages": (Message.user(text),), **fields})


async def test_server_that_is_down_is_unavailable_at_once() -> None:
    with anyio.fail_after(30):
        async with serve(ScriptedAgent([])) as server:
            address = server.address
        with pytest.raises(Unavailable, match="check that the server runs"):
            await RemoteAgent.connect(address, resume_timeout=1000)


async def test_server_that_went_down_between_steps_is_unavailable_at_once() -> None:
    with anyio.fail_after(30):
        async with serve(ScriptedAgent(["one"])) as server, chaos_proxy(server.address) as proxy:
            remote = await RemoteAgent.connect(proxy.address, resume_timeout=1000)
            assert (await complete(remote, ask())).text == "one"
            await proxy.refuse()
            proxy.reset()
            with pytest.raises(Unavailable):
                await complete(remote, ask())
            await remote.aclose()


async def test_server_killed_in_mid_stream_is_unavailable() -> None:
    with anyio.fail_after(60):
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVER, stdin=pipe, stdout=pipe)
        assert process.stdout is not None
        remote = await RemoteAgent.connect((await process.stdout.readline()).decode().strip(), resume_timeout=0.3)
        with pytest.raises(Unavailable, match="broke after"):
            await kill_after_first_event(remote, process)
        await process.wait()
        await remote.aclose()


async def kill_after_first_event(remote: RemoteAgent, process: asyncio.subprocess.Process) -> None:
    async with stream(remote, ask()) as events:
        async for _ in events:
            if process.returncode is None:
                process.kill()


async def test_silent_stream_is_stalled_and_its_step_stopped() -> None:
    agent = ScriptedAgent([["a", anyio.Event()]])
    with anyio.fail_after(30):
        async with serve(agent) as server:
            remote = await RemoteAgent.connect(server.address, idle_timeout=0.2)
            with pytest.raises(Stalled):
                await complete(remote, ask())
            await eventually(lambda: server.live_calls == server.live_steps == agent.live_steps == 0)
            await remote.aclose()


async def test_reader_that_takes_its_time_does_not_stall_the_stream() -> None:
    agent = ScriptedAgent([["a", "b"]])
    with anyio.fail_after(30):
        async with serve(agent) as server:
            remote = await RemoteAgent.connect(server.address, idle_timeout=0.2)
            texts = []
            async with stream(remote, ask()) as events:
                async for event in events:
                    if isinstance(event, TextDelta):
                        texts.append(event.text)
                        with anyio.move_on_after(0.5):
                            await anyio.Event().wait()
            assert texts == ["a", "b"]
            await remote.aclose()


async def test_many_events_of_a_finished_server_all_arrive_at_a_slow_reader() -> None:
    agent = ScriptedAgent(lambda request: ["x"] * 3000)
    with anyio.fail_after(60):
        async with serve(agent) as server:
            remote = await RemoteAgent.connect(server.address)
            count = 0
            async with stream(remote, ask()) as events:
                await anext(aiter(events))
                await eventually(lambda: server.live_steps == 0)
                async for _ in events:
                    count += 1
            assert count == 3000
            await remote.aclose()


async def leave_by_break(remote: RemoteAgent) -> None:
    async for _ in remote.step(ask()):
        break


async def leave_by_close(remote: RemoteAgent) -> None:
    async with stream(remote, ask()) as events:
        await anext(aiter(events))


async def leave_by_cancellation(remote: RemoteAgent) -> None:
    with anyio.CancelScope() as scope:
        async for _ in remote.step(ask()):
            scope.cancel()


async def leave_by_task_cancellation(remote: RemoteAgent) -> None:
    started = asyncio.Event()

    async def read() -> None:
        async for _ in remote.step(ask()):
            started.set()

    task = asyncio.create_task(read())
    await started.wait()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


async def leave_by_error(remote: RemoteAgent) -> None:
    async def read() -> None:
        async for _ in remote.step(ask()):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await read()


async def leave_in_a_reference_cycle(remote: RemoteAgent) -> None:
    events = remote.step(ask())
    cycle: list[object] = [events]
    cycle.append(cycle)
    await anext(events)
    del events, cycle
    gc.collect()


WAYS_TO_LEAVE = [
    leave_by_break,
    leave_by_close,
    leave_by_cancellation,
    leave_by_task_cancellation,
    leave_by_error,
    leave_in_a_reference_cycle,
]


@pytest.mark.parametrize("leave", WAYS_TO_LEAVE, ids=lambda leave: leave.__name__)
async def test_leaving_early_stops_handler_and_compute(leave: Callable[[RemoteAgent], Awaitable[None]]) -> None:
    agent = ScriptedAgent(lambda request: ["first", anyio.Event()])
    with anyio.fail_after(90):
        async with serve(agent, retention=Retention(resume_grace=1000)) as server:  # so that only a Cancel can stop the compute
            remote = await RemoteAgent.connect(server.address)
            for _ in range(10):
                await leave(remote)
            await eventually(lambda: server.live_calls == server.live_steps == agent.live_steps == 0)
            assert agent.cancelled_steps == 10
            await remote.aclose()


async def test_reader_that_leaves_in_mid_write_is_no_error_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    agent = ScriptedAgent([["x" * 100_000] * 400])
    with anyio.fail_after(60):
        async with serve(agent) as server, grpc.aio.insecure_channel(server.address) as channel:
            message = pb.StepCall(idempotency_key="key", request=request_to_proto(ask()))
            call = AgentServiceStub(channel).Step(message)
            await call.read()
            await eventually(lambda: server.live_steps == 0)
            await anyio.wait_all_tasks_blocked()  # as more waits to be written than fits into the connection
            call.cancel()
            await eventually(lambda: server.live_calls == 0)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_deadline_ends_the_step_on_both_sides() -> None:
    agent = ScriptedAgent([["first", anyio.Event()]])
    with anyio.fail_after(30):
        async with serve(agent) as server:
            remote = await RemoteAgent.connect(server.address)
            with pytest.raises(DeadlineExceeded):
                await complete(remote, ask(timeout=0.3))
            await eventually(lambda: server.live_calls == server.live_steps == agent.live_steps == 0)
            assert agent.requests[0].timeout is not None
            assert agent.requests[0].timeout < 1
            await remote.aclose()


async def test_far_agent_gets_no_private_text() -> None:
    agent = ScriptedAgent(["public answer"], side=Side.FAR)
    with anyio.fail_after(30):
        async with serve(agent) as server, chaos_proxy(server.address) as proxy:
            remote = await RemoteAgent.connect(proxy.address)
            with pytest.raises(PrivacyViolation):
                await complete(remote, ask("secret"))
            assert agent.requests == []
            assert (await complete(remote, ask(sensitivity=Sensitivity.PUBLIC))).text == "public answer"
            await remote.aclose()


async def test_server_refuses_private_text_for_a_far_agent_whoever_sends_it() -> None:
    agent = ScriptedAgent(["never"], side=Side.FAR)
    message = pb.StepRequest(messages=[pb.Message(role=pb.ROLE_USER, text="secret")])
    with anyio.fail_after(30):
        async with serve(agent) as server, grpc.aio.insecure_channel(server.address) as channel:
            call = AgentServiceStub(channel).Step(pb.StepCall(idempotency_key="key", request=message))
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call.read()
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert agent.requests == []


async def test_card_before_connecting_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"RemoteAgent\.connect"):
        _ = RemoteAgent("localhost:1").card


async def test_one_server_offers_several_agents_by_name() -> None:
    agents = {"small": ScriptedAgent(["from small"], name="x"), "big": ScriptedAgent(["from big"], limits=Limits(context_tokens=9))}
    with anyio.fail_after(30):
        async with serve(agents) as server:
            texts = []
            for name in ("big", "small", ""):
                remote = await RemoteAgent.connect(server.address, agent=name)
                assert remote.card.name == (name or "small")
                if name:
                    texts.append((await complete(remote, ask())).text)
                await remote.aclose()
            assert texts == ["from big", "from small"]
            with pytest.raises(NotFound, match="big, small|small, big"):
                await RemoteAgent.connect(server.address, agent="huge")


async def test_agent_that_fails_unexpectedly_leaks_nothing() -> None:
    async def explode() -> None:
        raise RuntimeError("password=hunter2")

    with anyio.fail_after(30):
        async with serve(ScriptedAgent(["a"], pace=explode)) as server:
            remote = await RemoteAgent.connect(server.address)
            with pytest.raises(InternalError) as failure:
                await complete(remote, ask())
            await remote.aclose()
    assert "hunter2" not in str(failure.value)


async def test_agent_that_never_says_why_it_ended_breaks_the_contract() -> None:
    class Mute(ScriptedAgent):
        async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
            yield TextDelta(text="...")

    with anyio.fail_after(30):
        async with serve(Mute([])) as server:
            remote = await RemoteAgent.connect(server.address)
            with pytest.raises(InvalidOutput):
                await complete(remote, ask())
            await remote.aclose()


async def test_server_of_another_kind_is_unsupported() -> None:
    with anyio.fail_after(30):
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        with pytest.raises(Unsupported):
            await RemoteAgent.connect(f"127.0.0.1:{port}")
        await server.stop(None)


@pytest.mark.parametrize("token", [None, "wrong"])
async def test_wrong_or_missing_token_is_refused(token: str | None) -> None:
    with anyio.fail_after(30):
        async with serve(ScriptedAgent([]), tokens={"ann": "right"}) as server:
            with pytest.raises(Unauthenticated):
                await RemoteAgent.connect(server.address, token=token)
            remote = await RemoteAgent.connect(server.address, token="right")
            assert remote.card.name == "scripted"
            await remote.aclose()


async def test_step_with_a_wrong_token_never_reaches_the_agent() -> None:
    agent = ScriptedAgent(["never"])
    message = pb.StepRequest(messages=[pb.Message(role=pb.ROLE_USER, text="hi")])
    with anyio.fail_after(30):
        async with serve(agent, tokens={"ann": "right"}) as server, grpc.aio.insecure_channel(server.address) as channel:
            metadata = (("authorization", "Bearer wrong"),)
            call = AgentServiceStub(channel).Step(pb.StepCall(idempotency_key="key", request=message), metadata=metadata)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call.read()
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert agent.requests == []


@pytest.mark.parametrize("shown", ["Bearer right", "bearer right", "BEARER  right "])
async def test_a_token_is_known_by_its_scheme_in_any_case(shown: str) -> None:
    with anyio.fail_after(30):
        async with serve(ScriptedAgent([]), tokens={"ann": "right"}) as server, grpc.aio.insecure_channel(server.address) as channel:
            described = await AgentServiceStub(channel).Describe(pb.DescribeRequest(), metadata=(("authorization", shown),))
    assert [card.name for card in described.agents] == ["scripted"]


async def test_request_beyond_the_message_limit_is_invalid() -> None:
    with anyio.fail_after(60):
        async with serve(ScriptedAgent(["never"])) as server:
            remote = await RemoteAgent.connect(server.address)
            with pytest.raises(InvalidRequest, match="larger than"):
                await complete(remote, ask("x" * (33 * 1024 * 1024)))
            await remote.aclose()


async def test_event_beyond_the_message_limit_is_invalid_output() -> None:
    with anyio.fail_after(60):
        async with serve(ScriptedAgent(["x" * (33 * 1024 * 1024)])) as server:
            remote = await RemoteAgent.connect(server.address)
            with pytest.raises(InvalidOutput, match="an event of more than"):
                await complete(remote, ask())
            await remote.aclose()


@pytest.mark.parametrize("timeout", [1e12, 1e300, float("inf")])
async def test_timeout_beyond_the_clock_is_no_limit(timeout: float) -> None:
    with anyio.fail_after(30):
        async with serve(ScriptedAgent(["done"])) as server:
            remote = await RemoteAgent.connect(server.address)
            assert (await complete(remote, ask(timeout=timeout))).text == "done"
            await remote.aclose()


@pytest.mark.parametrize("retry_after", [-1.0, 1e12, 1e300, float("inf"), float("nan")])
async def test_error_with_an_absurd_retry_after_keeps_its_class(retry_after: float) -> None:
    with anyio.fail_after(30):
        async with serve(ScriptedAgent([RateLimited("slow down", retry_after=retry_after)])) as server:
            remote = await RemoteAgent.connect(server.address)
            with pytest.raises(RateLimited) as caught:
                await complete(remote, ask())
            assert caught.value.retry_after is None or 0 <= caught.value.retry_after < 1e9
            await remote.aclose()


async def test_shutdown_ends_running_steps_with_unavailable() -> None:
    agent = ScriptedAgent([["first", anyio.Event()]])
    with anyio.fail_after(30):
        context = serve(agent)
        server: Server = await context.__aenter__()
        remote = await RemoteAgent.connect(server.address, resume_timeout=1000)
        async with stream(remote, ask()) as events:
            await anext(aiter(events))
            await context.__aexit__(None, None, None)
            with pytest.raises(Unavailable, match="shutting down"):
                await anext(aiter(events))
        assert agent.live_steps == 0
        await remote.aclose()


async def test_finished_override_travels_unchanged() -> None:
    finished = Finished(
        reason=FinishReason.LENGTH, usage=Usage(input_tokens=9, output_tokens=8, cached_tokens=7), model="m", confidence=0.25
    )
    with anyio.fail_after(30):
        async with serve(ScriptedAgent([["text", finished]])) as server:
            remote = await RemoteAgent.connect(server.address)
            assert (await complete(remote, ask())).finished == finished
            await remote.aclose()


async def test_server_that_never_stops_talking_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "STEP_BYTES", 10_000)
    with anyio.fail_after(30):
        async with serve(ScriptedAgent([["x" * 1000] * 1000])) as server:
            remote = await RemoteAgent.connect(server.address)
            with pytest.raises(InvalidOutput, match="10000 bytes"):
                await complete(remote, ask())
            await eventually(lambda: server.live_steps == 0)
            await remote.aclose()
