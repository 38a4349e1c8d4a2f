"""Tasks whose conversation outgrows an agent's context window."""

from typing import Any

import pytest

from nearfar import Hybrid, Result, tool
from nearfar.orchestrator.task.modes import Strategy
from nearfar.orchestrator.task.policy import CompressionConfig, CompressionUse, Policy, SupervisionConfig
from nearfar.protocols import ContextOverflow, Limits, Message, ScriptedAgent, Sensitivity, Side, StepRequest, ToolCall
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio

PAGES = 6


@tool(source="internal_tool")
async def read_page(number: int) -> str:
    """Read a page."""
    filler = " ".join(f"On page {number}, line {line} speaks of nothing that matters." for line in range(40))
    return f"{filler} The code of page {number} is CODE-{number}{number}. {filler}"


def reader(request: StepRequest) -> Reply:
    """Reads one page after the other, then answers with what it can still see of the codes."""
    pages = [call.arguments["number"] for message in request.messages for call in message.tool_calls]
    following = max((int(str(page)) for page in pages), default=0) + 1
    if following <= PAGES:
        return ToolCall(id=f"page-{following}", name="read_page", arguments={"number": following})
    seen = "\n".join(message.tool_result.content for message in request.messages if message.tool_result is not None)
    return " ".join(f"CODE-{page}{page}" for page in range(1, PAGES + 1) if f"CODE-{page}{page}" in seen)


def agent(side: Side, window: int | None) -> ScriptedAgent:
    return ScriptedAgent(reader, name=side.value, side=side, limits=Limits(context_tokens=window))


async def run(near: ScriptedAgent, far: ScriptedAgent | None = None, **policy: Any) -> Result:  # noqa: ANN401 - whatever policies take
    given = Policy(strategy=Strategy.ROUTE, compression=CompressionConfig(**policy.pop("compression", {})), **policy)
    async with Hybrid(near=near, far=far, tools=[read_page], policy=given) as hybrid:
        return await hybrid.run("What are the codes of all pages?")


async def test_a_conversation_that_outgrows_the_only_agent_is_compressed_and_the_result_says_so() -> None:
    near = agent(Side.NEAR, 3000)
    result = await run(near)
    assert result.text == "CODE-11 CODE-22 CODE-33 CODE-44 CODE-55 CODE-66"
    told = [reason for reason in result.reasons if "too long for near" in reason]
    assert len(told) == 1


async def test_once_the_agent_has_counted_it_is_not_asked_in_vain_again() -> None:
    near = agent(Side.NEAR, 3000)
    result = await run(near)
    assert [call.error for call in result.calls].count("ContextOverflow") == 0
    assert len(near.requests) == PAGES + 1


async def test_a_first_prompt_that_is_too_long_is_cut_when_the_agent_refuses_it() -> None:
    near = ScriptedAgent(lambda request: "yes" if "violin" in request.messages[0].text else "no", limits=Limits(context_tokens=800))
    talk = [Message.user("I play the violin."), Message.assistant("Oh. " * 2000), Message.user("Do I play the violin?")]
    async with Hybrid(near=near) as hybrid:
        result = await hybrid.run(talk)
    assert result.text == "yes"
    assert [call.error for call in result.calls] == ["ContextOverflow", None]
    assert len({request.idempotency_key for request in near.requests}) == 2


async def test_a_window_that_nobody_knows_is_found_by_trying() -> None:
    def strict(request: StepRequest) -> Reply:
        words = sum(len(message.text.split()) for message in request.messages)
        return ContextOverflow("too long") if words > 300 else "fine"

    talk = [Message.user("Hello there."), Message.assistant("Oh dear. " * 400), Message.user("Well?")]
    async with Hybrid(near=ScriptedAgent(strict)) as hybrid:
        result = await hybrid.run(talk)
    assert result.text == "fine"


async def test_an_agent_with_a_larger_window_takes_over_and_reads_everything() -> None:
    near, far = agent(Side.NEAR, 3000), agent(Side.FAR, None)
    result = await run(near, far, sensitivity=Sensitivity.PUBLIC, mode="prefer_on_device")
    assert result.side is Side.FAR
    assert not any("too long for" in reason for reason in result.reasons)
    assert result.text == "CODE-11 CODE-22 CODE-33 CODE-44 CODE-55 CODE-66"


async def test_where_the_policy_prefers_it_compression_comes_before_another_agent() -> None:
    near, far = agent(Side.NEAR, 3000), agent(Side.FAR, None)
    always = {"use": CompressionUse.ALWAYS}
    result = await run(near, far, sensitivity=Sensitivity.PUBLIC, mode="prefer_on_device", compression=always)
    assert result.side is Side.NEAR
    assert far.requests == []


async def test_where_the_policy_forbids_it_the_error_stands() -> None:
    with pytest.raises(ContextOverflow):
        await run(agent(Side.NEAR, 3000), compression={"use": CompressionUse.NEVER})


async def test_a_prompt_that_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ContextOverflow):
        async with Hybrid(near=agent(Side.NEAR, 100)) as hybrid:
            await hybrid.run("word " * 500)


async def test_a_summary_is_asked_of_the_near_agent_and_stands_among_the_calls() -> None:
    def script(request: StepRequest) -> Reply:
        return "Pages were read." if "Sum up" in request.messages[0].text else reader(request)

    near = ScriptedAgent(script, name="near", limits=Limits(context_tokens=3000))
    result = await run(near, compression={"summary_tokens": 100})
    assert "summarize" in {call.role for call in result.calls}
    assert any("> Pages were read." in message.text for message in near.requests[-1].messages)
    assert any("with a summary" in reason for reason in result.reasons)


async def supervised(use: CompressionUse) -> Result:
    """A task whose supervisor has a small window."""
    near = agent(Side.NEAR, None)
    far = ScriptedAgent(lambda _: "CONTINUE", name="far", side=Side.FAR, limits=Limits(context_tokens=900))
    policy = Policy(
        strategy=Strategy.EVA,
        sensitivity=Sensitivity.PUBLIC,
        supervision=SupervisionConfig(interval=3),
        compression=CompressionConfig(use=use),
    )
    async with Hybrid(near=near, far=far, tools=[read_page], policy=policy) as hybrid:
        return await hybrid.run("What are the codes of all pages?")


async def test_a_supervisor_that_cannot_hold_all_of_the_work_judges_a_part() -> None:
    result = await supervised(CompressionUse.LAST_RESORT)
    checks = [call for call in result.calls if call.role == "verify"]
    assert {call.error for call in checks} == {"ContextOverflow", None}
    assert [call.verdict for call in checks if call.error is None] == ["continue"] * 2
    assert not any("goes on alone" in reason for reason in result.reasons)
    assert any("only a part of the work" in reason for reason in result.reasons)


async def test_where_the_policy_forbids_it_the_executor_goes_on_without_such_a_supervisor() -> None:
    result = await supervised(CompressionUse.NEVER)
    assert [call.error for call in result.calls if call.role == "verify"] == ["ContextOverflow"]
    assert any("goes on alone" in reason for reason in result.reasons)
