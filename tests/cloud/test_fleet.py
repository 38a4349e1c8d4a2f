"""A gateway as it is by default serves a fleet at once: many streams of one token, and more connections than a process opens by default."""

import asyncio
import resource
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import grpc
import pytest
from http_server import Exchange, http_server
from streams import TEXTS, asking

from nearfar.cloud.config import ProviderConfig, build_provider
from nearfar.cloud.gateway import serve_gateway
from nearfar.protocols import complete
from nearfar.protocols.address import parse_address
from nearfar.protocols.channel import open_channel
from nearfar.protocols.client import RemoteAgent

pytestmark = pytest.mark.anyio
STREAMS = 256
TOKEN = {"fleet": "f" * 64}


class Together:
    """A provider that answers when so many requests are open at once, and not before."""

    def __init__(self, requests: int) -> None:
        self._missing = requests
        self._all_there = asyncio.Event()

    async def __call__(self, exchange: Exchange) -> None:
        self._missing -= 1
        if self._missing <= 0:
            self._all_there.set()
        await self._all_there.wait()
        await exchange.stream([TEXTS["openai"]("served")])


async def test_256_streams_of_one_token_run_at_once() -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 4 * STREAMS:
        pytest.skip("this process may open fewer than 1,024 files")
    with anyio.fail_after(60):
        async with http_server(Together(STREAMS)) as provider:
            far = build_provider(ProviderConfig(provider="openai", model="model-1", base_url=provider.base_url))
            async with serve_gateway({"far": far}, tokens=TOKEN) as server:
                remote = await RemoteAgent.connect(server.address, token=TOKEN["fleet"])
                replies = await asyncio.gather(*(complete(remote, asking()) for _ in range(STREAMS)))
                await remote.aclose()
            await far.aclose()
    assert {reply.text for reply in replies} == {"served"}


@asynccontextmanager
async def gateway_program(*, soft: int) -> AsyncIterator[str]:
    """The address of `nearfar serve gateway`, started where a process may open so many files unless it asks for more."""
    start = (
        f"import resource, nearfar.orchestrator.cli as cli; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {4 * soft})); cli.main()"
    )
    arguments = ["serve", "gateway", "--far", "openai:gpt-4o", "--address", "127.0.0.1:0", "--json"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", start, *arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            line = (await process.stdout.readline()).decode()
        yield line.partition('"address": "')[2].partition('"')[0]
    finally:
        process.kill()
        await process.wait()


async def test_the_gateway_program_takes_more_connections_than_its_first_limit_allows() -> None:
    with anyio.fail_after(100):
        async with gateway_program(soft=128) as address, AsyncExitStack() as stack:
            channels = [await stack.enter_async_context(open_channel(parse_address(address), None)) for _ in range(200)]
            await asyncio.gather(*(channel.channel_ready() for channel in channels))
            assert {channel.get_state() for channel in channels} == {grpc.ChannelConnectivity.READY}
