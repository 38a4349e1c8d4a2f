"""Tokens that expire, are revoked or replaced while something runs with them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import anyio
import anyio.lowlevel
import pytest
from attached_world import OWN, QUICK, ask, running

from nearfar.protocols import PermissionDenied, ScriptedAgent, TextDelta, Unauthenticated, complete, stream
from nearfar.protocols.access import Clock
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.hub import Hub, serve_hub
from nearfar.protocols.security import Scope, TokenRecord, hashed
from nearfar.protocols.server import Retention, Server, serve
from nearfar.protocols.testing import eventually

pytestmark = pytest.mark.anyio

BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)
OLD = TokenRecord(id="old", caller="laptop", digest=hashed("the old token"))
NEW = TokenRecord(id="new", caller="laptop", digest=hashed("the new token"))
PATIENT = Retention(resume_grace=3600.0)
"""A step that loses its reader goes on."""
BRIEF = replace(OLD, expires=BEGIN + timedelta(hours=1))


class HandMovedClock(Clock):
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self._now = BEGIN
        self._moved = anyio.Event()

    def now(self) -> datetime:
        return self._now

    async def tick(self) -> None:
        await self._moved.wait()

    def pass_by(self, time: timedelta) -> None:
        self._now += time
        self._moved.set()
        self._moved = anyio.Event()


@asynccontextmanager
async def talking(server: Server, token: str) -> AsyncIterator[AsyncIterator[object]]:
    """A step that has begun and does not end, as the holder of a token reads it."""
    client = await RemoteAgent.connect(server.address, token=token)
    try:
        async with stream(client, ask()) as events:
            assert isinstance(await anext(events), TextDelta)
            yield events
    finally:
        await client.aclose()


def endless() -> ScriptedAgent:
    """An agent whose steps end only where they are ended."""
    return ScriptedAgent(lambda request: ["begun", anyio.Event()])


async def test_an_expired_token_is_refused_with_the_time_of_its_end() -> None:
    clock = HandMovedClock()
    async with serve(ScriptedAgent(["yes"]), tokens=[BRIEF], clock=clock) as server:
        client = await RemoteAgent.connect(server.address, token="the old token")
        clock.pass_by(timedelta(minutes=59, seconds=59))
        await complete(client, ask())
        clock.pass_by(timedelta(seconds=1))
        with pytest.raises(Unauthenticated, match="expired at 2026-03-01 13:00 UTC"):
            await complete(client, ask())
        with pytest.raises(Unauthenticated, match="wrong"):
            await RemoteAgent.connect(server.address, token="another token")
        await client.aclose()


async def test_a_step_ends_when_the_token_expires_that_it_was_asked_for_with() -> None:
    clock, agent = HandMovedClock(), endless()
    with anyio.fail_after(20):
        async with (
            serve(agent, tokens=[BRIEF, NEW], retention=PATIENT, clock=clock) as server,
            talking(server, "the old token") as old,
            talking(server, "the new token"),
        ):
            assert server.live_steps == 2
            clock.pass_by(timedelta(hours=1))
            with pytest.raises(Unauthenticated, match="expired"):
                await anext(old)
            await eventually(lambda: server.live_steps == 1)
            assert server.live_calls == 1


async def test_a_worker_is_detached_when_its_token_expires() -> None:
    clock = HandMovedClock()
    worker = replace(BRIEF, caller="phone", scopes=frozenset({Scope.ATTACH}))
    hub = Hub([worker], heartbeat=QUICK, clock=clock)
    with anyio.fail_after(20):
        async with serve_hub(hub) as address, running(ScriptedAgent(["x"]), address, token="the old token") as state:
            await hub.wait_for("phone")
            clock.pass_by(timedelta(hours=2))
            await state.done.wait()
            assert isinstance(state.error, Unauthenticated)
            assert "expired" in state.error.message
            await eventually(lambda: not hub.attached)


async def test_a_revoked_token_ends_what_runs_with_it_and_not_what_its_caller_runs_with_another_one() -> None:
    with anyio.fail_after(20):
        async with serve(endless(), tokens=[OLD, NEW], retention=PATIENT) as server:
            async with talking(server, "the old token") as old, talking(server, "the new token"):
                server.replace_tokens([NEW])
                with pytest.raises(Unauthenticated, match="revoked"):
                    await anext(old)
                await eventually(lambda: server.live_steps == 1)
                with pytest.raises(Unauthenticated, match="wrong"):
                    await RemoteAgent.connect(server.address, token="the old token")
            await (await RemoteAgent.connect(server.address, token="the new token")).aclose()


async def test_a_token_that_is_revoked_while_the_reply_begins_ends_it() -> None:
    with anyio.fail_after(20):
        for turns in range(12):
            agent = ScriptedAgent(["never"], pace=anyio.sleep_forever)
            async with serve(agent, tokens=[OLD, NEW], retention=PATIENT) as server, anyio.create_task_group() as tasks:
                remote = RemoteAgent(server.address, token="the old token")
                tasks.start_soon(_is_revoked, remote)
                while not server.live_steps:
                    await anyio.lowlevel.checkpoint()
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                server.replace_tokens([NEW])


async def _is_revoked(remote: RemoteAgent) -> None:
    with pytest.raises(Unauthenticated, match="revoked"):
        await complete(remote, ask())
    await remote.aclose()


async def test_a_step_that_was_asked_for_with_two_tokens_outlives_the_one() -> None:
    request = ask()
    with anyio.fail_after(20):
        async with serve(endless(), tokens=[OLD, NEW], retention=PATIENT) as server:
            clients = [await RemoteAgent.connect(server.address, token=token) for token in ("the old token", "the new token")]
            async with stream(clients[0], request) as old, stream(clients[1], request) as new:
                await anext(old)
                await anext(new)
                assert server.live_steps == 1
                server.replace_tokens([NEW])
                with pytest.raises(Unauthenticated, match="revoked"):
                    await anext(old)
                assert server.live_steps == 1
                server.replace_tokens([])
                with pytest.raises(Unauthenticated, match="revoked"):
                    await anext(new)
                await eventually(lambda: server.live_steps == 0)
            for client in clients:
                await client.aclose()


async def test_a_rotation_disturbs_nothing_that_runs() -> None:
    gate = anyio.Event()
    agent = ScriptedAgent(lambda request: ["begun", gate, " and done"])
    with anyio.fail_after(20):
        async with serve(agent, tokens=[OLD], clock=HandMovedClock()) as server, talking(server, "the old token") as events:
            server.replace_tokens([BRIEF, NEW])
            gate.set()
            texts = [event.text async for event in events if isinstance(event, TextDelta)]
    assert "".join(texts) == " and done"


async def test_a_token_that_loses_a_scope_loses_what_runs_with_it() -> None:
    with anyio.fail_after(20):
        async with serve(endless(), tokens=[OLD]) as server, talking(server, "the old token") as events:
            server.replace_tokens([replace(OLD, scopes=frozenset({Scope.DESCRIBE}))])
            with pytest.raises(Unauthenticated, match="revoked"):
                await anext(events)
            client = await RemoteAgent.connect(server.address, token="the old token")
            with pytest.raises(PermissionDenied, match="lacks the scope 'steps'"):
                await complete(client, ask())
            await client.aclose()


async def test_a_worker_is_shut_out_with_the_token_that_it_attached_with_alone() -> None:
    old, new = replace(OLD, caller="phone"), replace(NEW, caller="phone")
    hub = Hub([old, new], policies=OWN, heartbeat=QUICK)
    with anyio.fail_after(20):
        async with serve_hub(hub) as address:
            async with running(ScriptedAgent(["x"]), address, token="the new token") as state:
                await hub.wait_for("phone")
                hub.replace_tokens([new])
                assert (await complete(await hub.wait_for("phone"), ask())).text == "x"
                assert not state.done.is_set()
                hub.replace_tokens([replace(old, id="third")])
                await state.done.wait()
                assert isinstance(state.error, Unauthenticated)
            async with running(ScriptedAgent(["y"]), address, token="the old token"):
                await eventually(lambda: list(hub.attached) == ["phone"])


async def test_who_may_only_synchronise_a_memory_is_no_worker() -> None:
    hub = Hub([replace(OLD, scopes=frozenset({Scope.MEMORY})), replace(NEW, caller="phone")])
    assert hub.workers == ("phone",)


async def test_a_caller_that_does_not_read_is_ended_too() -> None:
    agent = ScriptedAgent(lambda request: ["x" * 1_000_000] * 50 + [anyio.Event()])
    with anyio.fail_after(20):
        async with serve(agent, tokens=[OLD]) as server, talking(server, "the old token") as events:
            server.replace_tokens([NEW])
            await eventually(lambda: server.live_calls == 0)
            with pytest.raises(Unauthenticated, match="revoked"):
                await _drained(events)


async def _drained(events: AsyncIterator[object]) -> None:
    async for _ in events:
        pass
