"""Random schedules of writes, partitions, restarts, skewed clocks, erasures and revocations."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import combinations
from pathlib import Path
from random import Random

import pytest
from sync_world import PRIVATE, Node, World, check_convergence, check_erased, check_not_mixed, check_nothing_lost, check_wire

from nearfar.orchestrator.memory.sync.service import serve_memory
from nearfar.orchestrator.memory.sync.session import Neighbour, sync_once

SCHEDULES = int(os.environ.get("NEARFAR_SYNC_SCHEDULES", "500"))
_STEPS = 40
_PARTS = 10
_ON_FILES = 25
"""Of so many schedules one is on files, with replicas that restart."""
_OVER_GRPC = 12
"""Schedules of which the end goes over real connections."""


@pytest.mark.parametrize("part", range(_PARTS))
def test_replicas_converge_and_lose_nothing_and_keep_private_what_is(part: int, tmp_path: Path) -> None:
    for seed in range(part, SCHEDULES, _PARTS):
        is_on_files = seed % _ON_FILES == part
        folder = tmp_path / str(seed) if is_on_files else None
        if folder is not None:
            folder.mkdir()
        check_schedule(seed, folder)


def check_schedule(seed: int, folder: Path | None) -> None:
    world = World(Random(seed), folder)
    world.run(_STEPS)
    world.heal()
    check(world)


def check(world: World) -> None:
    for one, other in combinations(world.live, 2):
        check_convergence(one, other)
    for node in world.live:
        check_nothing_lost(world, node)
        check_not_mixed(world, node)
        check_erased(world, node)
    check_wire(world)
    for node in world.nodes:
        node.close()


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(_OVER_GRPC))
async def test_replicas_converge_over_grpc_and_no_byte_on_the_wire_is_private(seed: int) -> None:
    world = World(Random(seed))
    world.run(_STEPS)
    async with AsyncExitStack() as stack:
        addresses = {node.name: await stack.enter_async_context(recorded(node, world)) for node in world.live}
        for _ in range(len(world.live) + 1):
            for one in world.live:
                for other in world.live:
                    if one is not other and one.user is not None:
                        to_other = Neighbour(peer=other.peer(), address=addresses[other.name], token=f"token-of-{one.name}")
                        await sync_once(one.store, to_other)
    assert any(b"nearfar.v1.MemoryService/Push" in message for message in world.wire)
    assert not any(PRIVATE.encode() in message for message in [b"".join(world.wire)])
    check(world)


@asynccontextmanager
async def recorded(node: Node, world: World) -> AsyncIterator[str]:
    """The address of a node, by a way on which every byte in either direction is kept."""
    callers = {other.name: other.user or "" for other in world.live}
    tokens = {name: f"token-of-{name}" for name in callers}
    async with serve_memory(node.store, "localhost:0", tokens=tokens, users=callers, is_hub=node.user is None) as server:
        host, _, port = server.address.rpartition(":")

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(1 << 16):
                world.wire.append(data)
                writer.write(data)
                await writer.drain()
            writer.close()

        async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, here = await asyncio.open_connection(host, int(port))
            await asyncio.gather(carry(reader, here), carry(there, writer), return_exceptions=True)

        async with await asyncio.start_server(connect, "127.0.0.1", 0) as proxy:
            yield f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
