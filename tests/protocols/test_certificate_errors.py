"""What is wrong with a certificate: each mistake has its own words, and says what to do."""

import asyncio
import datetime
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import anyio
import pytest
from certificates import DAY, HOSTS, Authority, CertificateAndKey

from nearfar.protocols import ConfigError, NearfarError, ScriptedAgent, Unauthenticated, Unavailable
from nearfar.protocols.attach import Worker
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.hub import Hub, serve_hub
from nearfar.protocols.server import serve
from nearfar.protocols.tls import ClientTls, ServerTls


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


def server_tls(files: CertificateAndKey, client_roots: Path | None = None) -> ServerTls:
    return ServerTls(certificate=files[0], private_key=files[1], client_roots=client_roots)


def client_tls(roots: Path, files: CertificateAndKey | None = None) -> ClientTls:
    return ClientTls(roots=roots) if files is None else ClientTls(roots=roots, certificate=files[0], private_key=files[1])


async def failure(server: ServerTls | None, client: ClientTls | None) -> NearfarError:
    """What a client meets at the server."""
    with anyio.fail_after(20), pytest.raises(NearfarError) as caught:
        async with serve(ScriptedAgent([]), "127.0.0.1:0", tls=server) as running:
            await RemoteAgent.connect(running.address, tls=client)
    assert caught.value.hint
    return caught.value


@pytest.mark.anyio
async def test_a_certificate_of_another_host_names_the_hosts_that_it_is_for(authority: Authority) -> None:
    error = await failure(server_tls(authority.issue("hub.example", "10.0.0.1")), client_tls(authority.certificate))
    assert isinstance(error, Unavailable)
    assert error.message.endswith("is for hub.example, 10.0.0.1, and not for 127.0.0.1")


@pytest.mark.anyio
async def test_the_name_that_a_client_expects_is_the_one_in_the_error(authority: Authority) -> None:
    client = replace(client_tls(authority.certificate), server_name="hub.example")
    error = await failure(server_tls(authority.issue(*HOSTS)), client)
    assert error.message.endswith("is for localhost, 127.0.0.1, and not for hub.example")


@pytest.mark.anyio
async def test_another_host_is_told_from_a_client_that_is_refused(authority: Authority) -> None:
    tls = client_tls(authority.certificate, authority.issue("phone"))
    error = await failure(server_tls(authority.issue("hub.example"), authority.certificate), tls)
    assert error.message.endswith("is for hub.example, and not for 127.0.0.1")


@pytest.mark.anyio
async def test_an_expired_certificate_says_since_when(authority: Authority) -> None:
    ended = datetime.datetime.now(datetime.UTC) - DAY
    error = await failure(server_tls(authority.issue(*HOSTS, begin=-2 * DAY, end=-DAY)), client_tls(authority.certificate))
    assert isinstance(error, Unavailable)
    assert f"expired on {ended:%Y-%m-%d}" in error.message


@pytest.mark.anyio
async def test_a_certificate_of_tomorrow_says_from_when(authority: Authority) -> None:
    begins = datetime.datetime.now(datetime.UTC) + DAY
    error = await failure(server_tls(authority.issue(*HOSTS, begin=DAY, end=2 * DAY)), client_tls(authority.certificate))
    assert isinstance(error, Unavailable)
    assert f"is valid from {begins:%Y-%m-%d}" in error.message
    assert "clock" in error.hint


@pytest.mark.anyio
async def test_an_authority_that_has_expired_is_told_from_a_certificate_that_has(tmp_path: Path) -> None:
    old = Authority(tmp_path, "old", end=-datetime.timedelta(hours=1))
    error = await failure(server_tls(old.issue(*HOSTS)), client_tls(old.certificate))
    assert "is signed by one that has expired" in error.message


@pytest.mark.anyio
async def test_a_certificate_of_an_unknown_authority_says_so(authority: Authority, stranger: Authority) -> None:
    error = await failure(server_tls(stranger.issue(*HOSTS)), client_tls(authority.certificate))
    assert isinstance(error, Unavailable)
    assert error.message.endswith("is signed by no authority that this client trusts")


@pytest.mark.anyio
async def test_a_certificate_that_nobody_has_signed_says_so(authority: Authority, certificate: CertificateAndKey) -> None:
    error = await failure(server_tls(certificate), client_tls(authority.certificate))
    assert isinstance(error, Unavailable)
    assert error.message.endswith("is signed by itself alone")


@pytest.mark.anyio
async def test_a_client_without_a_certificate_is_told_that_one_is_demanded(authority: Authority) -> None:
    error = await failure(server_tls(authority.issue(*HOSTS), authority.certificate), client_tls(authority.certificate))
    assert isinstance(error, Unauthenticated)
    assert error.message.endswith("demands a certificate of its clients, and this one has none")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("begin", "end", "problem"),
    [(-2 * DAY, -DAY, "expired on"), (DAY, 2 * DAY, "is valid from"), (-DAY, DAY, "is of an authority that the server does not trust")],
)
async def test_a_client_whose_certificate_is_refused_is_told_why(
    authority: Authority, stranger: Authority, begin: datetime.timedelta, end: datetime.timedelta, problem: str
) -> None:
    files = (stranger if problem.startswith("is of") else authority).issue("phone", begin=begin, end=end)
    error = await failure(server_tls(authority.issue(*HOSTS), authority.certificate), client_tls(authority.certificate, files))
    assert isinstance(error, Unauthenticated)
    assert f"the certificate in {files[0]} {problem}" in error.message


@pytest.mark.anyio
async def test_a_client_of_plain_text_is_told_that_the_server_speaks_tls(authority: Authority) -> None:
    error = await failure(server_tls(authority.issue(*HOSTS)), None)
    assert isinstance(error, ConfigError)
    assert error.message.endswith("speaks TLS, and this client plain text")


@pytest.mark.anyio
async def test_a_client_of_tls_is_told_that_the_server_speaks_plain_text(authority: Authority) -> None:
    error = await failure(None, client_tls(authority.certificate))
    assert isinstance(error, Unavailable)
    assert error.message.endswith("does not speak TLS")


@pytest.mark.anyio
async def test_a_program_that_is_no_grpc_server_does_not_speak_tls(authority: Authority) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async with web_server(answer) as address:
        with anyio.fail_after(20), pytest.raises(Unavailable, match="does not speak TLS"):
            await RemoteAgent.connect(address, tls=client_tls(authority.certificate))


@pytest.mark.anyio
async def test_a_network_that_breaks_every_connection_is_no_matter_of_certificates(authority: Authority) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with web_server(hang_up) as address:
        for tls in (None, client_tls(authority.certificate)):
            with anyio.fail_after(20), pytest.raises(Unavailable, match="cannot reach"):
                await RemoteAgent.connect(address, tls=tls)


@pytest.mark.anyio
async def test_a_server_that_closes_during_the_handshake_is_no_matter_of_certificates(authority: Authority) -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.close()

    async with web_server(close) as address:
        with anyio.fail_after(20), pytest.raises(Unavailable, match="cannot reach"):
            await RemoteAgent.connect(address, tls=client_tls(authority.certificate))


@pytest.mark.anyio
async def test_a_server_that_hangs_in_the_handshake_is_not_waited_for(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfar.protocols.channel._SECONDS", 0.2)
    calls = count()

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if next(calls) == 0:
            writer.transport.abort()

    async with web_server(hang) as address:
        with anyio.fail_after(20), pytest.raises(Unavailable, match="Connection reset|Socket closed"):
            await RemoteAgent.connect(address, tls=client_tls(authority.certificate))
    assert next(calls) > 1, "the diagnosis has asked, too"


@asynccontextmanager
async def web_server(answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    opened: list[asyncio.StreamWriter] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        await answer(reader, writer)

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    for writer in opened:
        writer.transport.abort()


@pytest.mark.anyio
async def test_a_worker_without_a_certificate_gives_up_and_says_why(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfar.protocols.channel._BACK_AFTER", 0.0)
    monkeypatch.setattr("nearfar.protocols.attach._FIRST_DELAY", 0.0)
    tls = server_tls(authority.issue(*HOSTS), authority.certificate)
    async with serve_hub(Hub({"phone": "token"}), "127.0.0.1:0", tls=tls) as address:
        with anyio.fail_after(20), pytest.raises(Unauthenticated, match="demands a certificate"):
            await Worker(ScriptedAgent([]), address, token="token", tls=client_tls(authority.certificate)).run()
