"""A gateway and a hub behind the configurations of HAProxy and nginx in `deploy/`, with real callers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import anyio
import grpc
import pytest
from attached_world import OWN, QUICK, TOKENS, ask, running
from certificates import HOSTS, Authority

from benchmarks.fault_figures.proxies import KINDS, Pem, proxied
from nearfar.protocols import Agent, RateLimited, ScriptedAgent, Unauthenticated, Unavailable, complete, stream
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.hub import Hub, serve_hub
from nearfar.protocols.server import Server, serve
from nearfar.protocols.testing import eventually
from nearfar.protocols.tls import ClientTls

pytestmark = pytest.mark.anyio

TOKEN = TOKENS["phone"]
WORDS = [f"word {number} " for number in range(300)]
METHOD = "/nearfar.v1.AgentService/Describe"


@dataclass
class Front:
    """A proxy, and how to reach it."""

    name: str
    authority: Authority
    pem: Pem
    stack: AsyncExitStack

    @property
    def tls(self) -> ClientTls:
        return ClientTls(roots=self.authority.certificate)

    async def of(self, backend: str) -> str:
        """Start the proxy in front of a server; returns the proxy's address."""
        return await self.stack.enter_async_context(proxied(self.name, backend, self.pem))

    async def served(self, agent: Agent) -> tuple[Server, str]:
        """A server behind the proxy, and the proxy's address."""
        server = await self.stack.enter_async_context(serve(agent, "127.0.0.1:0", tokens=TOKENS))
        return server, await self.of(server.address)

    def remote(self, address: str, token: str | None = TOKEN) -> RemoteAgent:
        remote = RemoteAgent(address, token=token, tls=self.tls)
        self.stack.push_async_callback(remote.aclose)
        return remote


@pytest.fixture(params=KINDS)
async def front(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Front]:
    name: str = request.param
    if KINDS[name].path is None:
        pytest.skip(f"{name} is not installed")
    authority = Authority(tmp_path_factory.mktemp("authority"))
    async with AsyncExitStack() as stack:
        yield Front(name, authority, Pem(*authority.issue(*HOSTS)), stack)


def spoken() -> ScriptedAgent:
    return ScriptedAgent(lambda request: "".join(WORDS) if request.messages[0].text == "long" else f"{len(request.messages[0].text)}")


async def test_steps_stream_through_a_proxy_whatever_their_size(front: Front) -> None:
    _, address = await front.served(spoken())
    remote = front.remote(address)
    assert (await complete(remote, ask("long"))).text == "".join(WORDS)
    large = "x" * 3_000_000
    assert (await complete(remote, ask(large))).text == str(len(large))
    async with stream(remote, ask("long")) as events:
        assert len([event async for event in events]) > 1


async def test_a_call_without_a_token_does_not_reach_the_server(front: Front) -> None:
    _, address = await front.served(spoken())
    nobody = front.remote(address, token=None)
    with pytest.raises(Unauthenticated, match="a bearer token is missing"):
        await complete(nobody, ask())
    with pytest.raises(Unauthenticated, match="the token is wrong"):
        await complete(front.remote(address, token="a wrong token of some length"), ask())


async def test_a_server_that_is_gone_is_unavailable(front: Front) -> None:
    async with serve(spoken(), "127.0.0.1:0", tokens=TOKENS) as server:
        backend = server.address
    remote = front.remote(await front.of(backend))
    with pytest.raises(Unavailable):
        await complete(remote, ask())


async def test_a_caller_of_too_much_is_told_so_and_others_go_on(front: Front) -> None:
    _, address = await front.served(spoken())
    credentials = grpc.ssl_channel_credentials(front.authority.certificate.read_bytes())
    codes: set[grpc.StatusCode] = set()
    async with grpc.aio.secure_channel(address, credentials) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD, None, None)

        async def calls() -> None:
            for _ in range(40):
                try:
                    await call(b"", metadata=[("authorization", f"Bearer {TOKEN}")])
                except grpc.aio.AioRpcError as error:
                    codes.add(error.code())

        async def flood() -> None:
            while True:
                await asyncio.gather(*(calls() for _ in range(40)))

        # The proxy forgives a caller that pauses, so the flood goes on until the agent was refused as well.
        with anyio.fail_after(60):
            async with asyncio.TaskGroup() as group:
                flooding = group.create_task(flood())
                with pytest.raises(RateLimited):
                    await asked_again_and_again(front.remote(address))
                # The agent may be refused while the flood's first calls still wait for their answers.
                await eventually(lambda: bool(codes))
                flooding.cancel()
    assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}


async def asked_again_and_again(remote: RemoteAgent) -> None:
    while True:
        await complete(remote, ask())


async def test_more_connections_than_one_address_may_have_are_refused_and_those_it_has_go_on(front: Front) -> None:
    if front.name == "nginx":
        pytest.skip("nginx counts calls and no connections, as its configuration says")
    _, address = await front.served(spoken())
    remote = front.remote(address)
    await complete(remote, ask())
    host, _, port = address.rpartition(":")
    async with AsyncExitStack() as opened:
        closed = [await _is_closed(host, int(port), opened) for _ in range(100)]
        assert 30 <= sum(closed) <= 60
        assert (await complete(remote, ask("abc"))).text == "3"


async def _is_closed(host: str, port: int, opened: AsyncExitStack) -> bool:
    """Open a connection that stays, and say whether the other side closes it at once."""
    try:
        reader, writer = await asyncio.open_connection(host, port)
        opened.callback(writer.close)
        with anyio.move_on_after(0.05):
            return await reader.read(1) == b""
    except OSError:
        return True
    return False


async def test_a_device_is_attached_to_a_hub_behind_a_proxy(front: Front) -> None:
    hub = Hub(TOKENS, policies=OWN, heartbeat=QUICK)
    async with serve_hub(hub) as backend:
        address = await front.of(backend)
        async with running(spoken(), address, tls=front.tls) as worker:
            with anyio.fail_after(30):
                attached = await hub.wait_for("phone")
                replies = await asyncio.gather(*(complete(attached, ask("long")) for _ in range(5)))
            assert {reply.text for reply in replies} == {"".join(WORDS)}
            assert worker.error is None


async def test_a_revoked_token_ends_what_runs_behind_a_proxy(front: Front) -> None:
    server, address = await front.served(ScriptedAgent(["one two three"], pace=anyio.sleep_forever))
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_refused, front.remote(address))
            await eventually(lambda: server.live_steps == 1)
            server.replace_tokens({"tablet": TOKENS["tablet"]})


async def _refused(remote: RemoteAgent) -> None:
    with pytest.raises(Unauthenticated):
        await complete(remote, ask())
