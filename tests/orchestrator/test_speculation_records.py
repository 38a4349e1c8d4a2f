"""The calls of the strategy `speculate` on record: each that an agent was sent, in results and in streams."""

import random
from collections import Counter

import pytest

from nearfar import Hybrid, Result, Role, ScriptedAgent, Side, StepRequest, Strategy, ToolCall, Unavailable, tool
from nearfar.orchestrator.task.events import CallEnded, TaskFinished
from nearfar.orchestrator.task.tools import LOOKED_UP
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio
STEPS = 5


@tool(effect="read", source="internal_tool")
async def look(at: int) -> str:
    """Look at a place."""
    return f"{at}"


class Sides:
    """Both sides look at five places; near names a wrong one now and then, and far may fail at a step."""

    def __init__(self, seed: int, fails_at: int | None = None) -> None:
        self._seed = seed
        self._fails_at = fails_at
        self.far = ScriptedAgent(lambda request: self._step(request, "far"), name="far", side=Side.FAR, pace=0.02)
        self.near = ScriptedAgent(lambda request: self._step(request, "near"), name="near")

    def _step(self, request: StepRequest, side: str) -> Reply:
        number = sum(message.role == "tool" for message in request.messages)
        if side == "far" and number == self._fails_at:
            return Unavailable("far is away")
        if number == STEPS:
            return f"{side} is done"
        is_wrong = side == "near" and random.Random(f"{self._seed} {number}").random() < 0.3
        return ToolCall(id=f"{side}-{number}", name="look", arguments={"at": number + 10 * is_wrong})

    @property
    def asked(self) -> Counter[str]:
        return Counter(near=len(self.near.requests), far=len(self.far.requests))

    def hybrid(self) -> Hybrid:
        roles = {"scout": Role(instructions="Look.", tools=("look",), strategy=Strategy.SPECULATE)}
        policy = {"sensitivity": "public", "speculate": {"thrift": 0.0}}
        return Hybrid(near=self.near, far=self.far, tools=[look], agents=roles, policy=policy)


def counted(result: Result) -> Counter[str]:
    return Counter(call.agent for call in result.calls)


@pytest.mark.parametrize("fails_at", [None, 0, 2])
@pytest.mark.parametrize("seed", range(4))
async def test_the_result_has_each_call_that_an_agent_was_sent(seed: int, fails_at: int | None) -> None:
    sides = Sides(seed, fails_at)
    async with sides.hybrid() as hybrid:
        result = await hybrid.run("Look.", strategy="speculate")
    assert result.text == ("far is done" if fails_at is None else "near is done")
    assert counted(result) == sides.asked


async def test_a_role_runs_ahead_and_its_calls_are_on_record() -> None:
    sides = Sides(0)
    async with sides.hybrid() as hybrid:
        result = await hybrid.run("Look.", role="scout")
    assert result.speculation is not None
    assert result.speculation.confirmed > 0
    assert counted(result) == sides.asked


async def test_a_stream_tells_of_each_call_once() -> None:
    sides = Sides(1)
    async with sides.hybrid() as hybrid:
        events = [event async for event in hybrid.stream("Look.", strategy="speculate")]
    (result,) = [event.result for event in events if isinstance(event, TaskFinished)]
    told = [event.call for event in events if isinstance(event, CallEnded)]
    assert sorted(call.model_dump_json() for call in told) == sorted(call.model_dump_json() for call in result.calls)


@pytest.mark.parametrize("seed", range(4))
async def test_requests_that_differ_have_different_idempotency_keys(seed: int) -> None:
    sides = Sides(seed)
    async with sides.hybrid() as hybrid:
        await hybrid.run("Look.", strategy="speculate", idempotency_key="k" * 100)
    for agent in (sides.near, sides.far):
        contents: dict[str, set[str]] = {}
        for request in agent.requests:
            told = str([(message.text, message.tool_calls and message.tool_calls[0].arguments) for message in request.messages])
            contents.setdefault(request.idempotency_key, set()).add(f"{told} {request.tool_choice}")
        assert all(len(told) == 1 for told in contents.values())


async def test_no_far_call_is_wasted_on_a_look_up_that_is_not_made_again() -> None:
    def step(request: StepRequest) -> Reply:
        number = sum(message.role == "tool" for message in request.messages)
        return "Done." if number == 4 else ToolCall(id=f"c{number}", name="look", arguments={"at": number % 2})

    far, near = ScriptedAgent(step, name="far", side=Side.FAR, pace=0.05), ScriptedAgent(step, name="near")
    policy = {"sensitivity": "public", "speculate": {"thrift": 0.0}, "unchanging_tools": ["look"]}
    async with Hybrid(near=near, far=far, tools=[look], policy=policy) as hybrid:
        result = await hybrid.run("Look.", strategy="speculate")
    assert len(far.requests) == 5
    assert not any(call.shadow for call in result.calls)


async def test_a_repetition_that_near_alone_has_made_is_no_repetition_for_far() -> None:
    def step(request: StepRequest, *places: str) -> Reply:
        number = sum(message.role == "tool" for message in request.messages)
        return "Done." if number == len(places) else ToolCall(id=f"c{number}", name="find", arguments={"name": places[number]})

    @tool(effect="read", source="internal_tool")
    async def find(name: str) -> str:
        """Find a place."""
        return f"found {name}"

    far = ScriptedAgent(lambda request: step(request, "Mira "), name="far", side=Side.FAR, pace=0.1)
    near = ScriptedAgent(lambda request: step(request, "mira", "Mira ", "Mira "), name="near")
    policy = {"sensitivity": "public", "speculate": {"thrift": 0.0}, "unchanging_tools": ["find"]}
    async with Hybrid(near=near, far=far, tools=[find], policy=policy) as hybrid:
        result = await hybrid.run("Find.", strategy="speculate")
    assert [outcome.result for outcome in result.tool_calls] == ["found Mira "]


@pytest.mark.parametrize("tokens", [500, 600, 700, 900])
async def test_what_runs_ahead_leaves_room_under_a_limit_for_the_calls_that_count(tokens: int) -> None:
    def step(request: StepRequest) -> Reply:
        number = sum(message.role == "tool" for message in request.messages)
        return "Done." if number == 4 else ToolCall(id=f"c{number}", name="look", arguments={"at": number})

    far = ScriptedAgent(step, name="far", side=Side.FAR, pace=0.03)
    near = ScriptedAgent(step, name="near", pace=0.02)
    limits = {"maximum_output_tokens": 100, "limits": {"task": {"tokens": tokens}}}
    policy = {"sensitivity": "public", "speculate": {"thrift": 0.0}, **limits}
    async with Hybrid(near=near, far=far, tools=[look], policy=policy) as hybrid:
        result = await hybrid.run("Look.", strategy="speculate")
    assert (result.agent, result.text) == ("far", "Done.")


@pytest.mark.parametrize("strategy", ["cloud", "speculate"])
async def test_equal_look_ups_of_one_message_are_made_in_the_order_of_cloud(strategy: str) -> None:
    def step(request: StepRequest) -> Reply:
        has_looked = any(message.role == "tool" for message in request.messages)
        return "Done." if has_looked else [ToolCall(id=f"c{number}", name="look", arguments={"at": 1}) for number in range(2)]

    far, near = ScriptedAgent(step, name="far", side=Side.FAR, pace=0.05), ScriptedAgent(step, name="near")
    policy = {"sensitivity": "public", "speculate": {"thrift": 0.0}, "unchanging_tools": ["look"]}
    async with Hybrid(near=near, far=far, tools=[look], policy=policy) as hybrid:
        result = await hybrid.run("Look.", strategy=strategy)
    assert [outcome.result.endswith(LOOKED_UP) for outcome in result.tool_calls] == [False, True]
