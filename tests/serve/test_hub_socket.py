"""Workers attach to the hub by WebSocket; whatever one sends, its connection is closed with a typed reason, and others are unharmed."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

pytest.importorskip("websockets", reason="the hub's page is an extra: pip install 'nearfar[serve]'")
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from nearfar.orchestrator.compose.hub import PageModel, ServeConfig
from nearfar.orchestrator.serve.hub import PROTOCOL, serve_page
from nearfar.protocols import Message, NearfarError, Side, StepRequest, TextDelta, Unavailable, complete, stream
from nearfar.protocols.hub import Heartbeat, Hub, WorkerTerms
from nearfar.protocols.limits import FRAME_BYTES
from nearfar.protocols.security import Scope, token_records
from nearfar.protocols.testing import eventually
from nearfar.protocols.token_file import add_token, load_tokens

pytestmark = pytest.mark.anyio

TOKENS = {"phone": "the token of the phone", "tablet": "the token of the tablet"}
QUICK = Heartbeat(interval=0.1, silence_limit=0.5)
SLOW = Heartbeat(interval=10.0, silence_limit=30.0)
CARD = {"name": "raw", "side": "SIDE_NEAR", "model": "raw", "capabilities": {"tools": True, "cancellation": True}}
REGISTER = {"register": {"instance": "raw", "agents": [CARD]}}
FINISHED = {"finished": {"reason": "FINISH_REASON_STOP", "model": "raw", "usage": {"inputTokens": "3", "outputTokens": "1"}}}


def ask(text: str = "go") -> StepRequest:
    return StepRequest(messages=(Message.user(text),))


class RawWorker:
    """A worker that sends exactly what the test says."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def say(self, message: object) -> None:
        await self.socket.send(json.dumps(message))

    async def attach(self, token: str = TOKENS["phone"], register: object = REGISTER) -> dict[str, Any]:
        await self.socket.send(token)
        await self.say(register)
        return await self.hear("registered")

    async def hear(self, kind: str) -> dict[str, Any]:
        """Return the next message of a kind; heartbeats are answered meanwhile."""
        while True:
            message = json.loads(await self.socket.recv())
            if kind in message:
                return dict(message[kind])
            if "heartbeat" in message:
                await self.say({"heartbeat": {}})

    async def closed(self) -> tuple[int, str]:
        """Return the code and the reason with which the hub closes the connection."""
        with suppress(ConnectionClosed):
            while True:
                await self.socket.recv()
        assert self.socket.close_code is not None, "the connection broke without a close frame"
        return self.socket.close_code, self.socket.close_reason or ""

    async def answer(self, text: str) -> None:
        start = await self.hear("start")
        await self.say({"output": {"step": start["step"], "event": {"text": text}}})
        await self.say({"output": {"step": start["step"], "event": FINISHED}})


@asynccontextmanager
async def served(tmp_path: Path, heartbeat: Heartbeat = SLOW) -> AsyncIterator[tuple[Hub, Callable[..., connect]]]:
    """A hub with its page, and a function that connects to it."""
    hub = Hub(TOKENS, policies={name: WorkerTerms(side=Side.NEAR) for name in TOKENS}, heartbeat=heartbeat)
    model = PageModel(described={"name": "raw"}, parts={})
    with anyio.fail_after(30):
        async with serve_page(hub, model, tmp_path, ServeConfig(address="127.0.0.1:0")) as url:

            def link(*protocols: str) -> connect:
                wanted = tuple(map(Subprotocol, protocols or (PROTOCOL,)))
                return connect(f"{url.replace('http', 'ws')}/attach", subprotocols=wanted, max_size=None)

            yield hub, link


@asynccontextmanager
async def attacked(tmp_path: Path, heartbeat: Heartbeat = SLOW) -> AsyncIterator[tuple[Hub, RawWorker]]:
    """A hub and a worker that is about to attack it; afterwards an honest one is still served."""
    async with served(tmp_path, heartbeat) as (hub, link), link() as honest_socket:
        honest = RawWorker(honest_socket)
        await honest.attach(TOKENS["tablet"])
        async with link() as socket:
            yield hub, RawWorker(socket)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(honest.answer, "honest")
            assert (await complete(hub.agent("tablet"), ask())).text == "honest"


async def test_a_worker_in_json_serves_a_step(tmp_path: Path) -> None:
    async with served(tmp_path) as (hub, link), link() as socket:
        worker = RawWorker(socket)
        registered = await worker.attach()
        assert registered == {"worker": "phone", "heartbeatInterval": 10.0, "silenceLimit": 30.0}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.answer, "Grüße")
            reply = await complete(hub.agent("phone"), ask())
        assert (reply.text, reply.finished.usage.input_tokens) == ("Grüße", 3)


async def test_a_reader_that_leaves_cancels_the_step(tmp_path: Path) -> None:
    async with served(tmp_path) as (hub, link), link() as socket:
        worker = RawWorker(socket)
        await worker.attach()
        async with anyio.create_task_group() as tasks:

            async def begin() -> None:
                start = await worker.hear("start")
                await worker.say({"output": {"step": start["step"], "event": {"text": "a"}}})
                assert await worker.hear("cancel") == {"step": start["step"]}

            tasks.start_soon(begin)
            async with stream(hub.agent("phone"), ask()) as events:
                assert await anext(aiter(events)) == TextDelta(text="a")


async def test_a_worker_that_leaves_in_order_is_detached_without_an_error(tmp_path: Path) -> None:
    async with served(tmp_path) as (hub, link), link() as socket:
        worker = RawWorker(socket)
        await worker.attach()
        await worker.say({"draining": {}})
        await eventually(lambda: hub.attached["phone"].is_draining)
        with pytest.raises(Unavailable, match="is leaving"):
            await complete(hub.agent("phone"), ask())
        session = hub.attached["phone"]
        await socket.close(1000)
        assert await session.closed() is None


@pytest.mark.parametrize("frame", [
    "{", "[]", "null", "42", '"register"', "[" * 100_000, '{"register": 5}', '{"output": {"step": -1}}', '{"output": {"step": "many"}}',
    '{"unheard": {}}', '{"register": {"instance": "raw"}, "draining": {}}', '{"heartbeat": {"state": {"battery": "NaN"}}}', "\0",
], ids=lambda frame: repr(frame[:30]))  # fmt: skip
async def test_garbage_ends_its_connection_alone(frame: str, tmp_path: Path) -> None:
    async with attacked(tmp_path) as (hub, worker):
        await worker.attach()
        session = hub.attached["phone"]
        await worker.socket.send(frame)
        code, reason = await worker.closed()
        assert (code, reason.partition(":")[0]) == (4400, "InvalidRequest")
        assert session.is_closed


async def test_a_binary_frame_is_refused(tmp_path: Path) -> None:
    async with attacked(tmp_path) as (_, worker):
        await worker.attach()
        await worker.socket.send(b"\x0a\x00")
        assert await worker.closed() == (4400, "InvalidRequest: frames are text, and the worker sent a binary one")


@pytest.mark.parametrize("size", [FRAME_BYTES + 1, 10 * 1024 * 1024])
async def test_a_frame_that_is_too_large_ends_its_connection(size: int, tmp_path: Path) -> None:
    async with attacked(tmp_path) as (hub, worker):
        await worker.attach()
        session = hub.attached["phone"]
        with suppress(ConnectionClosed):  # the hub does not wait for the rest of it
            await worker.socket.send("x" * size)
        code, _ = await worker.closed()
        assert code == 1009  # RFC 6455: the message is too big
        await session.closed()


@pytest.mark.parametrize(("protocols", "accepted"), [(("nearfar.v2",), "nearfar.v2"), (("chat", "soap"), "chat")])
async def test_another_version_is_told_which_one_the_hub_speaks(protocols: tuple[str, ...], accepted: str, tmp_path: Path) -> None:
    async with served(tmp_path) as (_, link), link(*protocols) as socket:
        assert socket.subprotocol == accepted
        assert await RawWorker(socket).closed() == (
            4400,
            "InvalidRequest: this hub speaks nearfar.v1: name it as the WebSocket's subprotocol",
        )


async def test_a_wrong_token_is_refused(tmp_path: Path) -> None:
    async with attacked(tmp_path) as (hub, worker):
        await worker.socket.send("a token of nobody's")
        assert await worker.closed() == (4401, "Unauthenticated: the token is wrong")
        assert "phone" not in hub.attached


async def test_a_token_without_the_scope_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    made = add_token(file, "visitor", scopes=(Scope.DESCRIBE,))
    async with attacked(tmp_path) as (hub, worker):
        hub.replace_tokens([*token_records(TOKENS), *load_tokens(file)])
        await worker.socket.send(made.token)
        code, reason = await worker.closed()
        assert (code, reason.partition(":")[0]) == (4403, "PermissionDenied")


async def test_a_second_worker_with_the_same_token_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    async with served(tmp_path) as (hub, link), link() as first, link() as second:
        await RawWorker(first).attach()
        await second.send(TOKENS["phone"])
        await RawWorker(second).say({"register": {"instance": "another", "agents": [CARD]}})
        assert await RawWorker(second).closed() == (4400, "ConfigError: another worker is attached as 'phone'")
        assert hub.attached["phone"].instance == "raw"


async def test_the_same_worker_replaces_its_broken_connection(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, link), link() as first, link() as second:
        await RawWorker(first).attach()
        await RawWorker(second).attach()
        assert await RawWorker(first).closed() == (4503, "Unavailable: the worker attached again")


async def test_a_revoked_token_ends_the_connection(tmp_path: Path) -> None:
    async with served(tmp_path) as (hub, link), link() as socket:
        worker = RawWorker(socket)
        await worker.attach()
        hub.revoke("phone")
        code, reason = await worker.closed()
        assert (code, reason.partition(":")[0]) == (4401, "Unauthenticated")


async def test_a_connection_outlives_the_limit_of_its_handshake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfar.orchestrator.serve.HANDSHAKE_SECONDS", QUICK.interval / 2)
    async with served(tmp_path, QUICK) as (hub, link), link() as socket:
        worker = RawWorker(socket)
        await worker.attach()
        for _ in range(3):
            await worker.hear("heartbeat")
            await worker.say({"heartbeat": {}})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.answer, "still here")
            assert (await complete(hub.agent("phone"), ask())).text == "still here"


async def test_a_silent_worker_loses_its_steps(tmp_path: Path) -> None:
    async with served(tmp_path, QUICK) as (hub, link), link() as socket:
        worker = RawWorker(socket)
        await worker.attach()
        with pytest.raises(NearfarError, match="silent for too long"):
            await complete(hub.agent("phone"), ask())
        assert await worker.closed() == (4503, "Unavailable: the worker was silent for too long")


async def test_a_connection_that_breaks_fails_its_step_at_once(tmp_path: Path) -> None:
    async with served(tmp_path) as (hub, link), link() as socket:
        worker = RawWorker(socket)
        await worker.attach()

        async def cut() -> None:
            await worker.hear("start")
            worker.socket.transport.abort()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cut)
            with pytest.raises(Unavailable, match="the connection was lost"):
                await complete(hub.agent("phone"), ask())


async def test_the_hub_says_goodbye_when_it_closes(tmp_path: Path) -> None:
    async with served(tmp_path) as (hub, link), link() as socket:
        worker = RawWorker(socket)
        await worker.attach()
        await hub.close()
        assert await worker.closed() == (4503, "Unavailable: the hub is shutting down")


async def test_a_model_file_that_was_deleted_is_named(tmp_path: Path) -> None:
    sha256 = "a" * 64
    model = PageModel(described={"name": "raw"}, parts={sha256: tmp_path / "deleted"})
    async with (
        serve_page(Hub(TOKENS), model, tmp_path, ServeConfig(address="127.0.0.1:0")) as url,
        httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {TOKENS['phone']}"}) as client,
    ):
        response = await client.get(f"/model/{sha256}")
    assert (response.status_code, response.json()["error"]["message"].split(" (")[0]) == (503, "the hub's copy of the model was deleted")
