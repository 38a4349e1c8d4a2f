"""Calls pass a server's entrance before anything of their requests is read, and end with an error of ours whatever happens in them."""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import anyio
import grpc
import pytest
from grpc_health.v1 import health_pb2

from nearfar.protocols import (
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    Message,
    NearfarError,
    RateLimited,
    ScriptedAgent,
    StepEvent,
    StepRequest,
    TextDelta,
    Unauthenticated,
    access,
    complete,
    entrance,
    server,
)
from nearfar.protocols import server as service
from nearfar.protocols.access import Access, Context
from nearfar.protocols.address import parse_address
from nearfar.protocols.channel import open_channel, server_options
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.entrance import Entrance
from nearfar.protocols.limits import CALLS_OF_A_STRANGER, FREE_FAILURES, METADATA_BYTES
from nearfar.protocols.security import IDENTITY, bearer_metadata
from nearfar.protocols.server import serve
from nearfar.protocols.status import from_rpc_error
from nearfar.protocols.testing import eventually
from nearfar.protocols.v1 import agent_pb2 as pb
from nearfar.protocols.v1.agent_pb2_grpc import AgentServiceStub
from nearfar.protocols.wire import request_to_proto

pytestmark = pytest.mark.anyio

TOKENS = {"laptop": "the token of the laptop", "phone": "the token of the phone"}
STEP = "/nearfar.v1.AgentService/Step"
DESCRIBE = "/nearfar.v1.AgentService/Describe"
WATCH = "/grpc.health.v1.Health/Watch"
REQUEST = StepRequest(messages=(Message.user("go"),))


class Raw:
    """A caller that sends the bytes that a test says, and perhaps never any."""

    def __init__(self, address: str, token: str | None = TOKENS["laptop"]) -> None:
        self._channel = open_channel(parse_address(address), None)
        self._metadata = bearer_metadata(token)

    def call(self, method: str, metadata: tuple[tuple[str, str], ...] = ()) -> "grpc.aio.StreamStreamCall[bytes, bytes]":
        return self._channel.stream_stream(method)(metadata=(*self._metadata, *metadata))

    async def refusal(self, method: str, *sent: bytes, metadata: tuple[tuple[str, str], ...] = ()) -> NearfarError:
        """What such a call ends with."""
        call = self.call(method, metadata)
        for data in sent:
            await call.write(data)
        return await end_of(call)

    async def close(self) -> None:
        await self._channel.close()


async def end_of(call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> NearfarError:
    """What a call ends with."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    raise AssertionError("the call ended without an error")


@asynccontextmanager
async def caller(address: str, token: str | None = TOKENS["laptop"]) -> AsyncIterator[Raw]:
    raw = Raw(address, token)
    try:
        yield raw
    finally:
        await raw.close()


@asynccontextmanager
async def guarded(tokens: Mapping[str, str], monotonic: Callable[[], float], read: list[bytes]) -> AsyncIterator[str]:
    """The address of a server with one call, `Step`, which notes what it reads."""

    async def say(request: pb.StepCall, context: Context) -> pb.StepCall:
        read.append(request.SerializeToString())
        return request

    method = grpc.unary_unary_rpc_method_handler(say, pb.StepCall.FromString, pb.StepCall.SerializeToString)
    serving = grpc.aio.server(interceptors=[Entrance(Access(tokens), monotonic=monotonic)])
    serving.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("nearfar.v1.AgentService", {"Step": method}),))
    port = serving.add_insecure_port("127.0.0.1:0")
    await serving.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await serving.stop(0)


async def still_serves(address: str, token: str = TOKENS["phone"]) -> bool:
    remote = await RemoteAgent.connect(address, token=token)
    try:
        return (await complete(remote, REQUEST)).text == "served"
    finally:
        await remote.aclose()


async def test_nothing_of_a_request_is_read_before_its_token_is_right() -> None:
    read: list[bytes] = []
    with anyio.fail_after(20):
        async with guarded(TOKENS, lambda: 0.0, read) as address, caller(address, "wrong") as wrong, caller(address) as right:
            assert isinstance(await wrong.refusal(STEP), Unauthenticated)  # without having sent anything
            assert isinstance(await wrong.refusal(STEP, b"garbage"), Unauthenticated)
            assert read == []
            assert isinstance(await right.refusal(STEP, b"garbage"), InvalidRequest)


async def test_wrong_tokens_make_their_address_wait_but_for_tokens_known_from_there() -> None:
    now = [0.0]
    with anyio.fail_after(20):
        async with (
            guarded(TOKENS, lambda: now[0], []) as address,
            caller(address, "wrong") as wrong,
            caller(address) as known,
            caller(address, TOKENS["phone"]) as new,
            caller(address, None) as silent,
        ):
            assert isinstance(await known.refusal(STEP, b"garbage"), InvalidRequest)
            for _ in range(FREE_FAILURES):
                assert isinstance(await wrong.refusal(STEP), Unauthenticated)
            refusals = [await wrong.refusal(STEP), await new.refusal(STEP)]
            assert [type(refusal) for refusal in refusals] == [RateLimited] * 2
            assert [refusal.retry_after for refusal in refusals] == [1.0, 1.0]
            assert isinstance(await known.refusal(STEP, b"garbage"), InvalidRequest)
            assert isinstance(await silent.refusal(STEP), Unauthenticated)
            now[0] = 1.0
            assert isinstance(await new.refusal(STEP, b"garbage"), InvalidRequest)


async def test_call_that_sends_nothing_ends_and_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrance, "FIRST_MESSAGE_SECONDS", 0.1)
    with anyio.fail_after(20):
        async with serve(ScriptedAgent(lambda _: "served"), tokens=TOKENS) as serving, caller(serving.address) as raw:
            refusals: list[NearfarError] = []

            async def dawdle(method: str) -> None:
                refusals.append(await raw.refusal(method))

            async with anyio.create_task_group() as tasks:
                for method in (STEP, DESCRIBE) * 20:
                    tasks.start_soon(dawdle, method)
            assert [type(refusal) for refusal in refusals] == [DeadlineExceeded] * 40
            assert await still_serves(serving.address)


def step(key: str, text: str = "go") -> bytes:
    request = StepRequest(messages=(Message.user(text),))
    return pb.StepCall(idempotency_key=key, request=request_to_proto(request)).SerializeToString()


class Waiting(ScriptedAgent):
    """Never ends what one caller asks, and serves the other one."""

    def __init__(self) -> None:
        super().__init__(lambda _: [anyio.Event()] if IDENTITY.get().caller == "laptop" else "served")


async def test_caller_with_enough_calls_open_gets_no_more_and_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrance, "CALLS_OF_A_CALLER", 2)
    with anyio.fail_after(20):
        async with serve(Waiting(), tokens=TOKENS) as serving, caller(serving.address) as raw:
            held = [raw.call(STEP) for _ in range(2)]
            for number, call in enumerate(held):
                await call.write(step(str(number)))
            await eventually(lambda: serving.live_calls == 2)
            refusal = await raw.refusal(STEP)
            assert isinstance(refusal, RateLimited)
            assert refusal.retry_after is not None
            assert await still_serves(serving.address)
            for call in held:
                call.cancel()
            await eventually(lambda: serving.live_calls == 0)
            assert isinstance(await raw.refusal(STEP, b"garbage"), InvalidRequest)


async def test_requests_of_one_caller_take_a_bounded_part_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "REQUEST_BYTES_OF_A_CALLER", 100_000)
    with anyio.fail_after(20):
        async with serve(Waiting(), tokens=TOKENS) as serving, caller(serving.address) as raw:
            held = [raw.call(STEP) for _ in range(2)]
            for number, call in enumerate(held):
                await call.write(step(str(number), "x" * 45_000))
            await eventually(lambda: serving.live_steps == 2)
            assert isinstance(await raw.refusal(STEP, step("third", "x" * 45_000)), RateLimited)
            assert await still_serves(serving.address)
            for call in held:
                call.cancel()


async def test_strangers_may_ask_for_the_health_and_for_little_of_that() -> None:
    with anyio.fail_after(20):
        async with serve(ScriptedAgent(lambda _: "served"), tokens=TOKENS) as serving, caller(serving.address, None) as stranger:
            held = [stranger.call(WATCH) for _ in range(CALLS_OF_A_STRANGER)]
            for call in held:
                await call.write(health_pb2.HealthCheckRequest().SerializeToString())
                assert await call.read() is not grpc.aio.EOF
            assert isinstance(await stranger.refusal(WATCH), RateLimited)
            assert isinstance(await stranger.refusal(DESCRIBE), Unauthenticated)
            assert await still_serves(serving.address)
            for call in held:
                call.cancel()


async def test_stranger_that_dawdles_over_reflection_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrance, "STRANGER_SECONDS", 0.1)
    with anyio.fail_after(20):
        async with serve(ScriptedAgent([]), tokens=TOKENS) as serving, caller(serving.address, None) as stranger:
            method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
            assert isinstance(await stranger.refusal(method), DeadlineExceeded)


class Talkative(ScriptedAgent):
    """Says more than any connection holds."""

    async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
        for _ in range(32):
            yield TextDelta(text="x" * 1_000_000)
        async for event in super().step(request):
            yield event


async def test_reader_that_takes_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "UNREAD_SECONDS", 0.2)
    with anyio.fail_after(30):
        async with serve(Talkative(["end"]), tokens=TOKENS) as serving, caller(serving.address) as raw:
            call = raw.call(STEP)
            await call.write(step("1"))
            await eventually(lambda: serving.live_calls == 1)
            await eventually(lambda: serving.live_calls == 0)
            assert isinstance(await end_of(call), DeadlineExceeded)


async def test_metadata_beyond_the_limit_is_refused() -> None:
    with anyio.fail_after(20):
        async with serve(ScriptedAgent(lambda _: "served"), tokens=TOKENS) as serving, caller(serving.address) as raw:
            assert isinstance(await raw.refusal(STEP, metadata=(("x", "y" * METADATA_BYTES),)), RateLimited)
            assert await still_serves(serving.address)


def with_option(name: str, value: int) -> Callable[[], tuple[tuple[str, int | str], ...]]:
    options = dict(server_options())
    assert name in options
    return lambda: tuple({**options, name: value}.items())


async def test_connections_beyond_the_limit_are_refused_and_those_that_are_there_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "server_options", with_option("grpc.max_allowed_incoming_connections", 2))
    with anyio.fail_after(20):
        async with serve(ScriptedAgent(lambda _: "served"), tokens=TOKENS) as serving:
            first = await RemoteAgent.connect(serving.address, token=TOKENS["phone"])
            second = await RemoteAgent.connect(serving.address, token=TOKENS["phone"])
            with pytest.raises(NearfarError, match="cannot reach"):
                await RemoteAgent.connect(serving.address, token=TOKENS["phone"])
            assert (await complete(first, REQUEST)).text == "served"
            await first.aclose()
            await second.aclose()


async def test_connection_that_never_says_anything_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "server_options", with_option("grpc.server_handshake_timeout_ms", 200))
    with anyio.fail_after(20):
        async with serve(ScriptedAgent([]), tokens=TOKENS) as serving:
            host, _, port = serving.address.rpartition(":")
            with socket.create_connection((host, int(port))) as silent:
                silent.settimeout(15)

                def read_to_the_end() -> None:
                    while silent.recv(4096):
                        pass

                await anyio.to_thread.run_sync(read_to_the_end)


async def test_a_defect_is_logged_and_its_text_stays_here(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object) -> None:
        raise ValueError("the secret text of a defect")

    monkeypatch.setattr(service, "card_to_proto", broken)
    with anyio.fail_after(20):
        async with serve(ScriptedAgent([]), tokens=TOKENS) as serving, caller(serving.address) as raw:
            refusal = await raw.refusal(DESCRIBE, b"")
    assert isinstance(refusal, InternalError)
    assert "secret" not in str(refusal)
    assert [record.name for record in caplog.records if record.levelno >= logging.ERROR] == ["nearfar.protocols.entrance"]


async def test_a_burst_of_a_fleet_waits_for_its_turn_and_is_answered() -> None:
    async def ask_for_cards(channel: grpc.aio.Channel) -> object:
        return await AgentServiceStub(channel).Describe(pb.DescribeRequest(), metadata=bearer_metadata(TOKENS["laptop"]))

    with anyio.fail_after(60):
        async with serve(ScriptedAgent([]), tokens=TOKENS) as serving:
            channels = [open_channel(parse_address(serving.address), None) for _ in range(2)]
            burst = [ask_for_cards(channel) for channel in channels for _ in range(900)]
            answers = await asyncio.gather(*burst, return_exceptions=True)
            for channel in channels:
                await channel.close()
    assert [answer for answer in answers if isinstance(answer, BaseException)] == []


async def test_steps_that_an_overloaded_server_cancels_unseen_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**dict(server_options()), "grpc.server.max_pending_requests": 10, "grpc.server.max_pending_requests_hard_limit": 10}
    monkeypatch.setattr(server, "server_options", lambda: tuple(options.items()))
    agent = ScriptedAgent(lambda _: "served")
    with anyio.fail_after(30):
        async with serve(agent) as serving:
            remote = await RemoteAgent.connect(serving.address)
            steps = [complete(remote, REQUEST.model_copy(update={"idempotency_key": f"step {number}"})) for number in range(14)]
            replies = await asyncio.gather(*steps)
            await remote.aclose()
    assert [reply.text for reply in replies] == ["served"] * 14
    assert len(agent.requests) == 14
