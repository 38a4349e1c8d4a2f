"""Whatever callers send to any server, and however they leave, it stays up, its memory stays bounded, and its inside stays in."""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise
from pathlib import Path

import anyio
import grpc
import pytest
from hostile_messages import INPUTS, messages
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nearfar.orchestrator.memory.store import MemoryStore
from nearfar.orchestrator.memory.sync.service import SERVICE as MEMORY
from nearfar.orchestrator.memory.sync.service import MemoryService, peers_of
from nearfar.protocols import Message, ScriptedAgent, StepRequest, complete
from nearfar.protocols.address import parse_address
from nearfar.protocols.channel import open_channel
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.hub import SERVICE as HUB
from nearfar.protocols.hub import Hub, HubService
from nearfar.protocols.security import bearer_metadata
from nearfar.protocols.server import serve
from nearfar.protocols.status import carried_error
from nearfar.protocols.v1 import memory_pb2
from nearfar.protocols.v1.memory_pb2_grpc import MemoryServiceStub

pytestmark = pytest.mark.anyio

TOKENS = {"phone": "the token of the phone", "good": "the token of a good caller"}
ANSWER_SECONDS = 0.05
"""That the test waits for an answer before it goes on: some calls never have one."""
INSIDE = ("Traceback", 'File "', "site-packages", "object at 0x", "Unexpected <class", "pydantic", "google.protobuf", "sqlite", "asyncio")
"""What must not be in any error that a caller gets."""


class Leaving(Enum):
    """How a caller ends a call."""

    IN_ORDER = auto()
    CANCELLED = auto()
    LEFT_OPEN = auto()


@dataclass(frozen=True)
class Attack:
    """One call of somebody who has a token."""

    method: str
    sent: tuple[bytes, ...]
    leaving: Leaving


attacks = st.sampled_from(sorted(INPUTS)).flatmap(
    lambda method: st.builds(Attack, st.just(method), st.lists(messages(method), max_size=4).map(tuple), st.sampled_from(list(Leaving)))
)


@asynccontextmanager
async def everything() -> AsyncIterator[str]:
    """The address of a server with all services there are."""
    hub = Hub(TOKENS)
    with MemoryStore.open(":memory:", embedder=None) as store:
        memory = MemoryService(store, peers_of({"phone": "ben", "good": "anna"}), is_hub=True)
        further = {HUB: HubService(hub).handlers(), MEMORY: memory.handlers()}
        async with serve(ScriptedAgent(lambda _: "served"), tokens=TOKENS, further=further, shutdown_limit=0.2) as server:
            yield server.address
            await hub.close()


async def good_caller_is_served(address: str) -> None:
    """One who asks an agent, and the memory."""
    remote = await RemoteAgent.connect(address, token=TOKENS["good"])
    try:
        assert (await complete(remote, StepRequest(messages=(Message.user("go"),)))).text == "served"
    finally:
        await remote.aclose()
    async with open_channel(parse_address(address), None) as channel:
        place = memory_pb2.MemoryAddress(namespace=["notes"], key="tea")
        stub, metadata = MemoryServiceStub(channel), bearer_metadata(TOKENS["good"])
        await stub.Put(memory_pb2.PutRequest(address=place, value=b'{"text":"green"}'), metadata=metadata)
        assert (await stub.Get(memory_pb2.GetRequest(address=place), metadata=metadata)).item.value == b'{"text":"green"}'


async def attack(channel: grpc.aio.Channel, one: Attack) -> grpc.aio.AioRpcError | None:
    """What the server says to it in the end, if it says anything."""
    call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(one.method)(metadata=bearer_metadata(TOKENS["phone"]))
    try:
        async with asyncio.timeout(ANSWER_SECONDS):  # anyio's would take grpc's own cancellations for somebody else's
            for data in one.sent:
                await call.write(data)
            if one.leaving is Leaving.IN_ORDER:
                await call.done_writing()
            while one.leaving is not Leaving.CANCELLED and await call.read() is not grpc.aio.EOF:
                pass
    except grpc.aio.AioRpcError as error:
        return error
    except (TimeoutError, asyncio.InvalidStateError):  # no answer, or the call ended before all was sent
        pass
    finally:
        if one.leaving is not Leaving.LEFT_OPEN:  # else it goes with its connection, in mid-stream
            call.cancel()
    return None


async def attack_with(made: list[Attack], address: str) -> None:
    async with open_channel(parse_address(address), None) as channel:
        for one in made:
            if error := await attack(channel, one):
                check(one, error)
        await good_caller_is_served(address)


def check(one: Attack, error: grpc.aio.AioRpcError) -> None:
    told = f"{error.details()} {error.trailing_metadata()}"
    assert not [word for word in INSIDE if word in told], f"{one.method}: {told}"
    if error.details() == "Internal error from Core":  # what this side says where the call ended before all was sent
        return
    if error.code() not in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNIMPLEMENTED) and not one.method.startswith("/grpc."):
        known = carried_error(error)
        assert known is not None, f"{one.method}: {error}"
        assert type(known).__name__ != "InternalError", f"{one.method}: {known}"


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large])
@given(made=st.lists(attacks, min_size=1, max_size=6))
async def test_hostile_calls_harm_nobody(made: list[Attack], caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    with anyio.fail_after(60):
        async with everything() as address:
            await attack_with(made, address)
            await good_caller_is_served(address)
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR], caplog.text


def resident_bytes() -> int:
    """Memory of this process now."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
async def test_flood_leaves_no_memory_behind() -> None:
    large = b"\x0a\xff\xff\xff\x7f" + bytes(2**20)  # a field that says it is longer than its message
    flood = [Attack(method, (large,), leaving) for method in sorted(INPUTS) for leaving in Leaving]
    with anyio.fail_after(100):
        async with everything() as address:
            await attack_with(flood, address)  # allocators and imports take what they keep
            levels = [resident_bytes()]
            for _ in range(4):
                await attack_with(flood, address)
                levels.append(resident_bytes())
            grown = min(after - before for before, after in pairwise(levels))  # other memory of this process comes and goes
            assert grown < len(flood) * len(large) // 2
            await good_caller_is_served(address)
