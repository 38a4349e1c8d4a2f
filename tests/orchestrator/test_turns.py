"""Turns: one answer of a routed model whose tools the caller runs."""

from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from nearfar import (
    FinishReason,
    Hybrid,
    InvalidRequest,
    Message,
    Prices,
    PrivacyViolation,
    ScriptedAgent,
    Side,
    StepRequest,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
    Unavailable,
    tool,
)
from nearfar.orchestrator.task.task import Prompt
from nearfar.protocols import ToolChoice
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio

WEATHER = ToolSpec(
    name="weather",
    description="Tell the weather in a town.",
    parameters={"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
)
PRICES = Prices(input=Decimal(1), output=Decimal(2), source="a test", as_of=date(2026, 11, 26))
FREE = Prices.free("a test")


def call(number: int = 1, name: str = "weather", **arguments: object) -> ToolCall:
    return ToolCall(id=f"c{number}", name=name, arguments=arguments or {"town": "Oslo"})


def near(*script: Reply, confidence: float | None = 0.9) -> ScriptedAgent:
    return ScriptedAgent(script, name="near", model="small", confidence=confidence, prices=FREE)


def far(*script: Reply) -> ScriptedAgent:
    return ScriptedAgent(script, name="far", model="big", side=Side.FAR, prices=PRICES)


def answered(turn: Turn, content: str = "Sunny.") -> list[Message]:
    """Return the messages that follow a turn: its own, and the results of its calls."""
    results = [Message.tool(ToolResult(call_id=made.id, name=made.name, content=content)) for made in turn.calls]
    return [turn.message, *results]


async def asked(hybrid: Hybrid, prompt: Prompt = "Is it sunny in Oslo?", **options: Any) -> Turn:  # noqa: ANN401 - those of `turn`
    return await hybrid.turn(prompt, **{"tools": [WEATHER], "sensitivity": "public", **options})


async def test_calls_of_the_callers_tools_end_the_turn() -> None:
    async with Hybrid(near=near(["I look.", call()])) as hybrid:
        turn = await asked(hybrid)
    assert (turn.text, turn.calls, turn.finish_reason) == ("I look.", (call(),), FinishReason.TOOL_CALLS)
    assert (turn.agent, turn.side, turn.model, turn.confidence) == ("near", Side.NEAR, "small", 0.9)
    assert turn.message == Message.assistant("I look.", (call(),))


async def test_results_that_the_caller_brings_lead_to_the_answer() -> None:
    agent = near([call()], "It is sunny in Oslo.")
    async with Hybrid(near=agent) as hybrid:
        first = await asked(hybrid)
        turn = await asked(hybrid, [Message.user("Is it sunny in Oslo?"), *answered(first)])
    assert (turn.text, turn.calls, turn.finish_reason) == ("It is sunny in Oslo.", (), FinishReason.STOP)
    assert agent.requests[1].messages[-1].tool_result == ToolResult(call_id="c1", name="weather", content="Sunny.")


async def test_a_doubtful_call_goes_to_the_next_agent() -> None:
    async with Hybrid(near=near([call()], confidence=0.2), far=far([call(2)])) as hybrid:
        turn = await asked(hybrid)
    assert (turn.calls, turn.model) == ((call(2),), "big")
    assert [attempt.outcome for attempt in turn.result.attempts] == ["rejected", "accepted"]


async def test_an_invalid_call_goes_to_the_next_agent_after_a_second_try() -> None:
    agent = near([call(town=3)], [call(place="Oslo")])
    async with Hybrid(near=agent, far=far([call(2)])) as hybrid:
        turn = await asked(hybrid)
    assert (turn.calls, turn.model, len(agent.requests)) == ((call(2),), "big", 2)


async def test_a_turn_is_private_unless_it_says_otherwise() -> None:
    cloud = far("Yes.")
    async with Hybrid(near=near("Yes.", confidence=0.1), far=cloud) as hybrid:
        assert (await hybrid.turn("Is it sunny?", tools=[WEATHER])).model == "small"
        with pytest.raises(PrivacyViolation):
            await hybrid.turn("Is it sunny?", agent="far")
    assert cloud.requests == []


async def test_an_agent_that_is_named_answers_alone() -> None:
    async with Hybrid(near=near(*["Yes."] * 2), far=far(Unavailable("gone"), "Sure.")) as hybrid:
        with pytest.raises(Unavailable):
            await asked(hybrid, agent="far")
        assert (await asked(hybrid, agent="far")).model == "big"
        assert (await asked(hybrid, agent="near")).model == "small"
        with pytest.raises(InvalidRequest, match="no agent 'nowhere'"):
            await asked(hybrid, agent="nowhere")


async def test_own_tools_run_inside_the_turn() -> None:
    @tool(effect="read")
    def hour() -> str:
        """Tell the hour."""
        return "Noon"

    agent = near(["One moment.", ToolCall(id="c1", name="hour")], ["Now I look.", call(2)])
    async with Hybrid(near=agent, tools=[hour]) as hybrid:
        turn = await asked(hybrid)
    assert (turn.text, turn.calls) == ("One moment.\n\nNow I look.", (call(2),))
    assert [outcome.call.name for outcome in turn.result.tool_calls] == ["hour"]


async def test_own_tools_wait_where_the_callers_are_called_too() -> None:
    ran: list[str] = []

    @tool
    def note(text: str) -> str:
        """Note a text."""
        ran.append(text)
        return "noted"

    async with Hybrid(near=near([call(1, "note", text="Oslo"), call(2)]), tools=[note]) as hybrid:
        turn = await asked(hybrid)
    assert (turn.calls, ran) == ((call(2),), [])
    assert any("not called in this turn" in reason and "note" in reason for reason in turn.result.reasons)


async def test_one_call_is_kept_where_calls_side_by_side_are_not_wanted() -> None:
    async with Hybrid(near=near([call(1), call(2)], [call(1), call(2)])) as hybrid:
        assert (await asked(hybrid, parallel_calls=False)).calls == (call(1),)
        assert (await asked(hybrid)).calls == (call(1), call(2))


@pytest.mark.parametrize(
    ("choice", "sent", "offered"),
    [
        ("auto", ToolChoice.AUTO, ["weather", "clock"]),
        ("none", ToolChoice.NONE, ["weather", "clock"]),
        ("required", ToolChoice.REQUIRED, ["weather", "clock"]),
        ("weather", ToolChoice.REQUIRED, ["weather"]),
    ],
)
async def test_the_choice_of_tools_reaches_the_agent(choice: str, sent: ToolChoice, offered: list[str]) -> None:
    agent = ScriptedAgent(lambda request: "No." if request.tool_choice is ToolChoice.NONE else call(), name="near")
    async with Hybrid(near=agent) as hybrid:
        await asked(hybrid, tools=[WEATHER, ToolSpec(name="clock")], tool_choice=choice)
    assert [(each.tool_choice, [spec.name for spec in each.tools]) for each in agent.requests] == [(sent, offered)]


async def test_a_demanded_call_is_demanded_until_a_tool_has_run() -> None:
    @tool(effect="read")
    def hour() -> str:
        """Tell the hour."""
        return "Noon"

    agent = near(ToolCall(id="c1", name="hour"), "It is noon.")
    async with Hybrid(near=agent, tools=[hour]) as hybrid:
        assert (await asked(hybrid, tool_choice="required")).text == "It is noon."
    assert [request.tool_choice for request in agent.requests] == [ToolChoice.REQUIRED, ToolChoice.AUTO]


async def test_sampling_reaches_the_agent_that_answers_and_no_other() -> None:
    agent, cloud = near("Yes."), far("1. Look.", "CONTINUE")
    sampling = {"temperature": 1.5, "max_output_tokens": 7, "seed": 3, "stop": ["END"]}
    async with Hybrid(near=agent, far=cloud, policy={"maximum_output_tokens": 50, "strategy": "pevr"}) as hybrid:
        await hybrid.turn("Is it sunny?", sampling=sampling, sensitivity="public")
    assert [_sampled(each) for each in agent.requests] == [(1.5, 7, 3, ("END",))]
    assert {_sampled(each) for each in cloud.requests} == {(None, 50, None, ())}


def _sampled(request: StepRequest) -> tuple[object, ...]:
    return (request.temperature, request.max_output_tokens, request.seed, request.stop)


async def test_an_answer_that_was_cut_off_says_so() -> None:
    async with Hybrid(near=near("One two three four.")) as hybrid:
        turn = await asked(hybrid, sampling={"max_output_tokens": 2})
    assert (turn.text, turn.finish_reason) == ("One two", FinishReason.LENGTH)
    assert turn.result.calls[-1].finish_reason is FinishReason.LENGTH
