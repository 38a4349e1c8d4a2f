"""Streams over a real connection: clients that leave, that do not read, and errors on the way."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anthropic
import anyio
import httpx
import openai
import orjson
import pytest
from http_face import ASK, CHAT, HEADERS, TOKEN, events, openai_client, raw_client, served

from nearfar import Hybrid, ScriptedAgent, Side, StepLost
from nearfar.orchestrator import serve as server_module
from nearfar.orchestrator.serve import HttpServer, endpoint

pytestmark = pytest.mark.anyio

STREAM = {**ASK, "stream": True}
MESSAGES: Any = ASK["messages"]


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not holds():
            await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def asked_by_hand(
    server: HttpServer, body: object = STREAM, *, buffer: int = 0
) -> AsyncIterator[tuple[asyncio.StreamReader, socket.socket]]:
    """Send a request over a socket of our own."""
    host, port = server.address.removeprefix("http://").split(":")
    ours = socket.socket()
    if buffer:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    ours.setblocking(False)
    await asyncio.get_running_loop().sock_connect(ours, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=ours, limit=1024)
    data = orjson.dumps(body)
    head = [f"POST {CHAT} HTTP/1.1", f"host: {host}", f"authorization: {HEADERS['authorization']}", f"content-length: {len(data)}", "", ""]
    writer.write("\r\n".join(head).encode() + data)
    try:
        yield reader, ours
    finally:
        writer.close()


async def test_pieces_arrive_as_they_are_said() -> None:
    gate = anyio.Event()
    far = ScriptedAgent([["One ", gate, "two."]], name="far", side=Side.FAR)
    async with Hybrid(far=far) as hybrid, served(hybrid) as server, openai_client(server) as client:
        stream = await client.chat.completions.create(model="far", messages=ASK["messages"], stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content == "One ":
                break
        gate.set()
        assert [chunk.choices[0].delta.content async for chunk in stream] == ["two.", None]


async def test_a_client_that_leaves_in_mid_stream_cancels_its_turn_within_one_chunk() -> None:
    said: list[int] = []
    left = anyio.Event()

    async def pace() -> None:
        if said:
            await left.wait()
        said.append(1)

    far = ScriptedAgent([["One ", "two ", "three ", "four "]], name="far", side=Side.FAR, pace=pace)
    async with Hybrid(far=far) as hybrid, served(hybrid) as server, raw_client(server) as client:
        async with client.stream("POST", CHAT, json=STREAM) as response:
            async for line in response.aiter_lines():
                if "One" in line:
                    break
        await until(lambda: far.cancelled_steps == 1)
        left.set()
    assert (far.live_steps, far.tokens_decoded) == (0, 1)


async def test_a_client_that_leaves_before_its_answer_cancels_its_turn() -> None:
    near = ScriptedAgent([[anyio.Event(), "One."]], name="near")
    async with Hybrid(near=near) as hybrid, served(hybrid) as server:
        async with asked_by_hand(server, ASK):
            await until(lambda: near.live_steps == 1)
        await until(lambda: near.cancelled_steps == 1)
    assert near.live_steps == 0


async def test_a_client_that_never_reads_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "UNREAD_SECONDS", 0.05)
    far = ScriptedAgent([[*["a" * 100_000] * 200, anyio.Event()]], name="far", side=Side.FAR)
    async with Hybrid(far=far) as hybrid, served(hybrid) as server, asked_by_hand(server, buffer=4096):
        await until(lambda: far.cancelled_steps == 1)
        await until(lambda: server.live_requests == 0)


async def test_a_client_that_asks_on_but_never_reads_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    paused = anyio.Event()
    pause = server_module._Connection.pause_writing
    monkeypatch.setattr(server_module, "UNREAD_SECONDS", 1.0)

    def pausing(connection: server_module._Connection) -> None:
        pause(connection)
        paused.set()

    monkeypatch.setattr(server_module._Connection, "pause_writing", pausing)
    far = ScriptedAgent([[*["a" * 100_000] * 200, anyio.Event()]], name="far", side=Side.FAR)
    async with Hybrid(far=far) as hybrid, served(hybrid) as server, asked_by_hand(server, buffer=4096) as (_, ours):
        await paused.wait()
        await asyncio.get_running_loop().sock_sendall(ours, b"GET /hea")
        await until(lambda: far.cancelled_steps == 1)


@pytest.mark.parametrize("answered", [b"", b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"])
async def test_a_client_that_sends_no_whole_request_is_cut_off(answered: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HANDSHAKE_SECONDS", 0.2)
    async with Hybrid(near=ScriptedAgent([], name="near")) as hybrid, served(hybrid) as server:
        host, port = server.address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        with anyio.fail_after(30):
            writer.write(answered)
            if answered:
                await reader.readuntil(b'{"status":"ok"}')
            writer.write(b"GET /hea")
            assert await reader.read() == b""
        writer.close()


async def test_a_client_that_stops_in_the_middle_of_a_body_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "BODY_SECONDS", 0.2)
    async with Hybrid(near=ScriptedAgent([], name="near")) as hybrid, served(hybrid) as server:
        host, port = server.address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: 9\r\n\r\n"
        with anyio.fail_after(30):
            writer.write(head.encode() + b"{")
            assert await reader.read() == b""
            await until(lambda: server.live_requests == 0)
        writer.close()


async def test_a_quiet_stream_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "QUIET_SECONDS", 0.01)
    gate = anyio.Event()
    near = ScriptedAgent([[gate, "One."]], name="near")
    async with (
        Hybrid(near=near) as hybrid,
        served(hybrid) as server,
        raw_client(server) as client,
        client.stream("POST", CHAT, json=STREAM) as response,
    ):
        assert response.headers["x-nearfar-run"]
        assert "x-nearfar-agent" not in response.headers
        lines = response.aiter_lines()
        assert [await anext(lines) for _ in range(3)] == [": wait", "", ": wait"]
        gate.set()
        rest = "\n".join([line async for line in lines])
    assert [data for _, data in events(rest)][-1] == "[DONE]"


async def test_a_quiet_stream_of_a_message_is_kept_alive_by_pings_that_its_client_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "QUIET_SECONDS", 0.01)
    gates = anyio.Event(), anyio.Event()
    near = ScriptedAgent([[gate, "One."] for gate in gates], name="near")
    async with Hybrid(near=near) as hybrid, served(hybrid) as server, raw_client(server) as client:
        async with client.stream("POST", "/v1/messages", json={**STREAM, "max_tokens": 9}) as response:
            lines = response.aiter_lines()
            assert [await anext(lines) for _ in range(3)] == ["event: ping", 'data: {"type":"ping"}', ""]
            gates[0].set()
        async with anthropic.AsyncAnthropic(base_url=server.address, api_key=TOKEN) as official:
            stream = await official.messages.create(model="nearfar/auto", max_tokens=9, messages=MESSAGES, stream=True)
            gates[1].set()  # the head, and with it a ping, has come
            assert [event.type async for event in stream][0] == "message_start"


async def test_the_head_of_a_stream_tells_who_speaks() -> None:
    near = ScriptedAgent(["One."], name="near", model="small", confidence=0.9)
    async with Hybrid(near=near) as hybrid, served(hybrid) as server, raw_client(server) as client:
        headers = (await client.post(CHAT, json=STREAM)).headers
    told = {name: headers[f"x-nearfar-{name}"] for name in ("schema", "strategy", "side", "agent", "model")}
    assert told == {"schema": "1", "strategy": "cascade", "side": "near", "agent": "near", "model": "small"}


async def test_an_error_before_the_first_piece_is_a_status() -> None:
    near = ScriptedAgent([StepLost("gone")], name="near")
    async with Hybrid(near=near) as hybrid, served(hybrid) as server, raw_client(server) as client:
        response = await client.post(CHAT, json=STREAM)
    assert (response.status_code, response.json()["error"]["type"]) == (503, "server_error")


async def test_an_error_after_the_first_piece_is_an_event() -> None:
    far = ScriptedAgent([["One ", StepLost("gone")]], name="far", side=Side.FAR)
    async with Hybrid(far=far) as hybrid, served(hybrid) as server, openai_client(server) as client:
        stream = await client.chat.completions.create(model="far", messages=ASK["messages"], stream=True)
        with pytest.raises(openai.APIError, match="gone"):
            async for _ in stream:
                pass


async def test_a_revoked_token_ends_its_streams() -> None:
    far = ScriptedAgent([["One ", anyio.Event()]], name="far", side=Side.FAR)
    async with Hybrid(far=far) as hybrid, served(hybrid) as server, openai_client(server) as client:
        stream = await client.chat.completions.create(model="far", messages=ASK["messages"], stream=True)
        await anext(stream)
        server.access.replace_tokens({"other": "o" * 32})
        with pytest.raises(openai.APIError, match="revoked"):
            async for _ in stream:
                pass
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
    assert far.cancelled_steps == 1


async def test_a_server_that_ends_lets_requests_finish() -> None:
    gate = anyio.Event()
    near = ScriptedAgent([[gate, "One."]], name="near")
    replies: list[httpx.Response] = []

    async def ask(client: httpx.AsyncClient) -> None:
        replies.append(await client.post(CHAT, json=ASK))

    async with Hybrid(near=near) as hybrid, anyio.create_task_group() as tasks:
        async with served(hybrid, drain=30) as server:
            client = httpx.AsyncClient(base_url=server.address, headers=HEADERS)
            tasks.start_soon(ask, client)
            await until(lambda: near.live_steps == 1)
            asyncio.get_running_loop().call_later(0.05, gate.set)
        await until(lambda: bool(replies))
        await client.aclose()
    assert replies[0].json()["choices"][0]["message"]["content"] == "One."


_TRAILER = b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"


@pytest.mark.parametrize("begun", [b"", _TRAILER, b"transfer-encoding: chunked\r\n\r\n1;"])
@pytest.mark.parametrize("asked_before", [False, True])
async def test_an_endless_head_or_trailer_ends_its_connection(asked_before: bool, begun: bytes) -> None:
    near = ScriptedAgent(lambda _: "Here.", name="near", confidence=0.9)
    async with Hybrid(near=near) as hybrid, served(hybrid) as server:
        host, port = server.address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        if asked_before:
            writer.write(f"GET /health HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
        writer.write(b"GET /health HTTP/1.1\r\n" + begun + b"x-long: ")
        with anyio.fail_after(30), suppress(ConnectionError):
            while not reader.at_eof() and reader.exception() is None:
                writer.write(b"x" * 4096)
                await writer.drain()
        writer.close()
        async with raw_client(server) as client:
            assert (await client.get("/health")).status_code == 200


async def test_a_body_that_arrives_in_many_pieces_is_no_endless_head() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 4096
        yield orjson.dumps({"model": "nearfar/auto", "messages": [{"role": "user", "content": "Look."}]})

    near = ScriptedAgent(lambda _: "Here.", name="near", confidence=0.9)
    async with Hybrid(near=near) as hybrid, served(hybrid) as server, raw_client(server) as client:
        assert (await client.post("/v1/chat/completions", content=pieces(), headers=HEADERS)).status_code == 200


async def test_a_request_that_the_end_cuts_off_is_told_and_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    near = ScriptedAgent(lambda _: "Here.", name="near", confidence=0.9)
    async with Hybrid(near=near) as hybrid:
        async with served(hybrid) as server:
            host, port = server.address.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: 9\r\n\r\n"
            writer.write(head.encode() + b"{")
            await until(lambda: server.live_requests == 1)
        assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        writer.close()
    assert [record.exc_info for record in caplog.records if record.exc_info] == []


async def test_a_request_that_names_two_hosts_is_refused() -> None:
    async with Hybrid(near=ScriptedAgent([], name="near")) as hybrid, served(hybrid) as server:
        host, port = server.address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET /health HTTP/1.1\r\nhost: {host}\r\nhost: evil.example\r\n\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 403 ")
        writer.close()
