"""Asking a second agent where the first takes unusually long: who wins, what it costs, and when nobody is asked beside."""

from collections.abc import Callable, Sequence

import anyio
import pytest
from http_server import Exchange, http_server
from real_gateway import said

from nearfar import Hybrid, Policy, Result, Tool, tool
from nearfar.cloud.gateway import serve_gateway
from nearfar.cloud.openai import OpenAIDialect
from nearfar.cloud.provider import ProviderAgent
from nearfar.orchestrator.compose import GatewayConfig
from nearfar.orchestrator.routing.costs import StepTaken
from nearfar.orchestrator.strategies.attempts import Race
from nearfar.orchestrator.task.events import AgentText, AttemptStarted, TaskEvent, TaskFinished
from nearfar.protocols import ContextOverflow, Message, NearfarError, Prices, ScriptedAgent, Side, StepRequest, ToolCall, Unavailable
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio
Answer = Callable[[StepRequest], Reply]
DELAY = 1.0


def never() -> anyio.Event:
    return anyio.Event()


class Pair:
    """A far agent that usually answers in a millisecond, and a near one that may be asked beside it."""

    def __init__(self, far: Answer, near: Answer = lambda _: "near", *, prices: Prices | None = None) -> None:
        self.near = ScriptedAgent(near, name="near")
        self.far = ScriptedAgent(far, name="far", side=Side.FAR, prices=prices)

    def hybrid(self, *, measured: int = 20, **policy: object) -> Hybrid:
        hedge = {"enabled": True, "least_seconds": 0.0}
        given = Policy.model_validate({"strategy": "cloud", "sensitivity": "public", "hedge": hedge, **policy})
        hybrid = Hybrid(near=self.near, far=self.far, policy=given)
        for _ in range(measured):
            hybrid._router.running.add_step("far", StepTaken(input_tokens=2, output_tokens=3, seconds=0.001))
        return hybrid

    async def run(self, hybrid: Hybrid, *, tools: Sequence[Tool] = ()) -> Result:
        with anyio.fail_after(20):
            return await hybrid.run("hello", tools=tools)


async def test_an_agent_that_takes_unusually_long_is_overtaken_and_stopped() -> None:
    pair = Pair(lambda _: [never()])
    async with pair.hybrid() as hybrid:
        result = await pair.run(hybrid)
    assert (result.text, result.agent, result.was_fallback) == ("near", "near", True)
    assert [(attempt.agent, attempt.outcome) for attempt in result.attempts] == [("far", "failed"), ("near", "accepted")]
    assert pair.far.cancelled_steps == 1


async def test_what_the_loser_has_cost_is_said_to_be_unknown_where_nobody_knows() -> None:
    pair = Pair(lambda _: [never()])
    async with pair.hybrid() as hybrid:
        result = await pair.run(hybrid)
    assert [(call.agent, call.error) for call in sorted(result.calls, key=lambda call: call.agent)] == [
        ("far", "CancelledError"),
        ("near", None),
    ]
    assert result.dollars is None
    assert result.attempts[0].dollars is None
    assert any(reason.endswith("near goes on, and what far was asked for cost an unknown amount") for reason in result.reasons)


async def test_the_first_agent_still_wins_where_it_is_useful_first() -> None:
    gate = anyio.Event()

    def near(_: StepRequest) -> Reply:
        gate.set()
        return [never()]

    pair = Pair(lambda _: [gate, "far"], near)
    async with pair.hybrid() as hybrid:
        result = await pair.run(hybrid)
    assert (result.text, len(result.attempts)) == ("far", 1)
    assert pair.near.cancelled_steps == 1
    assert any("far goes on, and what near was asked for cost" in reason for reason in result.reasons)


@pytest.mark.parametrize("useless", ["", " ", Unavailable("down")])
async def test_who_finishes_first_with_nothing_of_use_does_not_win(useless: str | NearfarError) -> None:
    gate = anyio.Event()

    def near(_: StepRequest) -> Reply:
        gate.set()
        return useless

    pair = Pair(lambda _: [gate, "far"], near)
    async with pair.hybrid() as hybrid:
        assert (await pair.run(hybrid)).text == "far"


async def test_where_the_first_fails_the_second_goes_on_and_need_not_begin_again() -> None:
    gate = anyio.Event()

    def near(_: StepRequest) -> Reply:
        gate.set()
        return "near"

    pair = Pair(lambda _: [gate, Unavailable("down")], near)
    async with pair.hybrid() as hybrid:
        assert (await pair.run(hybrid)).text == "near"
    assert len(pair.near.requests) == 1


async def test_where_both_fail_the_task_goes_on_as_if_there_had_been_one() -> None:
    gate = anyio.Event()
    replies: list[Reply] = [Unavailable("busy"), "near after all"]

    def near(_: StepRequest) -> Reply:
        gate.set()
        return replies.pop(0)

    pair = Pair(lambda _: [gate, Unavailable("down")], near)
    async with pair.hybrid() as hybrid:
        assert (await pair.run(hybrid)).text == "near after all"


async def test_nobody_is_asked_beside_an_agent_that_was_hardly_measured() -> None:
    pair = Pair(lambda _: "far")
    async with pair.hybrid(measured=19) as hybrid:
        assert (await pair.run(hybrid)).text == "far"
    assert pair.near.requests == []


async def test_a_private_task_is_not_told_to_anyone_far() -> None:
    pair = Pair(lambda _: "far", lambda _: "near")
    async with pair.hybrid(strategy="route", mode="prefer_on_device", sensitivity="private") as hybrid:
        for _ in range(20):
            hybrid._router.running.add_step("near", StepTaken(input_tokens=2, output_tokens=3, seconds=1e-9))
        assert (await pair.run(hybrid)).text == "near"
    assert pair.far.requests == []


async def test_a_step_after_tools_have_run_is_not_hedged() -> None:
    runs = 0

    @tool
    def act() -> str:
        """Act."""
        nonlocal runs
        runs += 1
        return "done"

    replies: list[Reply] = [ToolCall(id="1", name="act", arguments={}), "far"]
    pair = Pair(lambda _: replies.pop(0))
    async with pair.hybrid(hedge={"enabled": True, "least_seconds": 5.0}) as hybrid:
        assert (await pair.run(hybrid, tools=[act])).text == "far"
    assert (runs, pair.near.requests) == (1, [])


async def test_tools_that_both_call_run_once_for_the_winner() -> None:
    runs: list[str] = []

    @tool
    def act(who: str) -> str:
        """Act.

        Args:
            who: acts.
        """
        runs.append(who)
        return "done"

    replies: list[Reply] = [ToolCall(id="1", name="act", arguments={"who": "near"}), "near has acted"]
    pair = Pair(lambda _: [never(), ToolCall(id="1", name="act", arguments={"who": "far"})], lambda _: replies.pop(0))
    async with pair.hybrid() as hybrid:
        assert (await pair.run(hybrid, tools=[act])).text == "near has acted"
    assert runs == ["near"]


async def test_once_something_was_shown_nobody_is_asked_beside() -> None:
    gate = anyio.Event()

    def near(_: StepRequest) -> Reply:
        gate.set()
        return [never()]

    pair = Pair(lambda _: ["far ", gate, "goes on"], near)
    events: list[TaskEvent] = []
    async with pair.hybrid(hedge={"enabled": True, "least_seconds": DELAY}) as hybrid, anyio.create_task_group() as tasks:
        tasks.start_soon(_set_later, events, gate)
        async for event in hybrid.stream("hello"):
            events.append(event)
    assert [event.text for event in events if isinstance(event, AgentText)] == ["far ", "goes on"]
    assert pair.near.requests == []


async def _set_later(events: list[TaskEvent], gate: anyio.Event) -> None:
    """When something was shown, and the time is over after which the other one would be asked."""
    while not any(isinstance(event, AgentText) for event in events):
        await anyio.lowlevel.checkpoint()
    await anyio.sleep(DELAY)
    gate.set()


async def test_a_stream_shows_the_winner_alone_from_its_beginning() -> None:
    pair = Pair(lambda _: [never()], lambda _: ["ne", "ar"])
    async with pair.hybrid() as hybrid:
        events = [event async for event in hybrid.stream("hello")]
    told = [
        event.agent if isinstance(event, AttemptStarted) else event.text
        for event in events
        if isinstance(event, AttemptStarted | AgentText)
    ]
    assert told == ["far", "near", "near"]
    assert isinstance(events[-1], TaskFinished)


async def test_a_hedge_that_the_limits_do_not_allow_is_not_made() -> None:
    gate = anyio.Event()
    pair = Pair(lambda _: "far", lambda _: [gate, "near"], prices=None)
    limits = {"task": {"dollars": 0.01}}
    async with pair.hybrid(strategy="route", mode="prefer_on_device", limits=limits) as hybrid:
        for _ in range(20):
            hybrid._router.running.add_step("near", StepTaken(input_tokens=2, output_tokens=3, seconds=1e-9))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_set_soon, pair.near, gate)
            assert (await pair.run(hybrid)).text == "near"
    assert pair.far.requests == []  # its price is unknown, and no more than a cent may be spent


async def _set_soon(agent: ScriptedAgent, gate: anyio.Event) -> None:
    while not agent.requests:
        await anyio.lowlevel.checkpoint()
    await anyio.wait_all_tasks_blocked()
    gate.set()


async def test_a_summary_by_the_first_agent_for_the_second_is_not_taken_for_its_step() -> None:
    gate = anyio.Event()
    replies: list[Reply] = [[gate, "near"]]

    def near(_: StepRequest) -> Reply:
        if not replies:
            gate.set()
            return [never()]  # the summary
        return replies.pop()

    pair = Pair(lambda _: ContextOverflow("too long"), near)
    long = [message for _ in range(30) for message in (Message.user("word " * 100), Message.assistant("word " * 100))]
    async with pair.hybrid(strategy="route", mode="prefer_on_device", compression={"summary_tokens": 200}) as hybrid:
        for _ in range(20):
            hybrid._router.running.add_step("near", StepTaken(input_tokens=6000, output_tokens=3, seconds=1e-9))
        with anyio.fail_after(20):
            result = await hybrid.run([*long, Message.user("and now?")])
    assert {(call.agent, call.role) for call in result.calls} == {("near", "execute"), ("near", "summarize"), ("far", "execute")}
    assert [(attempt.agent, attempt.steps) for attempt in result.attempts] == [("near", 1)]


async def test_a_loser_behind_a_gateway_leaves_its_provider() -> None:
    asked, left = anyio.Event(), anyio.Event()

    async def answer(exchange: Exchange) -> None:
        await exchange.open_stream()
        await exchange.send(said("slow "))
        asked.set()
        await exchange.until_client_leaves()
        left.set()

    async with http_server(answer) as provider:
        agent = ProviderAgent(OpenAIDialect(), "m", name="far", base_url=provider.base_url)
        async with serve_gateway({"far": agent}) as gateway:
            pair = Pair(lambda _: "unused", lambda _: [asked, "near"])
            hybrid = pair.hybrid()
            far = GatewayConfig(provider="gateway", address=gateway.address)
            async with Hybrid(near=pair.near, far=far, policy=hybrid.policy) as served:
                for _ in range(20):
                    served._router.running.add_step("far", StepTaken(input_tokens=2, output_tokens=3, seconds=0.001))
                assert (await pair.run(served)).text == "near"
                with anyio.fail_after(5):
                    await left.wait()
        await agent.aclose()
    assert len(provider.exchanges) == 1


async def test_a_race_that_is_cancelled_ends_both_tries() -> None:
    ended: list[str] = []

    async def work(name: str) -> str:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(name)
        return name

    race: Race[str] = Race(0.0, bool)
    with anyio.move_on_after(0.05):
        await race.run(work("first"), lambda: work("second"))
    assert sorted(ended) == ["first", "second"]
