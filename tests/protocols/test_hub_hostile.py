"""Whatever a worker sends, its own stream ends with a typed status, and the hub and the other workers are unharmed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel
import grpc
import pytest
from attached_world import OWN, QUICK, TOKENS, ask, running

from nearfar.protocols import (
    ContextOverflow,
    DeadlineExceeded,
    InternalError,
    InvalidOutput,
    InvalidRequest,
    NearfarError,
    RateLimited,
    ScriptedAgent,
    Stalled,
    TextDelta,
    ToolChoice,
    ToolSpec,
    Unavailable,
    complete,
    hub_session,
    stream,
)
from nearfar.protocols.address import parse_address
from nearfar.protocols.channel import open_channel
from nearfar.protocols.hub import Heartbeat, Hub, serve_hub
from nearfar.protocols.hub_session import failure_from_proto, registration_from_proto
from nearfar.protocols.limits import MAX_MESSAGE_BYTES
from nearfar.protocols.security import bearer_metadata
from nearfar.protocols.status import from_rpc_error
from nearfar.protocols.testing import eventually
from nearfar.protocols.v1 import agent_pb2, hub_pb2
from nearfar.protocols.v1.hub_pb2_grpc import HubServiceStub

pytestmark = pytest.mark.anyio

CARD = agent_pb2.AgentCard(name="raw", model="raw", side=agent_pb2.SIDE_NEAR, capabilities=agent_pb2.Capabilities(tools=True))
REGISTER = hub_pb2.WorkerMessage(register=hub_pb2.Register(instance="raw", agents=[CARD]))
HEARTBEAT = hub_pb2.WorkerMessage(heartbeat=hub_pb2.WorkerHeartbeat())
LAST = agent_pb2.StepEvent(finished=agent_pb2.Finished(reason=agent_pb2.FINISH_REASON_STOP, model="raw"))
SLOW = Heartbeat(interval=10.0, silence_limit=30.0)
MEGABYTE = 1024 * 1024


def registration(*cards: agent_pb2.AgentCard, **fields: object) -> hub_pb2.WorkerMessage:
    return hub_pb2.WorkerMessage(register=hub_pb2.Register(**{"instance": "raw", "agents": cards, **fields}))  # type: ignore[arg-type]  # fields of Register


def output(step: int, event: agent_pb2.StepEvent | None = None, **failure: object) -> hub_pb2.WorkerMessage:
    if event is not None:
        return hub_pb2.WorkerMessage(output=hub_pb2.StepOutput(step=step, event=event))
    return hub_pb2.WorkerMessage(output=hub_pb2.StepOutput(step=step, failure=hub_pb2.StepFailure(**failure)))  # type: ignore[arg-type]  # fields of StepFailure


def finished(**fields: object) -> agent_pb2.StepEvent:
    return agent_pb2.StepEvent(finished=agent_pb2.Finished(reason=agent_pb2.FINISH_REASON_STOP, model="raw", **fields))  # type: ignore[arg-type]  # fields of Finished


def text(step: int, said: str) -> hub_pb2.WorkerMessage:
    return output(step, agent_pb2.StepEvent(text=said))


class RawWorker:
    """A worker that sends exactly what the test says, and no heartbeats of its own."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = open_channel(parse_address(address), None)
        self.call = HubServiceStub(self._channel).Attach(metadata=bearer_metadata(TOKENS["phone"]))

    async def send(self, *messages: hub_pb2.WorkerMessage) -> None:
        with suppress(grpc.aio.AioRpcError):  # the hub has ended the stream: `refusal` tells why
            for message in messages:
                await self.call.write(message)

    async def started(self) -> int:
        """The number of the next step that the hub gives."""
        while True:
            message = await self.call.read()
            if message.WhichOneof("message") == "start":
                return int(message.start.step)

    async def refusal(self) -> NearfarError:
        """What the stream ends with."""
        try:
            while await self.call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error)
        raise AssertionError("the hub ended the stream without an error")

    async def close(self) -> None:
        self.call.cancel()
        await self.call.code()  # what gRPC still has to do belongs to this test's event loop
        await self._channel.close()


@asynccontextmanager
async def attacked(heartbeat: Heartbeat = QUICK) -> AsyncIterator[tuple[Hub, RawWorker]]:
    """A hub and a worker that is about to attack it; afterwards an honest worker is still served, and so is the attacker's successor."""
    hub = Hub(TOKENS, policies=OWN, heartbeat=heartbeat)
    honest = ScriptedAgent(lambda _: "honest")
    with anyio.fail_after(30):
        async with serve_hub(hub) as address, running(honest, address, token=TOKENS["tablet"]):
            tablet = await hub.wait_for("tablet")
            raw = RawWorker(address)
            try:
                yield hub, raw
                assert (await complete(tablet, ask())).text == "honest"
            finally:
                await raw.close()
            await eventually(lambda: "phone" not in hub.attached)
            async with running(honest, address):
                assert (await complete(await hub.wait_for("phone"), ask())).text == "honest"


@pytest.mark.parametrize("first", [
    HEARTBEAT,
    hub_pb2.WorkerMessage(),
    text(1, "too early"),
    registration(),
    registration(*[CARD] * 2),
    registration(*(agent_pb2.AgentCard(name=f"agent {number}", model="raw") for number in range(17))),
    registration(CARD, instance=""),
    registration(CARD, instance="x" * 200),
    registration(agent_pb2.AgentCard(name="no model")),
    registration(agent_pb2.AgentCard(name="bell \a", model="raw")),
    registration(agent_pb2.AgentCard(name="x" * 200, model="raw")),
    registration(agent_pb2.AgentCard(name="raw", model="clears your screen \x1b[2J")),
    registration(agent_pb2.AgentCard(name="raw", model="raw", description="x" * MEGABYTE)),
    registration(agent_pb2.AgentCard(name="raw", model="raw", prices=agent_pb2.Prices(input="NaN", output="-1", source="", as_of="x"))),
    registration(agent_pb2.AgentCard(name="raw", model="raw", prices=agent_pb2.Prices(input="1E+999999", output="1", as_of="2026-01-01"))),
    registration(agent_pb2.AgentCard(name="raw", model="raw", prices=agent_pb2.Prices(input="1", output="1e300", as_of="2026-01-01"))),
    registration(agent_pb2.AgentCard(name="raw", model="raw", parameters=0)),
    registration(CARD, state=hub_pb2.DeviceState(battery=7.0)),
    registration(CARD, state=hub_pb2.DeviceState(battery=float("nan"))),
], ids=lambda message: message.WhichOneof("message") or "empty")  # fmt: skip
async def test_malformed_first_message_is_refused(first: hub_pb2.WorkerMessage) -> None:
    async with attacked() as (hub, raw):
        await raw.send(first)
        assert isinstance(await raw.refusal(), InvalidRequest)
        assert "phone" not in hub.attached


@pytest.mark.parametrize("then", [
    REGISTER,
    hub_pb2.WorkerMessage(),
    text(1, "of a step that was never given"),
    output(2**63, LAST),
    output(1, reason="Unavailable"),
    hub_pb2.WorkerMessage(heartbeat=hub_pb2.WorkerHeartbeat(state=hub_pb2.DeviceState(battery=-1))),
], ids=lambda message: message.WhichOneof("message") or "empty")  # fmt: skip
async def test_message_out_of_place_ends_the_stream(then: hub_pb2.WorkerMessage) -> None:
    async with attacked() as (_, raw):
        await raw.send(REGISTER, then)
        assert isinstance(await raw.refusal(), InvalidRequest)


@pytest.mark.parametrize("last", [output(1, LAST), output(1, reason="Unavailable", message="gone")], ids=["finished", "failed"])
async def test_output_after_the_end_of_a_step_reaches_nobody_and_ends_the_stream(last: hub_pb2.WorkerMessage) -> None:
    async with attacked() as (hub, raw):
        await raw.send(REGISTER)
        agent = await hub.wait_for("phone")
        async with stream(agent, ask()) as events:
            step = anext(aiter(events))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(raw.send, text(1, "first"))
                assert await step == TextDelta(text="first")
            await raw.send(last, text(1, "after the end"), last)
            assert isinstance(await raw.refusal(), InvalidRequest)
            rest = [event async for event in _until_gone(events)]
        assert TextDelta(text="after the end") not in rest


async def _until_gone(events: AsyncIterator[object]) -> AsyncIterator[object]:
    with suppress(Unavailable):
        async for event in events:
            yield event


async def test_flood_of_heartbeats_ends_the_stream() -> None:
    async with attacked(SLOW) as (hub, raw):
        await raw.send(REGISTER)
        await hub.wait_for("phone")
        await raw.send(*[HEARTBEAT] * 101)
        assert isinstance(await raw.refusal(), InvalidRequest)


async def test_flood_of_late_output_ends_the_stream() -> None:
    async with attacked(SLOW) as (hub, raw):
        await raw.send(REGISTER)
        agent = await hub.wait_for("phone")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(complete, agent, ask())
            number = await raw.started()
            tasks.cancel_scope.cancel()
        await raw.send(*[text(number, "late")] * 1001)
        assert isinstance(await raw.refusal(), InvalidRequest)


async def test_message_too_large_for_the_wire_ends_the_stream() -> None:
    async with attacked() as (hub, raw):
        await raw.send(REGISTER)
        await hub.wait_for("phone")
        unlimited = grpc.aio.insecure_channel(raw.address)  # the hub's limit is not the sender's
        call = HubServiceStub(unlimited).Attach(metadata=bearer_metadata(TOKENS["phone"]))
        await call.write(registration(CARD, instance="x" * MAX_MESSAGE_BYTES))
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call.read()
        assert isinstance(from_rpc_error(ended.value), RateLimited)
        await unlimited.close()


async def test_late_output_of_a_cancelled_step_is_dropped() -> None:
    async with attacked() as (hub, raw):
        await raw.send(REGISTER)
        agent = await hub.wait_for("phone")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(complete, agent, ask())
            cancelled = await raw.started()
            tasks.cancel_scope.cancel()
        replies: list[str] = []

        async def read() -> None:
            replies.append((await complete(agent, ask())).text)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            number = await raw.started()
            await raw.send(text(cancelled, "late"), text(number, "in time"), output(cancelled, LAST), output(number, LAST))
        assert replies == ["in time"]
        assert hub.attached["phone"].live_steps == 0


async def test_events_that_nobody_reads_are_bounded() -> None:
    async with attacked() as (hub, raw):
        await raw.send(REGISTER)
        agent = await hub.wait_for("phone")
        async with stream(agent, ask()) as events:
            first = anext(aiter(events))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(raw.send, text(1, "first"))
                await first
            await raw.send(*(text(1, "x" * MEGABYTE) for _ in range(20)), HEARTBEAT)
            with pytest.raises(InvalidOutput):
                async for _ in events:
                    pass


async def test_step_that_is_read_as_fast_as_it_comes_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_session, "STEP_BYTES", 3 * MEGABYTE)
    hub = Hub(TOKENS, policies=OWN)
    session = hub.register("phone", registration_from_proto(REGISTER.register))
    _, step = hub.start("phone", ask())

    async def read() -> None:
        for _ in range(4):
            session.receive(text(step.number, "x" * MEGABYTE))
            await step.next()

    with pytest.raises(InvalidOutput):
        await read()


ANY_OBJECT = {"type": "object", "required": ["answer"]}
LOOK = ToolSpec(name="look", description="looks", parameters={"type": "object"})
UNCALLED = agent_pb2.StepEvent(finished=agent_pb2.Finished(reason=agent_pb2.FINISH_REASON_TOOL_CALLS, model="raw"))


def look(call_id: str) -> agent_pb2.StepEvent:
    return agent_pb2.StepEvent(tool_call=agent_pb2.ToolCall(id=call_id, name="look", arguments_json="{}"))


@pytest.mark.parametrize(("fields", "events"), [
    ({"output_schema": ANY_OBJECT}, [agent_pb2.StepEvent(text="no JSON"), UNCALLED]),
    ({"tools": (LOOK,), "tool_choice": ToolChoice.REQUIRED}, [agent_pb2.StepEvent(text="no call"), UNCALLED]),
    ({}, [UNCALLED]),
    ({"tools": (LOOK,)}, [look("x" * 257)]),
    ({"tools": (LOOK,)}, [look(str(number)) for number in range(257)]),
], ids=["schema", "required call", "no tools", "endless id", "too many calls"])  # fmt: skip
async def test_stated_reason_and_calls_are_not_taken_on_trust(fields: dict[str, Any], events: list[agent_pb2.StepEvent]) -> None:
    card = agent_pb2.AgentCard(name="raw", model="raw", capabilities=agent_pb2.Capabilities(tools=True, json_schema=True))
    hub = Hub(TOKENS)
    session = hub.register("phone", registration_from_proto(registration(card).register))
    _, step = hub.start("phone", ask(sensitivity="public", **fields))
    for event in events:
        session.receive(output(step.number, event))

    async def read() -> None:
        while await step.next():
            pass

    with pytest.raises(InvalidOutput):
        await read()


async def test_worker_that_never_falls_silent_cannot_outlast_the_timeout() -> None:
    hub = Hub(TOKENS, policies=OWN)
    session = hub.register("phone", registration_from_proto(REGISTER.register))
    _, step = hub.start("phone", ask(timeout=0.05))

    async def read() -> None:
        while True:  # whenever it reads, there is something
            session.receive(text(step.number, "more"))
            await step.next()
            await anyio.lowlevel.checkpoint()

    with pytest.raises(DeadlineExceeded), anyio.fail_after(5):
        await read()


@pytest.mark.parametrize("event", [
    agent_pb2.StepEvent(),
    agent_pb2.StepEvent(text=""),
    agent_pb2.StepEvent(tool_call=agent_pb2.ToolCall(id="1", name="x", arguments_json="[")),
    agent_pb2.StepEvent(finished=agent_pb2.Finished()),
    agent_pb2.StepEvent(finished=agent_pb2.Finished(reason=agent_pb2.FINISH_REASON_STOP, model="raw", confidence=7)),
    finished(usage=agent_pb2.Usage(output_tokens=2**64 - 1)),
    finished(saved=agent_pb2.Usage(input_tokens=2**63)),
    finished(performance=agent_pb2.Performance(joules=1e308, joules_source=agent_pb2.ENERGY_SOURCE_MEASURED)),
    finished(performance=agent_pb2.Performance(first_token_seconds=1e308)),
    finished(performance=agent_pb2.Performance(decode_tokens_per_second=float("inf"))),
], ids=["empty", "no text", "no JSON", "no reason", "impossible", "tokens", "saved tokens", "joules", "seconds", "speed"])  # fmt: skip
async def test_malformed_event_fails_its_step_alone(event: agent_pb2.StepEvent) -> None:
    async with attacked() as (hub, raw):
        await raw.send(REGISTER)
        agent = await hub.wait_for("phone")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_expect_invalid_output, hub, "phone")
            await raw.send(output(await raw.started(), event))
        assert (await _answered(raw, hub)) == "answered"
        assert agent.card.name == "phone"


async def _expect_invalid_output(hub: Hub, name: str) -> None:
    with pytest.raises(InvalidOutput):
        await complete(hub.agent(name), ask())


async def _answered(raw: RawWorker, hub: Hub) -> str:
    replies: list[str] = []

    async def read() -> None:
        replies.append((await complete(hub.agent("phone"), ask())).text)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        number = await raw.started()
        await raw.send(text(number, "answered"), output(number, LAST))
    return replies[0]


@pytest.mark.parametrize(("reason", "expected"), [
    ("RateLimited", RateLimited),
    ("NoSuchClass", InternalError),
    ("", InternalError),
    ("ContextOverflow", ContextOverflow),
    ("ModelNotFound", Unavailable),
    ("Unauthenticated", Unavailable),
    ("ApprovalNeeded", Unavailable),
    ("RunBusy", Unavailable),
    ("StoreCorrupt", Unavailable),
    ("VersionConflict", Unavailable),
    ("LedgerConflict", Unavailable),
])  # fmt: skip
async def test_failure_arrives_as_its_class(reason: str, expected: type[NearfarError]) -> None:
    async with attacked() as (hub, raw):
        await raw.send(REGISTER)
        await hub.wait_for("phone")
        errors: list[NearfarError] = []

        async def read() -> None:
            try:
                await complete(hub.agent("phone"), ask())
            except NearfarError as error:
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await raw.send(output(await raw.started(), reason=reason, message="m" * 10_000, hint="h", retry_after=float("inf")))
        assert type(errors[0]) is expected
        assert len(errors[0].message) < 5_000
        assert errors[0].retry_after is None


@pytest.mark.parametrize("delay", [-1.0, float("-inf"), float("nan")])
def test_delay_before_now_is_none(delay: float) -> None:
    failure = hub_pb2.StepFailure(reason="RateLimited", message="slow", retry_after=delay)
    assert failure_from_proto(failure).retry_after is None


async def test_worker_with_enough_to_do_gets_no_more() -> None:
    async with attacked() as (hub, raw):
        await raw.send(REGISTER)
        agent = await hub.wait_for("phone")
        async with anyio.create_task_group() as tasks:
            for _ in range(64):
                tasks.start_soon(complete, agent, ask())
            await eventually(lambda: hub.attached["phone"].live_steps == 64)
            with pytest.raises(RateLimited):
                await complete(agent, ask())
            tasks.cancel_scope.cancel()


async def test_step_that_is_silent_on_a_worker_that_is_alive_stalls() -> None:
    hub = Hub(TOKENS, policies=OWN, idle_timeout=0.1)
    async with serve_hub(hub) as address, running(ScriptedAgent([anyio.Event()]), address):
        agent = await hub.wait_for("phone")
        with pytest.raises(Stalled), anyio.fail_after(20):
            await complete(agent, ask())


async def test_request_too_large_for_the_wire_is_refused_before_it_is_sent() -> None:
    async with attacked() as (hub, raw):
        await raw.send(REGISTER)
        agent = await hub.wait_for("phone")
        with pytest.raises(InvalidRequest):
            await complete(agent, ask("x" * (MAX_MESSAGE_BYTES + 1)))
        assert hub.attached["phone"].live_steps == 0


async def test_same_process_that_attaches_anew_replaces_its_own_stream() -> None:
    async with attacked() as (hub, raw):
        await raw.send(REGISTER)
        agent = await hub.wait_for("phone")
        errors: list[NearfarError] = []

        async def read() -> None:
            try:
                await complete(agent, ask())
            except Unavailable as error:
                errors.append(error)

        again = RawWorker(raw.address)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await raw.started()
            await again.send(REGISTER)
        assert len(errors) == 1
        assert isinstance(await raw.refusal(), Unavailable)
        assert (await _answered(again, hub)) == "answered"
        await again.close()
