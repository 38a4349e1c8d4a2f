"""Connections to a provider hold whatever the environment, a proxy or a hostile server makes of them."""

import gzip
import json

import anyio
import anyio.abc
import pytest
from http_server import Exchange, http_server
from streams import KEY, TEXTS, agent_at, asking

from nearfar.cloud.config import ProviderConfig, build_provider
from nearfar.protocols import (
    ConfigError,
    InvalidOutput,
    NearfarError,
    QuotaExceeded,
    RequestRefused,
    StepLost,
    Unavailable,
    complete,
)

pytestmark = pytest.mark.anyio
MEGABYTE = 1 << 20


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("ALL_PROXY", "carrier-pigeon://10.0.0.1", "ALL_PROXY"),
        ("HTTP_PROXY", "http://127.0.0.1:notaport", "HTTP_PROXY"),
        ("NO_PROXY", "::::", "NO_PROXY"),
        ("SSL_CERT_FILE", "/nonexistent/authorities.pem", "SSL_CERT_FILE"),
        ("SSLKEYLOGFILE", "/nonexistent/folder/keys.log", "SSLKEYLOGFILE"),
    ],
)
async def test_a_useless_setting_of_the_environment_is_said_again_by_every_step(
    variable: str, value: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv(variable, value)
    agent = build_provider(ProviderConfig(provider="openai", model="m", base_url="http://far.example/v1", concurrency=1))
    for _ in range(3):  # the second one waited for the connection that the first one had taken along
        with anyio.fail_after(5), pytest.raises(ConfigError) as raised:
            await complete(agent, asking())
        assert named in str(raised.value.hint)
    await agent.aclose()


async def test_a_proxy_that_lets_nobody_through_is_no_lost_work(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(client: anyio.abc.SocketStream) -> None:
        async with client:
            await client.receive()
            await client.send(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")

    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, refuse)
        agent = agent_at("https://far.example/v1")
        with pytest.raises(Unavailable, match="proxy") as raised:
            await complete(agent, asking())
        assert not isinstance(raised.value, StepLost)
        await agent.aclose()
        group.cancel_scope.cancel()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0"])
async def test_no_proxy_sees_what_is_meant_for_this_machine(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def proxy(exchange: Exchange) -> None:
        await exchange.stream([TEXTS["openai"]("hi")])

    async with http_server(proxy) as server:
        for name in ("ALL_PROXY", "HTTP_PROXY", "all_proxy", "http_proxy"):
            monkeypatch.setenv(name, server.base_url)
        agent = agent_at(f"http://{host}:1/v1")
        with pytest.raises(Unavailable):
            await complete(agent, asking())
        await agent.aclose()
    assert server.connections == 0


async def test_no_cookie_of_one_caller_goes_along_with_the_next() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.respond(200, TEXTS["openai"]("hi"), content_type="text/event-stream", **{"set-cookie": "session=first; Path=/"})

    async with http_server(answer) as server:
        agent = agent_at(server.base_url)
        for _ in range(2):
            await complete(agent, asking())
        assert [exchange.headers.get("cookie") for exchange in server.exchanges] == [None, None]
        await agent.aclose()


async def test_no_packed_answer_is_asked_for() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.stream([TEXTS["openai"]("hi")])

    async with http_server(answer) as server:
        agent = agent_at(server.base_url)
        await complete(agent, asking())
        assert server.exchanges[0].headers["accept-encoding"] == "identity"
        await agent.aclose()


async def error_of(status: int, body: bytes, **headers: str) -> NearfarError:
    """The error of a step whose provider answers so."""

    async def answer(exchange: Exchange) -> None:
        await exchange.respond(status, body, **{"content_type": "text/event-stream", **headers})

    async with http_server(answer) as server:
        agent = agent_at(server.base_url)
        with pytest.raises(NearfarError) as raised:
            await complete(agent, asking())
        await agent.aclose()
    return raised.value


@pytest.mark.parametrize("encoding", ["gzip, gzip", "gzip, none, GZIP", "identity, zstd", "br"])
async def test_an_answer_that_may_unpack_to_any_size_is_not_unpacked(encoding: str) -> None:
    bomb = gzip.compress(gzip.compress(b"data: " + bytes(16 * MEGABYTE)))
    error = await error_of(200, bomb, **{"content-encoding": encoding})
    assert type(error) is InvalidOutput
    assert encoding in error.message
    assert type(await error_of(400, bomb, **{"content-encoding": encoding})) is RequestRefused


@pytest.mark.parametrize("encoding", ["none", "identity", "UTF-8", ""])
async def test_a_word_that_names_no_packing_is_none(encoding: str) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.respond(200, TEXTS["openai"]("hi"), content_type="text/event-stream", **{"content-encoding": encoding})

    async with http_server(answer) as server:
        agent = agent_at(server.base_url)
        assert (await complete(agent, asking())).text == "hi"
        await agent.aclose()


async def test_a_packed_answer_is_read_and_bounded_like_any_other() -> None:
    async def answer(exchange: Exchange) -> None:
        body = gzip.compress(TEXTS["openai"]("hi").encode())
        await exchange.respond(200, body, content_type="text/event-stream", **{"content-encoding": "gzip"})

    async with http_server(answer) as server:
        agent = agent_at(server.base_url)
        assert (await complete(agent, asking())).text == "hi"
        await agent.aclose()
    bomb = gzip.compress(b"data: " + bytes(40 * MEGABYTE))
    assert "does not end" in (await error_of(200, bomb, **{"content-encoding": "gzip"})).message
    assert len((await error_of(400, bomb, **{"content-encoding": "gzip"})).message) < 1000


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_refused_and_costs_nothing(status: int) -> None:
    error = await error_of(status, b"", location=f"http://127.0.0.1:1/steal?key={KEY}")
    assert type(error) is RequestRefused
    assert KEY not in str(error)


async def test_a_complaint_in_place_of_a_stream_is_told_in_the_providers_words() -> None:
    body = json.dumps({"error": {"message": "insufficient balance", "code": 402}}).encode()
    error = await error_of(200, body, content_type="application/json")
    assert type(error) is QuotaExceeded
    assert "insufficient balance" in error.message
