"""A step whose connection breaks goes on where it was, and its agent runs once."""

import random

import anyio
import pytest

from nearfar.protocols import (
    DeadlineExceeded,
    Finished,
    IdempotencyConflict,
    InvalidOutput,
    Message,
    ResumeLost,
    ScriptedAgent,
    StepEvent,
    StepRequest,
    TextDelta,
    Unavailable,
    client,
    complete,
    stream,
)
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.fakes import Reply
from nearfar.protocols.server import Retention, serve
from nearfar.protocols.testing import ChaosProxy, chaos_proxy, eventually

pytestmark = pytest.mark.anyio

PIECES = [f"piece {number}; " for number in range(40)]


def ask(text: str = "go", **fields: object) -> StepRequest:
    return StepRequest.model_validate({"messages": (Message.user(text),), **fields})


def text_of(events: list[StepEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


class Interrupted:
    """An agent that pauses after a number of events, until the test has broken the connection."""

    def __init__(self) -> None:
        self.pause_after = 0
        self.gate = anyio.Event()
        self.agent = ScriptedAgent(self._answer)

    def rearm(self, pause_after: int) -> None:
        self.pause_after, self.gate = pause_after, anyio.Event()

    def _answer(self, request: StepRequest) -> Reply:
        return [*PIECES[: self.pause_after], self.gate, *PIECES[self.pause_after :]]


async def read_with_reset(remote: RemoteAgent, interrupted: Interrupted, proxy: ChaosProxy) -> list[StepEvent]:
    """Read a step whose connection is reset once `pause_after` events have come."""
    events: list[StepEvent] = []
    async with stream(remote, ask()) as incoming:
        async for event in incoming:
            events.append(event)
            if len(events) == interrupted.pause_after:
                proxy.reset()
                interrupted.gate.set()
    return events


async def test_reset_after_any_event_leaves_the_text_exact_and_runs_the_agent_once() -> None:
    interrupted = Interrupted()
    with anyio.fail_after(100):
        async with serve(interrupted.agent) as server, chaos_proxy(server.address) as proxy:
            remote = await RemoteAgent.connect(proxy.address, resume_timeout=30)
            for run, count in enumerate(random.sample(range(1, len(PIECES) + 1), 20) + random.choices(range(1, len(PIECES) + 1), k=30), 1):
                interrupted.rearm(count)
                events = await read_with_reset(remote, interrupted, proxy)
                assert [event.text for event in events[:-1] if isinstance(event, TextDelta)] == PIECES
                assert isinstance(events[-1], Finished)
                assert len(interrupted.agent.requests) == run
                assert proxy.connections == run + 1
            await remote.aclose()


async def test_reset_at_any_byte_leaves_the_text_exact() -> None:
    agent = ScriptedAgent(lambda request: PIECES)
    with anyio.fail_after(100):
        async with serve(agent) as server, chaos_proxy(server.address) as proxy:
            remote = await RemoteAgent.connect(proxy.address, resume_timeout=30)
            for run, count in enumerate(random.sample(range(100, 900), 10), 1):
                proxy.reset_after(count)
                request = ask(f"run {run}")
                try:
                    reply = await complete(remote, request)
                except Unavailable:  # the reset took the server's acceptance with it, so the client could not know that there was one
                    reply = await complete(remote, request)
                assert reply.text == "".join(PIECES)
                assert len(agent.requests) == run
            await remote.aclose()


async def test_reset_before_the_first_event_is_resumed_too() -> None:
    gate = anyio.Event()
    agent = ScriptedAgent([[gate, "late"]])
    with anyio.fail_after(60):
        async with serve(agent) as server, chaos_proxy(server.address) as proxy:
            remote = await RemoteAgent.connect(proxy.address, resume_timeout=30)

            async def break_it() -> None:
                await eventually(lambda: server.live_calls == 1)
                await accepted_bytes_have_passed(remote)
                proxy.reset()
                await eventually(lambda: proxy.connections == 2 and server.live_calls == 1)
                gate.set()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(break_it)
                assert (await complete(remote, ask())).text == "late"
            assert len(agent.requests) == 1
            await remote.aclose()


async def test_step_that_failed_while_its_client_was_away_is_not_run_again() -> None:
    gate = anyio.Event()
    agent = ScriptedAgent([[gate, InvalidOutput("a malformed tool call")], ["a second run"]])
    with anyio.fail_after(60):
        async with serve(agent) as server, chaos_proxy(server.address) as proxy:
            remote = await RemoteAgent.connect(proxy.address, resume_timeout=30)

            async def fail_unseen() -> None:
                await eventually(lambda: server.live_calls == 1)
                await accepted_bytes_have_passed(remote)
                await cut_off(proxy)
                await eventually(lambda: server.live_calls == 0)
                gate.set()
                await eventually(lambda: server.live_steps == 0)
                await proxy.resume()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(fail_unseen)
                with pytest.raises(InvalidOutput, match="a malformed tool call"):
                    await complete(remote, ask())
            assert len(agent.requests) == 1
            await remote.aclose()


async def accepted_bytes_have_passed(remote: RemoteAgent) -> None:
    """A reply on the same connection came behind everything that was sent on it before."""
    await remote.describe()


async def test_refused_reconnection_gives_up_with_unavailable() -> None:
    interrupted = Interrupted()
    interrupted.rearm(3)
    with anyio.fail_after(60):
        async with serve(interrupted.agent) as server, chaos_proxy(server.address) as proxy:
            remote = await RemoteAgent.connect(proxy.address, resume_timeout=0.2)
            async with stream(remote, ask()) as events:
                for _ in range(3):
                    await anext(aiter(events))
                await cut_off(proxy)
                with pytest.raises(Unavailable, match="after 3 events"):
                    await anext(aiter(events))
            await remote.aclose()


async def test_deadline_ends_the_attempts_to_resume() -> None:
    interrupted = Interrupted()
    interrupted.rearm(1)
    with anyio.fail_after(60):
        async with serve(interrupted.agent) as server, chaos_proxy(server.address) as proxy:
            remote = await RemoteAgent.connect(proxy.address, resume_timeout=1000)
            async with stream(remote, ask(timeout=1.0)) as events:
                await anext(aiter(events))
                await cut_off(proxy)
                with pytest.raises(DeadlineExceeded):
                    await anext(aiter(events))
            await remote.aclose()


async def test_closing_the_client_ends_its_attempts_to_resume() -> None:
    interrupted = Interrupted()
    interrupted.rearm(1)
    with anyio.fail_after(60):
        async with serve(interrupted.agent) as server, chaos_proxy(server.address) as proxy:
            remote = await RemoteAgent.connect(proxy.address, resume_timeout=1000)

            async def close_when_it_has_come_back() -> None:
                await eventually(lambda: proxy.connections == 2)
                await anyio.wait_all_tasks_blocked()
                await remote.aclose()

            async with stream(remote, ask()) as events, anyio.create_task_group() as tasks:
                await anext(aiter(events))
                proxy.black_hole()
                proxy.reset()
                tasks.start_soon(close_when_it_has_come_back)
                with pytest.raises(Unavailable, match="is closed"):
                    await anext(aiter(events))


async def test_step_is_stopped_when_its_reader_stays_away() -> None:
    interrupted = Interrupted()
    interrupted.rearm(1)
    agent = interrupted.agent
    with anyio.fail_after(60):
        async with serve(agent, retention=Retention(resume_grace=0.1)) as server, chaos_proxy(server.address) as proxy:
            remote = await RemoteAgent.connect(proxy.address, resume_timeout=0.0)
            async with stream(remote, ask()) as events:
                await anext(aiter(events))
                await cut_off(proxy)
                with pytest.raises(Unavailable):
                    await anext(aiter(events))
            await eventually(lambda: server.live_steps == 0)
            assert (agent.live_steps, agent.cancelled_steps) == (0, 1)
            await remote.aclose()


async def cut_off(proxy: ChaosProxy) -> None:
    await proxy.refuse()
    proxy.reset()


async def test_black_hole_is_noticed_by_keepalive() -> None:
    interrupted = Interrupted()
    interrupted.rearm(1)
    with anyio.fail_after(60):
        async with serve(interrupted.agent) as server, chaos_proxy(server.address) as proxy:
            remote = await RemoteAgent.connect(proxy.address, idle_timeout=1000, resume_timeout=0.5)
            async with stream(remote, ask()) as events:
                await anext(aiter(events))
                with anyio.move_on_after(0.5):  # until no ping of another kind is under way, which would notice it too
                    await anyio.Event().wait()
                proxy.black_hole()
                with pytest.raises(Unavailable):
                    await anext(aiter(events))
            await remote.aclose()


async def test_silent_pings_do_not_end_a_healthy_call() -> None:
    """Longer than four pings, after which a server that does not expect them ends the connection."""
    with anyio.fail_after(60):
        async with serve(ScriptedAgent(["late"], pace=10.0)) as server, chaos_proxy(server.address) as proxy:
            remote = await RemoteAgent.connect(proxy.address, resume_timeout=0.0)
            assert (await complete(remote, ask())).text == "late"
            assert proxy.connections == 1
            await remote.aclose()


async def test_same_key_and_request_join_one_step() -> None:
    gate = anyio.Event()
    agent = ScriptedAgent([["once ", gate, "only"]])
    texts: list[str] = []
    with anyio.fail_after(60):
        async with serve(agent) as server:
            first, second = [await RemoteAgent.connect(server.address) for _ in range(2)]

            async def read(remote: RemoteAgent) -> None:
                texts.append((await complete(remote, ask(idempotency_key="shared"))).text)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read, first)
                tasks.start_soon(read, second)
                await eventually(lambda: server.live_calls == 2)
                gate.set()
            replayed = await complete(first, ask(idempotency_key="shared"))
            for remote in (first, second):
                await remote.aclose()
    assert [*texts, replayed.text] == ["once only"] * 3
    assert len(agent.requests) == 1


async def test_leaving_a_shared_step_does_not_end_it_for_the_other_reader() -> None:
    gate = anyio.Event()
    agent = ScriptedAgent([["both ", gate, "one"]])
    with anyio.fail_after(60):
        async with serve(agent) as server:
            first, second = [await RemoteAgent.connect(server.address) for _ in range(2)]
            async with stream(first, ask(idempotency_key="shared")) as left, stream(second, ask(idempotency_key="shared")) as kept:
                await anext(aiter(left))
                await anext(aiter(kept))
                await left.aclose()
                await eventually(lambda: server.live_calls == 1)
                gate.set()
                rest = [event async for event in kept]
            assert text_of(rest) == "one"
            assert agent.cancelled_steps == 0
            for remote in (first, second):
                await remote.aclose()


async def test_same_key_for_another_request_conflicts() -> None:
    with anyio.fail_after(60):
        async with serve(ScriptedAgent(["one", "two"])) as server:
            remote = await RemoteAgent.connect(server.address)
            await complete(remote, ask("first", idempotency_key="shared"))
            with pytest.raises(IdempotencyConflict):
                await complete(remote, ask("second", idempotency_key="shared"))
            await remote.aclose()


async def test_callers_do_not_share_keys() -> None:
    agent = ScriptedAgent(["for ann", "for bob"])
    with anyio.fail_after(60):
        async with serve(agent, tokens={"ann": "token-a", "bob": "token-b"}) as server:
            texts = []
            for token in ("token-a", "token-b"):
                remote = await RemoteAgent.connect(server.address, token=token)
                texts.append((await complete(remote, ask(idempotency_key="shared"))).text)
                await remote.aclose()
    assert texts == ["for ann", "for bob"]


async def test_restarted_server_has_lost_the_step() -> None:
    interrupted = Interrupted()
    interrupted.rearm(2)
    with anyio.fail_after(60):
        async with serve(interrupted.agent) as first, chaos_proxy(first.address) as proxy:
            remote = await RemoteAgent.connect(proxy.address, resume_timeout=30)
            async with serve(ScriptedAgent([])) as second, stream(remote, ask()) as events:
                for _ in range(2):
                    await anext(aiter(events))
                proxy.retarget(second.address)
                proxy.reset()
                with pytest.raises(ResumeLost):
                    await anext(aiter(events))
            await remote.aclose()


async def test_reset_before_the_server_has_said_anything_runs_the_agent_once() -> None:
    agent = ScriptedAgent(lambda _: PIECES)
    with anyio.fail_after(60):
        async with serve(agent) as server, chaos_proxy(server.address) as proxy:
            remote = await RemoteAgent.connect(proxy.address)
            for run, byte in enumerate(range(1, 60, 2), 1):
                proxy.reset_after(byte)
                assert (await complete(remote, ask())).text == "".join(PIECES)
                assert len(agent.requests) == run
            assert proxy.connections == run + 1


async def test_a_step_that_never_reached_the_server_is_sent_again() -> None:
    agent = ScriptedAgent(["answer"])
    with anyio.fail_after(30):
        async with serve(agent) as server, chaos_proxy(server.address) as proxy:
            remote = await RemoteAgent.connect(proxy.address)
            proxy.black_hole()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_reset_once, proxy)
                assert (await complete(remote, ask())).text == "answer"
    assert len(agent.requests) == 1


async def test_a_step_is_looked_for_again_where_the_next_connection_breaks_too() -> None:
    agent = ScriptedAgent(lambda _: "answer")
    with anyio.fail_after(30):
        async with serve(agent) as server, chaos_proxy(server.address) as proxy:
            remote = await RemoteAgent.connect(proxy.address)
            for run, byte in enumerate(range(40, 140, 20), 1):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_reset_next, proxy, byte)
                    proxy.reset_after(1)
                    assert (await complete(remote, ask())).text == "answer"
                assert len(agent.requests) == run
            await remote.aclose()


async def test_whoever_leaves_a_step_does_not_wait_for_a_server_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_CANCEL_LIMIT", 3600.0)
    agent = ScriptedAgent(lambda _: ["first", anyio.Event()])
    with anyio.fail_after(60):
        async with serve(agent, retention=Retention(resume_grace=600)) as server, chaos_proxy(server.address) as proxy:
            remote = await RemoteAgent.connect(proxy.address)
            async with stream(remote, ask()) as events:
                await anext(aiter(events))
                proxy.black_hole()
            await proxy.resume()
            await remote.aclose()
    assert agent.cancelled_steps == 1


async def test_a_step_that_is_left_while_its_connection_breaks_is_cancelled_all_the_same() -> None:
    agent = ScriptedAgent(lambda _: ["first", anyio.Event()])
    with anyio.fail_after(30):  # less than the server would wait for its reader
        async with serve(agent, retention=Retention(resume_grace=600)) as server, chaos_proxy(server.address) as proxy:
            for run in range(1, 31):
                remote = await RemoteAgent.connect(proxy.address)
                async with stream(remote, ask()) as events:
                    await anext(aiter(events))
                    proxy.reset()
                while agent.cancelled_steps < run:
                    await anyio.lowlevel.checkpoint()
                await remote.aclose()


async def _reset_next(proxy: ChaosProxy, count: int) -> None:
    """The connection that follows the one that breaks now."""
    before = proxy.connections
    while proxy.connections == before:
        await anyio.lowlevel.checkpoint()
    proxy.reset_after(count)


async def _reset_once(proxy: ChaosProxy) -> None:
    await anyio.wait_all_tasks_blocked()
    await proxy.resume()
    proxy.reset()
