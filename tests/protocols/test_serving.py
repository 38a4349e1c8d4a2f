"""Where and how a server may listen: addresses, TLS, tokens, taken ports."""

import asyncio
import socket
from contextlib import suppress
from pathlib import Path

import anyio
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from nearfar.protocols import (
    ConfigError,
    Message,
    PrivacyViolation,
    ScriptedAgent,
    Side,
    StepRequest,
    Unauthenticated,
    Unavailable,
    complete,
)
from nearfar.protocols.address import parse_address
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.server import serve
from nearfar.protocols.testing import eventually
from nearfar.protocols.tls import ClientTls, ServerTls

REQUEST = StepRequest(messages=(Message.user("hi"),))
TOKENS = {"ann": "secret"}


@pytest.mark.anyio
async def test_insecure_beyond_this_machine_is_refused() -> None:
    for address in ("0.0.0.0:0", "[::]:0", "192.0.2.1:0", "example.org:0"):
        with pytest.raises(ConfigError, match="insecure"):
            async with serve(ScriptedAgent([]), address, tokens=TOKENS, insecure=True):
                raise NotImplementedError


@pytest.mark.anyio
async def test_plaintext_beyond_this_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs TLS"):
        async with serve(ScriptedAgent([]), "0.0.0.0:0", tokens=TOKENS):
            raise NotImplementedError


@pytest.mark.anyio
async def test_open_server_beyond_this_machine_is_refused(certificate: tuple[Path, Path]) -> None:
    tls = ServerTls(certificate=certificate[0], private_key=certificate[1])
    with pytest.raises(ConfigError, match="needs tokens"):
        async with serve(ScriptedAgent([]), "0.0.0.0:0", tls=tls):
            raise NotImplementedError


@pytest.mark.anyio
async def test_tls_server_is_reached_by_those_who_trust_it(certificate: tuple[Path, Path], other_certificate: tuple[Path, Path]) -> None:
    tls = ServerTls(certificate=certificate[0], private_key=certificate[1])
    with anyio.fail_after(60):
        async with serve(ScriptedAgent(["safe"]), "0.0.0.0:0", tokens=TOKENS, tls=tls) as server:
            address = "localhost:" + server.address.rpartition(":")[2]
            trusting = await RemoteAgent.connect(address, token="secret", tls=ClientTls(roots=certificate[0]))
            assert (await complete(trusting, REQUEST)).text == "safe"
            await trusting.aclose()
            with pytest.raises(Unavailable, match="signed by itself alone"):
                await RemoteAgent.connect(address, token="secret", tls=ClientTls(roots=other_certificate[0]))
            with pytest.raises(ConfigError, match="speaks TLS"):
                await RemoteAgent.connect(address, token="secret")


@pytest.mark.anyio
async def test_server_that_demands_client_certificates_refuses_others(
    certificate: tuple[Path, Path], other_certificate: tuple[Path, Path]
) -> None:
    tls = ServerTls(certificate=certificate[0], private_key=certificate[1], client_roots=other_certificate[0])
    known = ClientTls(roots=certificate[0], certificate=other_certificate[0], private_key=other_certificate[1])
    with anyio.fail_after(60):
        async with serve(ScriptedAgent([]), "127.0.0.1:0", tls=tls) as server:
            remote = await RemoteAgent.connect(server.address, tls=known)
            assert remote.card.name == "scripted"
            await remote.aclose()
            with pytest.raises(Unauthenticated, match="demands a certificate"):
                await RemoteAgent.connect(server.address, tls=ClientTls(roots=certificate[0]))


@pytest.mark.anyio
async def test_missing_certificate_file_is_named(tmp_path: Path) -> None:
    tls = ServerTls(certificate=tmp_path / "absent.pem", private_key=tmp_path / "absent.key")
    with pytest.raises(ConfigError, match="absent"):
        async with serve(ScriptedAgent([]), tls=tls):
            raise NotImplementedError


@pytest.mark.anyio
async def test_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=str(port)):
            async with serve(ScriptedAgent([]), f"localhost:{port}"):
                raise NotImplementedError


@pytest.mark.anyio
async def test_port_of_another_server_of_ours_is_taken_too() -> None:
    with anyio.fail_after(30):
        async with serve(ScriptedAgent([])) as server:
            with pytest.raises(ConfigError, match="in use"):
                async with serve(ScriptedAgent([]), server.address):
                    raise NotImplementedError


@pytest.mark.anyio
async def test_socket_of_a_live_server_is_not_stolen_and_a_stale_one_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with anyio.fail_after(30):
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(path))
        async with serve(ScriptedAgent(["through the socket"]), f"unix:{path}") as server:
            with pytest.raises(ConfigError, match="another server"):
                async with serve(ScriptedAgent([]), f"unix:{path}"):
                    raise NotImplementedError
            remote = await RemoteAgent.connect(server.address)
            assert (await complete(remote, REQUEST)).text == "through the socket"
            assert path.stat().st_mode & 0o777 == 0o600
            await remote.aclose()


@pytest.mark.anyio
async def test_socket_of_a_server_that_hangs_is_not_stolen(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX) as hanging, socket.socket(socket.AF_UNIX) as queued, anyio.fail_after(30):
        hanging.bind(str(path))
        hanging.listen(0)
        queued.connect(str(path))
        with pytest.raises(ConfigError, match="another server"):
            async with serve(ScriptedAgent([]), f"unix:{path}"):
                raise NotImplementedError


@pytest.mark.anyio
async def test_file_in_the_place_of_a_socket_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("precious", encoding="utf-8")
    with pytest.raises(ConfigError, match="not a socket"):
        async with serve(ScriptedAgent([]), f"unix:{path}"):
            raise NotImplementedError
    assert path.read_text(encoding="utf-8") == "precious"


@pytest.mark.anyio
async def test_agent_that_ignores_its_cancellation_does_not_hold_up_the_shutdown() -> None:
    released = anyio.Event()

    async def stubborn() -> None:
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await released.wait()

    with anyio.fail_after(30):
        async with serve(ScriptedAgent(["never"], pace=stubborn), shutdown_limit=0.1) as server:
            remote = await RemoteAgent.connect(server.address)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(complete, remote, REQUEST)
                await eventually(lambda: server.live_steps == 1)
                tasks.cancel_scope.cancel()
            await remote.aclose()
        assert server.live_steps == 1
        released.set()
        await eventually(lambda: server.live_steps == 0)


@pytest.mark.anyio
async def test_serving_nothing_is_refused() -> None:
    with pytest.raises(ConfigError):
        async with serve({}):
            raise NotImplementedError


@pytest.mark.anyio
@pytest.mark.parametrize("token", ["", "line\nend", "sécret"])
async def test_unusable_tokens_are_refused_on_both_sides(token: str) -> None:
    with pytest.raises(ConfigError):
        async with serve(ScriptedAgent([]), tokens={"ann": token}):
            raise NotImplementedError
    with pytest.raises(ConfigError):
        RemoteAgent("localhost:1", token=token)


@pytest.mark.anyio
async def test_agent_reached_by_an_address_beyond_this_machine_counts_as_far(certificate: tuple[Path, Path]) -> None:
    tls = ServerTls(certificate=certificate[0], private_key=certificate[1])
    trust = ClientTls(roots=certificate[0], server_name="localhost")
    with anyio.fail_after(30):
        async with serve(ScriptedAgent([], side=Side.NEAR), "0.0.0.0:0", tokens=TOKENS, tls=tls) as server:
            remote = await RemoteAgent.connect(server.address, token="secret", tls=trust)
            assert remote.card.side is Side.FAR
            with pytest.raises(PrivacyViolation):
                await complete(remote, REQUEST)
            await remote.aclose()


@pytest.mark.anyio
async def test_health_and_reflection_answer() -> None:
    with anyio.fail_after(30):
        async with serve(ScriptedAgent([])) as server, grpc.aio.insecure_channel(server.address) as channel:
            check = health_pb2.HealthCheckRequest(service="nearfar.v1.AgentService")
            health = await health_pb2_grpc.HealthStub(channel).Check(check)
            assert health.status == health_pb2.HealthCheckResponse.SERVING
            question = reflection_pb2.ServerReflectionRequest(list_services="")
            call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([question]))
            listed = [service.name async for reply in call for service in reply.list_services_response.service]
    assert "nearfar.v1.AgentService" in listed


@pytest.mark.parametrize(
    "text",
    [
        *("", "nonsense", "host:", ":80", "host:port", "host:99999", "::1:80", "unix:relative", "unix:", "unix:/" + "x" * 200),
        *("unix:/a%41", "unix:/a#b", "unix:/a?b", "unix:/a,b", "unix:/a\n", "unix:/\udcff"),
    ],
)
def test_malformed_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "is_local"),
    [
        ("localhost:1", True),
        ("127.0.0.9:1", True),
        ("[::1]:1", True),
        ("unix:/tmp/x.sock", True),
        ("unix:///tmp/x.sock", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("localhost.example.org:1", False),
        ("10.0.0.1:1", False),
    ],
)
def test_only_loopback_and_sockets_are_local(text: str, is_local: bool) -> None:
    address = parse_address(text)
    assert address.is_local is is_local
    assert parse_address(str(address)) == address
