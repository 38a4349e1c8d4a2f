"""What tasks notice of an agent that fails: it is left alone and comes back, and nobody talks over what was shown."""

from collections.abc import Callable, Sequence

import anyio
import pytest
from moved_clock import MovedClock

from nearfar import Hybrid, Policy, Tool, tool
from nearfar.orchestrator.agents.breaker import Health
from nearfar.orchestrator.compose import GatewayConfig
from nearfar.orchestrator.task.events import AgentText, TaskEvent, TaskFinished
from nearfar.orchestrator.task.routing_policy import BreakerConfig
from nearfar.protocols import RateLimited, ScriptedAgent, Side, Stalled, StepRequest, ToolCall, Unavailable
from nearfar.protocols.fakes import Reply
from nearfar.protocols.server import serve
from nearfar.protocols.testing import chaos_proxy

pytestmark = pytest.mark.anyio


class Pair:
    """A near agent that answers, a far one that does as told, and the clock of the far one's health."""

    def __init__(self, far: Sequence[Reply] | Callable[[StepRequest], Reply]) -> None:
        self.near = ScriptedAgent(lambda _: "near", name="near")
        self.far = ScriptedAgent(far, name="far", side=Side.FAR)
        self.clock = MovedClock()

    def hybrid(self, **policy: object) -> Hybrid:
        given = Policy.model_validate({"strategy": "cloud", "sensitivity": "public", **policy})
        hybrid = Hybrid(near=self.near, far=self.far, policy=given)
        hybrid.pool["far"].health = Health("far", monotonic=self.clock, chance=lambda: 0.5)
        return hybrid


async def test_an_agent_that_is_down_is_left_out_and_comes_back() -> None:
    pair = Pair([Unavailable("down"), Unavailable("down"), Unavailable("down"), "far again", "and again", "for good"])
    async with pair.hybrid() as hybrid:
        for _ in range(3):
            assert (await hybrid.run("hello")).text == "near"
        result = await hybrid.run("hello")
        assert len(pair.far.requests) == 3
        assert result.decision.candidates == ("near",)
        assert "far left out: circuit breaker open, retrying in 5.0 s (unreachable: 3 failures in a row: Unavailable)" in result.reasons
        assert hybrid.explain_route("hello").considered[-1].objection is not None
        pair.clock.now += BreakerConfig().open_seconds
        assert [(await hybrid.run("hello")).text for _ in range(2)] == ["far again", "and again"]
        result = await hybrid.run("hello")
        assert result.text == "for good"
    assert not any("half-open" in reason for reason in result.reasons)


async def test_an_agent_is_not_asked_before_the_time_that_it_named() -> None:
    pair = Pair([RateLimited("slow down", retry_after=60), "far"])
    async with pair.hybrid() as hybrid:
        for _ in range(3):
            assert (await hybrid.run("hello")).text == "near"
        pair.clock.now += 59
        assert (await hybrid.run("hello")).text == "near"
        assert len(pair.far.requests) == 1
        pair.clock.now += 1
        assert (await hybrid.run("hello")).text == "far"


async def test_where_nobody_may_be_asked_the_task_fails_at_once_and_says_when_to_come_back() -> None:
    pair = Pair(lambda _: RateLimited("slow down", retry_after=60))
    async with pair.hybrid(mode="only_in_cloud") as hybrid:
        with pytest.raises(RateLimited):
            await hybrid.run("hello")
        with pytest.raises(Unavailable, match="no agent may be asked now") as caught:
            await hybrid.run("hello")
    assert caught.value.retry_after == 60
    assert len(pair.far.requests) == 1


async def test_a_supervisor_that_is_down_is_left_out_and_the_executor_works_alone() -> None:
    pair = Pair(lambda _: RateLimited("slow down", retry_after=60))
    async with pair.hybrid(strategy="pevr") as hybrid:
        assert (await hybrid.run("hello")).text == "near"
        asked = len(pair.far.requests)
        result = await hybrid.run("hello")
    assert (result.text, result.decision.supervisor, len(pair.far.requests)) == ("near", None, asked)


async def test_tasks_at_once_send_one_probe_and_the_others_stay_on_the_device() -> None:
    gate = anyio.Event()
    pair = Pair([Unavailable("down", retry_after=5), [gate, "far"]])
    results = []

    async def run() -> None:
        results.append(await hybrid.run("hello"))
        if len(results) == 9:
            gate.set()

    async with pair.hybrid() as hybrid:
        await hybrid.run("hello")
        pair.clock.now += 5
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    tasks.start_soon(run)
    assert [result.text for result in results] == ["near"] * 9 + ["far"]
    assert len(pair.far.requests) == 2


async def test_the_time_that_a_model_takes_to_load_is_not_taken_from_its_steps() -> None:
    pair = Pair(["far"])
    replies: list[Reply] = [ToolCall(id="1", name="look", arguments={}), "near"]
    pair.near = ScriptedAgent(replies, name="near")
    limit = 0.5

    async def load() -> ScriptedAgent:
        await anyio.sleep(limit)
        return pair.near

    @tool(effect="read")
    def look() -> str:
        """Look."""
        return "seen"

    async with pair.hybrid(strategy="route", mode="prefer_on_device", attempt_timeout=limit) as hybrid:
        hybrid.pool["near"]._agent, hybrid.pool["near"]._source = None, load
        await hybrid.run("hello", tools=[look])
    assert len(pair.near.requests) == 2
    assert all((request.timeout or 0) > 0.001 for request in pair.near.requests)  # the least that a step is given


async def test_many_tasks_that_wait_for_one_connection_hear_of_its_failure_together() -> None:
    opened, gate = 0, anyio.Event()

    async def open_far() -> ScriptedAgent:
        nonlocal opened
        opened += 1
        await gate.wait()
        raise Unavailable("down")

    pair = Pair([])
    async with pair.hybrid() as hybrid:
        hybrid.pool["far"]._agent, hybrid.pool["far"]._source = None, open_far
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    tasks.start_soon(hybrid.run, "hello")
                await anyio.wait_all_tasks_blocked()
                gate.set()
    assert opened == 1


async def test_an_agent_in_the_cloud_that_falls_silent_hands_over() -> None:
    pair = Pair([[anyio.Event()], ["half ", anyio.Event()]])
    async with pair.hybrid(fallback={"first_token_timeout": 0.05, "stall_timeout": 0.05}) as hybrid:
        for _ in range(2):
            result = await hybrid.run("hello")
            assert result.text == "near"
            assert result.attempts[0].reason.startswith("Stalled: the agent sent nothing for 0.05 s")
    assert pair.far.cancelled_steps == 2


async def test_an_agent_that_nobody_could_stand_in_for_is_waited_for() -> None:
    gate = anyio.Event()
    pair = Pair([[gate, "late"]])
    async with pair.hybrid(mode="only_in_cloud", fallback={"first_token_timeout": 0.001}) as hybrid, anyio.create_task_group() as tasks:
        tasks.start_soon(_set_when_asked, pair.far, gate)
        assert (await hybrid.run("hello")).text == "late"


async def _set_when_asked(agent: ScriptedAgent, gate: anyio.Event) -> None:
    with anyio.fail_after(10):
        while not agent.requests:
            await anyio.lowlevel.checkpoint()
    await anyio.wait_all_tasks_blocked()
    gate.set()


BROKEN: list[Reply] = [["Lima is ", Stalled("gone")]]


async def test_nobody_talks_over_what_was_shown() -> None:
    pair = Pair(BROKEN)
    shown: list[TaskEvent] = []
    async with pair.hybrid() as hybrid:
        with pytest.raises(Stalled) as caught:
            await _collect(hybrid, shown)
    assert [event.text for event in shown if isinstance(event, AgentText)] == ["Lima is "]
    assert "some of the answer was shown" in caught.value.__notes__[0]
    assert pair.near.requests == []


async def test_another_agent_starts_over_where_the_user_allows_it() -> None:
    pair = Pair(BROKEN)
    async with pair.hybrid(fallback={"after_first_token": "restart"}) as hybrid:
        events = [event async for event in hybrid.stream("hello")]
    assert isinstance(events[-1], TaskFinished)
    assert events[-1].result.text == "near"


async def test_what_nobody_was_shown_is_started_over() -> None:
    pair = Pair(BROKEN)
    async with pair.hybrid() as hybrid:
        assert (await hybrid.run("hello")).text == "near"


async def test_a_failure_before_the_first_word_hands_over_in_a_stream_too() -> None:
    pair = Pair([Unavailable("down")])
    async with pair.hybrid() as hybrid:
        events = [event async for event in hybrid.stream("hello")]
    assert isinstance(events[-1], TaskFinished)
    assert events[-1].result.text == "near"


async def test_words_beside_a_tool_call_count_as_shown_in_later_steps() -> None:
    @tool(effect="read")
    def look() -> str:
        """Look."""
        return "seen"

    pair = Pair([["I shall look. ", ToolCall(id="1", name="look", arguments={})], Unavailable("down")])
    async with pair.hybrid() as hybrid:
        with pytest.raises(Unavailable):
            await _collect(hybrid, [], tools=[look])


async def test_a_call_without_words_shows_nothing() -> None:
    @tool(effect="read")
    def look() -> str:
        """Look."""
        return "seen"

    pair = Pair([ToolCall(id="1", name="look", arguments={}), Unavailable("down")])
    events: list[TaskEvent] = []
    async with pair.hybrid() as hybrid:
        await _collect(hybrid, events, tools=[look])
    assert isinstance(events[-1], TaskFinished)


async def _collect(hybrid: Hybrid, shown: list[TaskEvent], *, tools: Sequence[Tool] = ()) -> None:
    async for event in hybrid.stream("hello", tools=tools):
        shown.append(event)


async def test_a_gateway_that_is_back_is_found_in_the_background_and_no_task_waits_for_one_that_is_not() -> None:
    clock = MovedClock()
    near, far = ScriptedAgent(lambda _: "near", name="near"), ScriptedAgent(lambda _: "far", name="far", side=Side.FAR)
    policy = Policy.model_validate({"strategy": "cloud", "sensitivity": "public"})
    async with serve(far) as server, chaos_proxy(server.address) as proxy:
        gateway = GatewayConfig(provider="gateway", address=proxy.address)
        with anyio.fail_after(60):
            async with Hybrid(near=near, far=gateway, policy=policy) as hybrid:
                hybrid.pool["far"].health = Health("far", monotonic=clock, chance=lambda: 0.5)
                assert (await hybrid.run("hello")).text == "far"
                await proxy.refuse()
                proxy.reset()
                assert [(await hybrid.run("hello")).text for _ in range(3)] == ["near"] * 3
                clock.now += 5
                results = [await hybrid.run("hello")]
                await proxy.resume()
                while results[-1].text == "near":  # until gRPC, too, tries to connect again
                    clock.now += BreakerConfig().longest_open_seconds
                    results.append(await hybrid.run("hello"))
    assert [len(result.attempts) for result in results] == [1] * len(results)
    assert len(far.requests) == 2
