"""Doors of the A2A server: tokens, pages of other sites, sizes, versions."""

from pathlib import Path

import anyio
import httpx
import pytest

pytest.importorskip("a2a", reason="A2A is an extra: pip install 'nearfar[a2a]'")
import grpc
from a2a.types import GetTaskRequest, a2a_pb2_grpc
from a2a_face import LOOPBACK, TOKENS, calling, served, until

from nearfar import ConfigError, Hybrid, ScriptedAgent
from nearfar.protocols.address import Address
from nearfar.protocols.security import Scope, TokenRecord, token_digest

pytestmark = pytest.mark.anyio
CARD = "/.well-known/agent-card.json"
ASK = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
VERSION = {"a2a-version": "1.0"}
ANA = VERSION | {"authorization": f"Bearer {TOKENS['ana']}"}


def stub_of(channel: grpc.aio.Channel) -> a2a_pb2_grpc.A2AServiceStub:
    return a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]  # generated, and without annotations


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}])
async def test_everyone_may_read_the_card_and_nothing_else(headers: dict[str, str], tmp_path: Path) -> None:
    async with Hybrid(near=ScriptedAgent([]), records=tmp_path) as hybrid, served(hybrid) as server:
        async with httpx.AsyncClient(base_url=server.url, headers=VERSION | headers) as client:
            card = await client.get(CARD)
            assert (card.status_code, card.json()["securityRequirements"]) == (200, [{"schemes": {"bearer": {}}}])
            for answer in (await client.post("/", json=ASK), await client.get("/rest/tasks"), await client.get("/rest/extendedAgentCard")):
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        async with grpc.aio.insecure_channel(server.grpc_address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub_of(channel).GetTask(GetTaskRequest(id="a2a-1"), metadata=tuple((VERSION | headers).items()))
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_token_needs_the_scope_of_tasks(tmp_path: Path) -> None:
    record = TokenRecord(id="t1", caller="ana", digest=token_digest(TOKENS["ana"]), scopes=frozenset({Scope.STEPS}))
    async with Hybrid(near=ScriptedAgent([]), records=tmp_path) as hybrid, served(hybrid, tokens=[record]) as server:
        async with httpx.AsyncClient(base_url=server.url, headers=ANA) as client:
            assert (await client.post("/", json=ASK)).status_code == 403
        async with grpc.aio.insecure_channel(server.grpc_address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub_of(channel).GetTask(GetTaskRequest(id="a2a-1"), metadata=tuple(ANA.items()))
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "https://evil.example"}, 403),
        ({"host": "evil.example"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-length": "30000000"}, 413),
    ],
)
async def test_pages_of_other_sites_and_large_bodies_are_refused(headers: dict[str, str], status: int, tmp_path: Path) -> None:
    async with Hybrid(near=ScriptedAgent([]), records=tmp_path) as hybrid, served(hybrid, tokens=None) as server:
        body = b"x" * int(headers.get("content-length", 0)) or b'{"jsonrpc": "2.0", "id": 1, "method": "ListTasks"}'
        async with httpx.AsyncClient(base_url=server.url, headers=VERSION) as client:
            answer = await client.post("/", content=body, headers={"content-type": "application/json"} | headers)
    assert answer.status_code == status


async def test_another_version_is_refused_by_grpc_too(tmp_path: Path) -> None:
    near = ScriptedAgent([])
    async with (
        Hybrid(near=near, records=tmp_path) as hybrid,
        served(hybrid, tokens=None) as server,
        grpc.aio.insecure_channel(server.grpc_address) as channel,
    ):
        for version in ("99.0", "0.3"):
            with pytest.raises(grpc.aio.AioRpcError, match="is not supported") as refused:
                await stub_of(channel).GetTask(GetTaskRequest(id="x"), metadata=(("a2a-version", version),))
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize("transport", ["GRPC", "JSONRPC", "HTTP+JSON"])
async def test_a_revoked_token_ends_its_streams_and_not_its_tasks(transport: str, tmp_path: Path) -> None:
    agent = ScriptedAgent([[anyio.Event(), "never"]])
    async with Hybrid(near=agent, records=tmp_path) as hybrid, served(hybrid) as server, calling(server, transport) as ana:
        task = await ana.send(wait=False)
        await until(lambda: bool(agent.live_steps))
        listening = ana.subscribe(task.id)
        assert (await anext(listening)).task.id == task.id
        server.access.replace_tokens({"bob": TOKENS["bob"]})
        with pytest.raises(Exception, match=r".+") as ended:  # as each transport has it
            await anext(listening)
        assert not isinstance(ended.value, TimeoutError)
        assert agent.live_steps == 1


async def test_an_address_that_others_reach_needs_tls_and_tokens(tmp_path: Path) -> None:
    async with Hybrid(near=ScriptedAgent([]), records=tmp_path) as hybrid:
        with pytest.raises(ConfigError, match="needs TLS"):
            async with served(hybrid, address=Address(host="0.0.0.0", port=0)):
                pass


async def test_tasks_need_runs_and_a_free_port(tmp_path: Path) -> None:
    async with Hybrid(near=ScriptedAgent([])) as hybrid:
        with pytest.raises(ConfigError, match="no runs are kept"):
            async with served(hybrid):
                pass
    async with Hybrid(near=ScriptedAgent([]), records=tmp_path) as hybrid, served(hybrid) as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(ConfigError, match="in use"):
            async with served(hybrid, address=Address(host=LOOPBACK.host, port=port)):
                pass
